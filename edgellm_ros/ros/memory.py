"""Memory of this process: what messages keep, what an engine may take, and giving back what nobody holds."""

from __future__ import annotations

import ctypes
import gc

from ..backends.base import DataType
from ..backends.host_memory import available_memory
from ..engine_format import EngineDirectory
from ..errors import BackendError, RefusalCode

LARGEST_KEPT = 8 << 20  # bytes; an image of 1920 by 1080 in three channels has six million
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of mallopt


def keep_message_memory() -> None:
    """Let memory of messages as large as images be used again instead of going back to the system each time.

    Fresh pages cost more than the copy into them: without this, receiving an image takes nearly twice the time.
    ``malloc_trim`` still gives all of it back.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, LARGEST_KEPT)
        set_option(_TRIM_THRESHOLD, 4 * LARGEST_KEPT)


def release_memory() -> None:
    """Give the memory of what nobody holds any more back to the system, not only to this process."""
    gc.collect()  # an engine is many MB in few objects; do not wait for a later collection
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc keeps freed weights otherwise
    if trim is not None:
        trim(0)


def needed_memory(directory: EngineDirectory) -> int:
    """Bytes that an engine takes: its files, and caches for its limits."""
    limits = directory.config.limits
    element = DataType(directory.config.kv_cache_dtype).numpy.itemsize
    cache = sum(2 * heads * size for heads, size in directory.config.kv_layers) * element
    return sum(directory.manifest.files.values()) + cache * limits.max_batch_size * limits.max_kv_cache_capacity


def spare_memory(directory: EngineDirectory, reserve_mb: int) -> int | None:
    """Bytes that are left of free memory beside the engine and the reserve; None where the system does not tell.

    :raises BackendError: with the figures.
    """
    available = available_memory()
    if available is None:
        return None
    needed = needed_memory(directory)
    if available - needed < reserve_mb * 2**20:
        raise BackendError(
            f"{directory.path} needs about {needed >> 20} MB of the {available >> 20} MB that are free and "
            f"engine.memory_reserve_mb keeps {reserve_mb} MB; free memory or build with a smaller cache.",
            RefusalCode.NO_CAPACITY,
        )
    return available - needed - reserve_mb * 2**20
