"""A digest of a file's content that takes milliseconds however large the file is.

It tells a file from that of another model, or from one that was written over; it does not find every flipped bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from .errors import EngineDirectoryError

_PIECES, _PIECE = 256, 4096


def file_sample(path: Path) -> str:
    """SHA-256 in hexadecimal over pieces spread evenly over a file, or over all of a small one."""
    checksum, size = hashlib.sha256(), path.stat().st_size
    count = min(_PIECES, -(-size // _PIECE))
    last = max(0, size - _PIECE)
    with path.open("rb", buffering=0) as file:
        for index in range(count):
            offset = index * last // max(1, count - 1)  # that of the last one ends the file
            file.seek(offset)
            checksum.update(file.read(_PIECE))
    return checksum.hexdigest()


def file_samples(directory: Path, names: Iterable[str]) -> dict[str, str]:
    """The samples of files by name."""
    return {name: file_sample(directory / name) for name in names}


def check_content(file: Path, size: int, sample: str | None) -> None:
    """:raises EngineDirectoryError: a file is not of the size, or not of the ``file_sample``, that a manifest has."""
    found = file.stat().st_size
    if found != size:
        raise EngineDirectoryError(f"{file} has {found} bytes; the manifest wants {size}: build it again.")
    try:
        differs = sample is not None and file_sample(file) != sample
    except OSError as error:
        raise EngineDirectoryError(f"{file} cannot be read ({error.strerror}); check its permissions.") from None
    if differs:
        raise EngineDirectoryError(f"{file} is not what was built (its size is, its content is not); build it again.")
