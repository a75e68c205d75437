"""Memory and kernels of a backend whose device is the CPU; engines and caches are its subclasses'."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..errors import BackendError, MisuseError
from . import host_rows
from .base import DataType, Engine, RopeKind, Tensor, TokenSpan
from .base import EmbeddingTable as EmbeddingTableProtocol
from .host_embeddings import TENSOR_NAME, HostEmbeddingTable
from .host_images import HostImages
from .host_memory import available_memory
from .host_sampler import HostSampler
from .host_tensor import HostReadback, HostTensor, aligned_zeros, host_array
from .image_kernels import ImageKernels
from .token_selection import select_tokens

_FEW_POSITIONS = 64  # of a decode step, which looks its rotations up
_TABLE_POSITIONS = 4096  # 1 MB a kind at heads of 64


class HostCaptured:
    """A recorded step: the function itself."""

    __slots__ = ("run",)
    recorded, failure = False, ""

    def __init__(self, step: Callable[[], None]) -> None:
        self.run = step

    def record(self) -> bool:
        """There is nothing to do."""
        return True

    def close(self) -> None:
        """Nothing was recorded."""


class HostStopwatch:
    """The host's clock: work is done when it was enqueued."""

    def __init__(self) -> None:
        self._last = 0.0
        self._laps: dict[str, float] = {}

    def start(self) -> None:
        """Forget earlier laps; the first one begins here."""
        self._laps, self._last = {}, time.perf_counter()

    def lap(self, name: str) -> None:
        """What was done since the last lap is ``name``."""
        now = time.perf_counter()
        self._laps[name], self._last = now - self._last, now

    def seconds(self) -> dict[str, float]:
        """Of every lap."""
        return self._laps

    def close(self) -> None:
        """Nothing to let go of."""


