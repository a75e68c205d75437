"""Random access to a file whose content is not trusted: every read is checked against its size first."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from ..errors import CheckpointError

HASH_CHUNK_BYTES = 1 << 22


class BoundedFile:
    """Open files that are read with ``pread``, as if they were one that begins with the first and goes on with the
    next: no mapping, so memory stays small and a truncation cannot kill us. ``path`` names them in messages.

    One thread owns it. :raises CheckpointError: from the constructor, when one cannot be opened.
    """

    def __init__(self, path: Path, *more: Path) -> None:
        self.path = path
        self._parts: list[tuple[int, int, int]] = []  # descriptor, first byte, byte behind the last
        self.size = 0
        try:
            for part in (path, *more):
                # A pipe would be waited for without end, and a device has one no more than that.
                descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                self._parts.append((descriptor, self.size, self.size))
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise CheckpointError(f"{part} is no regular file; want one with the content itself.")
                start, self.size = self.size, self.size + found.st_size
                self._parts[-1] = (descriptor, start, self.size)
        except (OSError, ValueError) as error:
            self.close()
            reason = error.strerror if isinstance(error, OSError) else error
            raise CheckpointError(f"{part} cannot be read ({reason}); check the path.") from None
        except CheckpointError:
            self.close()
            raise

    def read(self, offset: int, count: int, what: str) -> bytes:
        """``count`` bytes from ``offset``; ``what`` names them in the message.

        :raises CheckpointError: they are not all inside the file, or the disk failed.
        """
        if offset < 0 or count < 0 or offset + count > self.size:
            raise CheckpointError(
                f"{self.path} is truncated or damaged: {what} needs bytes {offset} to {offset + count} and the file "
                f"has {self.size}; fetch it again."
            )
        pieces = []
        for descriptor, start, stop in self._parts:
            while count and start <= offset < stop:
                try:
                    piece = os.pread(descriptor, min(count, stop - offset), offset - start)
                except OSError as error:
                    raise CheckpointError(f"{self.path} cannot be read ({error.strerror}) at {what}.") from None
                if not piece:
                    raise CheckpointError(
                        f"{self.path} became shorter while {what} was read; do not change it meanwhile."
                    )
                pieces.append(piece)
                offset += len(piece)
                count -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def digest(self, progress: Callable[[int], None] | None = None) -> str:
        """SHA-256 of the whole content in hexadecimal; ``progress`` gets the bytes of each step."""
        checksum = hashlib.sha256()
        for offset in range(0, self.size, HASH_CHUNK_BYTES):
            piece = self.read(offset, min(HASH_CHUNK_BYTES, self.size - offset), "the content")
            checksum.update(piece)
            if progress:
                progress(len(piece))
        return checksum.hexdigest()

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        while self._parts:
            os.close(self._parts.pop()[0])
