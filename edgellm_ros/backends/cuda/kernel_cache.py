"""Compiled kernels on disk, so that a second start compiles nothing.

An entry is named by everything that went into it and begins with a digest of its content: one that was cut short or
damaged is compiled again. Entries are written aside and renamed, so that processes may share the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

_MAGIC = b"edgellm kernel 1\n"


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/edgellm_ros/kernels``, or the same under ``~/.cache``."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(root) if root and Path(root).is_absolute() else Path.home() / ".cache"
    return base / "edgellm_ros" / "kernels"


class KernelCache:
    """Binaries by source, options, architecture and compiler version. A folder that cannot be used costs time only."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = default_folder() if folder is None else folder

    @staticmethod
    def key(source: str, architecture: str, options: tuple[str, ...], compiler: str) -> str:
        """Name of an entry."""
        digest = hashlib.sha256()
        for part in (source, architecture, *options, compiler):
            digest.update(part.encode() + b"\0")
        return f"{architecture}-{digest.hexdigest()[:40]}"

    def get(self, key: str, compile_binary: Callable[[], bytes]) -> bytes:
        """The stored binary, or what ``compile_binary`` gives, which is then stored."""
        path = self.folder / f"{key}.bin"
        binary = self._read(path)
        if binary is None:
            binary = compile_binary()
            self._write(path, binary)
        return binary

    @staticmethod
    def _read(path: Path) -> bytes | None:
        try:
            content = path.read_bytes()
        except OSError:
            return None
        head = len(_MAGIC)
        binary = content[head + 32 :]
        sound = content.startswith(_MAGIC) and content[head : head + 32] == hashlib.sha256(binary).digest()
        return binary if sound and binary else None

    def _write(self, path: Path, binary: bytes) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=self.folder)
        except OSError:
            return  # a read-only home: compile at every start
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(binary).digest() + binary)
            Path(name).replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                Path(name).unlink()
