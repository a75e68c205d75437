"""How this process keeps memory between messages."""

from __future__ import annotations

import ctypes

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