def _rotations(rope: RopeKind, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines float32 [...,head_dim/2] of positions int32 [...]."""
    angles = positions.astype(np.float32)[..., None] * np.asarray(rope.inverse_frequency, dtype=np.float32)
    cosines, sines = np.cos(angles), np.sin(angles)
    if rope.scale != 1.0:
        np.multiply(cosines, np.float32(rope.scale), out=cosines)
        np.multiply(sines, np.float32(rope.scale), out=sines)
    return cosines, sines


class HostBackend:
    """Shared half of the CPU and the fake backend; calls finish before they return."""

    def __init__(self) -> None:
        self._closed = False
        self._engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._bytes = {"tensors": 0, "caches": 0, "embeddings": 0}
        self.images: ImageKernels = HostImages()
        self._rope_tables: dict[RopeKind, tuple[np.ndarray, np.ndarray]] = {}

    def _check_open(self) -> None:
        if self._closed:
            raise MisuseError("this backend is closed; open a new one.")

    def _count(self, kind: str, owner: object, size: int) -> None:
        """Let ``memory`` count ``size`` bytes for as long as ``owner`` lives."""
        self._bytes[kind] += size

        def forget() -> None:
            self._bytes[kind] -= size

        weakref.finalize(owner, forget).atexit = False

    def allocate(self, shape: tuple[int, ...], dtype: DataType) -> HostTensor:
        """Zeroed memory.

        :raises BackendError: the system has not enough.
        """
        self._check_open()
        try:
            array = aligned_zeros(tuple(shape), dtype.numpy)
        except (MemoryError, OSError, OverflowError):
            raise BackendError(f"no memory for a tensor {dtype.value} {tuple(shape)}; lower the limits.") from None
        tensor = HostTensor(array, dtype)
        self._count("tensors", tensor, array.nbytes)
        return tensor

    def allocate_sampler(self, rows: int, vocab_size: int) -> HostSampler:
        """Sampling state for ``rows`` sequences."""
        self._check_open()
        return HostSampler(rows, vocab_size)

    def open_embeddings(self, path: Path, *, scale: float = 1.0, tensor: str = TENSOR_NAME) -> HostEmbeddingTable:
        """Map a tensor [V,D] of a safetensors file.

        :raises EngineDirectoryError: missing, damaged, or of an element type this runtime cannot read.
        """
        self._check_open()
        table = HostEmbeddingTable(Path(path), scale, tensor)
        self._count("embeddings", table, table.nbytes)
        return table

    def gather_embeddings(self, table: EmbeddingTableProtocol, token_ids: Tensor, out: Tensor) -> None:
        """Fill out float32 [B,S,D] with scale * table[token_ids int32 [B,S]]; ids outside the vocabulary give zeros."""
        if not isinstance(table, HostEmbeddingTable):
            raise MisuseError(f"a {type(table).__name__} was given to a CPU backend; want a table that it opened.")
        ids, rows = host_array(token_ids), host_array(out)
        if rows.shape != (*ids.shape, table.shape[1]):
            raise ValueError(
                f"embeddings of ids {ids.shape} were asked into {rows.shape}; want [..., {table.shape[1]}]."
            )
        table.gather(ids, rows)

    def rope_tables(self, rope: RopeKind, positions: Tensor, cosine: Tensor, sine: Tensor) -> None:
        """cosine, sine float32 [B,S,head_dim/2] of positions int32 [B,S]; angles are float32 products."""
        cosines, sines, where = host_array(cosine), host_array(sine), host_array(positions)
        if where.size <= _FEW_POSITIONS and where.size and where.min() >= 0 and where.max() < _TABLE_POSITIONS:
            tables = self._rope_tables.get(rope)
            if tables is None:
                places = np.arange(_TABLE_POSITIONS, dtype=np.int32)
                tables = self._rope_tables[rope] = _rotations(rope, places)
            for table, out in zip(tables, (cosines, sines), strict=True):
                np.take(table, where, axis=0, out=out, mode="clip")  # "clip" skips a copy; places are in range here
            return
        cosines[...], sines[...] = _rotations(rope, where)

    def advance(self, tensors: Sequence[Tensor], amount: int = 1) -> None:
        """Add ``amount`` to every element of int32 ``tensors``."""
        for tensor in tensors:
            values = host_array(tensor)
            values += amount

    def copy(self, source: Tensor, destination: Tensor) -> None:
        """Copy the elements of one tensor into another of equal shape and type."""
        given, place = host_array(source), host_array(destination)
        if given.shape != place.shape or source.dtype is not destination.dtype:
            raise ValueError(f"a copy of {given.shape} into {place.shape} was asked; want equal shapes and types.")
        place[...] = given

    def gather_rows(self, source: Tensor, rows: Tensor, out: Tensor) -> None:
        """out[m] = source[rows[m]]; source [N,D], rows int32 [M], out [M,D]; zeros for a row outside."""
        host_rows.gather_rows(host_array(source), host_array(rows), host_array(out))

    def splice_rows(self, source: Tensor, rows: Tensor, out: Tensor) -> None:
        """out[rows[m]] = source[m]; source [M,D], rows int32 [M], out [N,D]; nothing for a row outside."""
        host_rows.splice_rows(host_array(source), host_array(rows), host_array(out))

    def select_tokens(
        self, embeddings: Tensor, spans: Sequence[TokenSpan], text_pivots: int, image_pivots: int
    ) -> np.ndarray:
        """Rows of embeddings [L,D] to keep, int32, ascending; see ``token_selection.select_tokens``."""
        return select_tokens(host_array(embeddings), spans, text_pivots, image_pivots)

    def euler_step(self, state: Tensor, velocity: Tensor, step: float) -> None:
        """Add ``step * velocity`` to ``state``; float32 of equal shapes."""
        host_rows.euler_step(host_array(state), host_array(velocity), step)

    def capture(self, key: Hashable, step: Callable[[], None]) -> HostCaptured:
        """The step itself: there is nothing to record on a CPU."""
        self._check_open()
        return HostCaptured(step)

    def stopwatch(self) -> HostStopwatch:
        """A stopwatch on the host's clock."""
        return HostStopwatch()

    def read_async(self, tensor: Tensor) -> HostReadback:
        """A copy that is ready at once."""
        return HostReadback(host_array(tensor).copy())

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def memory(self) -> Mapping[str, int]:
        """Bytes of ``tensors`` and ``caches`` (reserved, not touched), of mapped ``embeddings``, and those ``free``."""
        return {**self._bytes, "free": available_memory() or 0}

    def close(self) -> None:
        """Close every engine; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for engine in list(self._engines):
            engine.close()
        self._engines.clear()
