"""Safetensors files read tensor by tensor, with every size and offset checked before anything is allocated."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError
from ..json_values import MAX_OBJECT_BYTES, without_repeats
from .bounded_file import BoundedFile

MAX_HEADER_BYTES = MAX_OBJECT_BYTES
MAX_ELEMENTS = 1 << 40
MAX_DIMENSIONS = 8

# name in the header -> bytes per element; only the first three are read as weights
_SIZES = {
    "F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
READABLE = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class SafetensorsEntry:
    """One tensor of a file: element type as in the header, shape, and where its bytes begin in the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Bytes of its data."""
        return math.prod(self.shape) * _SIZES[self.dtype]


def to_float32(data: bytes, dtype: str) -> np.ndarray:
    """Little-endian F32, F16 or BF16 bytes as a flat float32 array; exact."""
    if dtype == "BF16":
        return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, dtype="<f4" if dtype == "F32" else "<f2").astype(np.float32)


class SafetensorsFile:
    """One ``.safetensors`` file.

    :raises CheckpointError: it is truncated, its header is not what the format says, or an entry does not fit.
    """

    def __init__(self, path: Path) -> None:
        self.file = BoundedFile(path)
        try:
            self.entries = self._read_header()
        except BaseException:
            self.file.close()
            raise

    def _fail(self, found: str) -> CheckpointError:
        return CheckpointError(f"{self.file.path} is not a sound safetensors file: {found}; fetch it again.")

    def _read_header(self) -> dict[str, SafetensorsEntry]:
        length = int.from_bytes(self.file.read(0, 8, "the length of the header"), "little")
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise self._fail(f"its header claims {length} bytes and 2 to {MAX_HEADER_BYTES} are allowed")
        text = self.file.read(8, length, "the header")
        try:
            header = json.loads(text.decode("utf-8"), object_pairs_hook=without_repeats)
        except (ValueError, RecursionError) as error:
            raise self._fail(f"its header is not valid JSON ({error})") from None
        if not isinstance(header, dict):
            raise self._fail("its header is not a JSON object")
        header.pop("__metadata__", None)
        data_start = 8 + length
        entries = {name: self._entry(name, row, data_start) for name, row in header.items()}
        ordered = sorted(entries, key=lambda name: (entries[name].offset, entries[name].size))
        for name, following in itertools.pairwise(ordered):
            if entries[name].offset + entries[name].size > entries[following].offset:
                raise self._fail(f"the tensors {name!r} and {following!r} share bytes")
        return entries

    def _entry(self, name: str, row: Any, data_start: int) -> SafetensorsEntry:
        try:
            dtype, shape, (begin, end) = row["dtype"], row["shape"], row["data_offsets"]
        except (TypeError, KeyError, ValueError):
            raise self._fail(f"tensor {name!r} lacks dtype, shape or data_offsets") from None
        if not isinstance(dtype, str) or dtype not in _SIZES:
            raise self._fail(f"tensor {name!r} has the unknown element type {dtype!r}")
        numbers = [*shape, begin, end] if isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS else [-1]
        if not all(type(number) is int and 0 <= number <= MAX_ELEMENTS for number in numbers):
            raise self._fail(f"tensor {name!r} has the shape {str(shape)[:80]} at {str((begin, end))[:80]}")
        wanted = math.prod(shape) * _SIZES[dtype]
        if end - begin != wanted:
            raise self._fail(f"tensor {name!r} of shape {shape} needs {wanted} bytes and has {end - begin}")
        if data_start + end > self.file.size:
            raise CheckpointError(
                f"{self.file.path} is truncated: tensor {name!r} ends at byte {data_start + end} and the file has "
                f"{self.file.size}; fetch it again."
            )
        return SafetensorsEntry(dtype, tuple(shape), data_start + begin)

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows ``start`` to ``stop`` along the first axis as float32.

        :raises CheckpointError: the element type is not one of float32, float16 and bfloat16.
        """
        entry = self.entries[name]
        if entry.dtype not in READABLE:
            raise CheckpointError(
                f"tensor {name!r} in {self.file.path} has the element type {entry.dtype}; want one of "
                f"{', '.join(READABLE)}: save the checkpoint unquantised."
            )
        row_shape = entry.shape[1:]
        row_bytes = math.prod(row_shape) * _SIZES[entry.dtype]
        data = self.file.read(entry.offset + start * row_bytes, (stop - start) * row_bytes, f"tensor {name!r}")
        return to_float32(data, entry.dtype).reshape(stop - start, *row_shape)

    def close(self) -> None:
        """Close the file."""
        self.file.close()
