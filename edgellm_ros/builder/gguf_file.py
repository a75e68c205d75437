"""GGUF files: metadata and tensor directory, with every count, size and offset checked before it is believed."""

from __future__ import annotations

import itertools
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError
from .bounded_file import BoundedFile
from .gguf_types import OTHER_TYPES, TYPES, BlockType

MAX_HEADER_BYTES = 256 * 2**20
MAX_LISTED = 1 << 22  # values in all lists together; those of a large vocabulary are a million
MAX_KEY_BYTES = 1 << 16
MAX_TENSORS = 1 << 20
MAX_ELEMENTS = 1 << 40
WINDOW_BYTES = 1 << 20

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GGUFEntry:
    """One tensor: element type, shape with the slowest axis first (as NumPy and Hugging Face write it), place."""

    type: BlockType
    shape: tuple[int, ...]
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one step along the first axis."""
        return math.prod(self.shape[1:]) // self.type.elements * self.type.bytes


class _Cursor:
    """Walks over the header through a window, and never beyond the file or ``MAX_HEADER_BYTES``."""

    def __init__(self, file: BoundedFile) -> None:
        self._file = file
        self._window = b""
        self._start = 0  # of the window in the file
        self.position = 0
        self.listed = 0
        self._limit = min(file.size, MAX_HEADER_BYTES)

    def take(self, count: int, what: str) -> bytes:
        if count > self._limit - self.position:
            raise CheckpointError(
                f"{self._file.path} is truncated or damaged: {what} needs {count} bytes at byte {self.position} and "
                f"the header can end at {self._limit} at most; fetch it again."
            )
        inside = self.position - self._start
        if inside + count > len(self._window):
            self._start, inside = self.position, 0
            size = min(max(count, WINDOW_BYTES), self._limit - self.position)
            self._window = self._file.read(self.position, size, what)
        self.position += count
        return self._window[inside : inside + count]

    def number(self, code: str, what: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]

    def text(self, what: str, limit: int) -> str:
        length = self.number("Q", what)
        if length > limit:
            raise CheckpointError(
                f"{self._file.path} is damaged: {what} claims {length} bytes of text and {limit} are allowed; "
                "fetch it again."
            )
        try:
            return self.take(length, what).decode("utf-8")
        except UnicodeDecodeError:
            raise CheckpointError(f"{self._file.path} is damaged: {what} is not UTF-8 text; fetch it again.") from None


class GGUFFile:
    """One ``.gguf`` file, or the pieces of one: ``metadata`` (scalars, strings, lists) and ``entries`` by name.

    :raises CheckpointError: not GGUF of version 2 or 3, truncated, split, or a part that does not fit.
    """

    def __init__(self, path: Path, *more: Path) -> None:
        self.file = BoundedFile(path, *more)
        try:
            self.metadata, self.entries = self._read_header()
        except BaseException:
            self.file.close()
            raise

    def _fail(self, found: str) -> CheckpointError:
        return CheckpointError(f"{self.file.path} is not a sound GGUF file: {found}; fetch it again.")

    def _read_header(self) -> tuple[dict[str, Any], dict[str, GGUFEntry]]:
        cursor = _Cursor(self.file)
        magic = cursor.take(4, "the mark GGUF")
        if magic != b"GGUF":
            raise self._fail(f"it starts with {magic!r}")
        version = cursor.number("I", "the version")
        if version not in (2, 3):
            raise self._fail(f"its version is {version} and 2 and 3 are read")
        tensor_count = cursor.number("Q", "the number of tensors")
        key_count = cursor.number("Q", "the number of keys")
        # a tensor takes at least 24 bytes of header and a key 13: a larger count is a lie
        if tensor_count > min(MAX_TENSORS, self.file.size // 24) or key_count > min(MAX_TENSORS, self.file.size // 13):
            raise self._fail(f"it claims {tensor_count} tensors and {key_count} keys")
        metadata: dict[str, Any] = {}
        for _ in range(key_count):
            key = cursor.text("a key", MAX_KEY_BYTES)
            if key in metadata:
                raise self._fail(f"the key {key!r} occurs twice")
            metadata[key] = self._value(cursor, key, cursor.number("I", f"the type of {key!r}"))
        if metadata.get("split.count", 1) not in (0, 1):
            raise CheckpointError(f"{self.file.path} is one part of a split GGUF file; join the parts first.")
        rows = [self._tensor_row(cursor) for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 20 or alignment % 8:
            raise self._fail(f"general.alignment is {alignment!r}")
        data_start = -(-cursor.position // alignment) * alignment
        entries: dict[str, GGUFEntry] = {}
        for name, shape, kind, offset in rows:
            if name in entries:
                raise self._fail(f"the tensor {name!r} occurs twice")
            entries[name] = self._entry(name, shape, kind, offset, data_start)
        for name, following in itertools.pairwise(sorted(entries, key=lambda name: entries[name].offset)):
            entry = entries[name]
            if entry.offset + entry.shape[0] * entry.row_bytes > entries[following].offset:
                raise self._fail(f"the tensors {name!r} and {following!r} share bytes")
        return metadata, entries

    def _value(self, cursor: _Cursor, key: str, kind: int) -> Any:
        what = f"the key {key!r}"
        if kind in _SCALARS:
            return cursor.number(_SCALARS[kind], what)
        if kind == _STRING:
            return cursor.text(what, MAX_HEADER_BYTES)
        if kind != _ARRAY:
            raise self._fail(f"the key {key!r} has the unknown type {kind}")
        element = cursor.number("I", what)
        count = cursor.number("Q", what)
        cursor.listed += count
        if cursor.listed > MAX_LISTED:
            raise self._fail(f"the key {key!r} claims {count} elements and {MAX_LISTED} are allowed in all")
        if element == _STRING:
            return [cursor.text(what, MAX_HEADER_BYTES) for _ in range(count)]
        if element not in _SCALARS:
            raise self._fail(f"the key {key!r} is a list of the unknown type {element}")
        code = _SCALARS[element]
        data = cursor.take(count * struct.calcsize("<" + code), what)
        return list(struct.unpack(f"<{count}{code}", data))

    def _tensor_row(self, cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
        name = cursor.text("the name of a tensor", MAX_KEY_BYTES)
        what = f"the tensor {name!r}"
        dimensions = cursor.number("I", what)
        if not 1 <= dimensions <= 4:
            raise self._fail(f"{what} has {dimensions} dimensions")
        shape = struct.unpack(f"<{dimensions}Q", cursor.take(8 * dimensions, what))[::-1]
        return name, shape, cursor.number("I", what), cursor.number("Q", what)

    def _entry(self, name: str, shape: tuple[int, ...], kind: int, offset: int, data_start: int) -> GGUFEntry:
        if kind not in TYPES:
            known = ", ".join(block.name for block in TYPES.values())
            raise CheckpointError(
                f"tensor {name!r} in {self.file.path} has the type {OTHER_TYPES.get(kind, kind)}; want one of {known}: "
                "fetch another quantisation of the model."
            )
        block = TYPES[kind]
        if any(size < 1 for size in shape) or math.prod(shape) > MAX_ELEMENTS or shape[-1] % block.elements:
            raise self._fail(f"the tensor {name!r} of type {block.name} has the shape {list(shape)}")
        size = math.prod(shape) // block.elements * block.bytes
        if data_start + offset + size > self.file.size:
            raise CheckpointError(
                f"{self.file.path} is truncated: tensor {name!r} ends at byte {data_start + offset + size} and the "
                f"file has {self.file.size}; fetch it again."
            )
        return GGUFEntry(block, shape, data_start + offset)

    def read_blocks(self, name: str, start: int, stop: int) -> np.ndarray:
        """The stored blocks of rows ``start`` to ``stop``, uint8 [blocks, bytes per block]."""
        entry = self.entries[name]
        if len(entry.shape) == 1 and entry.type.elements > 1:
            raise CheckpointError(
                f"tensor {name!r} in {self.file.path} is a vector of type {entry.type.name}; want F32, F16 or BF16."
            )
        data = self.file.read(
            entry.offset + start * entry.row_bytes, (stop - start) * entry.row_bytes, f"tensor {name!r}"
        )
        return np.frombuffer(data, dtype=np.uint8).reshape(-1, entry.type.bytes)

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows ``start`` to ``stop`` along the first axis as float32, exactly what the file says."""
        entry = self.entries[name]
        values = entry.type.decode(self.read_blocks(name, start, stop))
        return values.reshape(stop - start, *entry.shape[1:])

    def close(self) -> None:
        """Close the file."""
        self.file.close()
