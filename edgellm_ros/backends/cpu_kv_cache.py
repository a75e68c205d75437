"""Keys and values in host memory, for each layer [rows, heads, capacity, head size], or in memory with time first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import BackendError, MisuseError
from .base import CacheLayout, DataType, Tensor
from .cache_room import check_room
from .host_tensor import aligned_zeros, host_array

CACHE_DTYPES = (DataType.FLOAT32, DataType.FLOAT16)


@dataclass(frozen=True)
class CacheBlock:
    """Some positions of one row in one piece: for every layer keys, then values, each [heads, count, head size]."""

    layout: CacheLayout
    count: int
    data: np.ndarray

    def arrays(self) -> list[np.ndarray]:
        """The keys and values as views."""
        start, views = 0, []
        for heads, size in self.layout.layers:
            for _ in ("key", "value"):
                end = start + heads * self.count * size
                views.append(self.data[start:end].reshape(heads, self.count, size))
                start = end
        return views


class CPUKVCache:
    """Caches of an engine. Pages that no position has reached take no memory.

    ``arrays`` are [rows, heads, capacity, head size] in any case; ``time_major`` ones are views of ``storage``
    [capacity, rows, heads, head size], whose first positions of all rows lie together.
    """

    def __init__(self, layout: CacheLayout, rows: int, capacity: int, *, time_major: bool = False) -> None:
        if layout.dtype not in CACHE_DTYPES:
            raise BackendError(
                f"a {layout.dtype.value} cache was asked; want one of {[dtype.value for dtype in CACHE_DTYPES]}."
            )
        self._layout = layout
        self._rows, self._capacity = rows, capacity
        try:
            self.storage = [
                aligned_zeros(
                    (capacity, rows, heads, size) if time_major else (rows, heads, capacity, size), layout.dtype.numpy
                )
                for heads, size in layout.layers
                for _ in ("key", "value")
            ]
        except (MemoryError, OSError):
            raise BackendError(
                f"no memory for a cache of {rows} rows with {capacity} positions; lower the batch or the capacity."
            ) from None
        self.time_major = time_major
        self.arrays = [array.transpose(1, 2, 0, 3) for array in self.storage] if time_major else self.storage

    @property
    def rows(self) -> int:
        """Sequences that fit."""
        return self._rows

    @property
    def capacity(self) -> int:
        """Positions of each sequence."""
        return self._capacity

    @property
    def dtype(self) -> DataType:
        """Element type of keys and values."""
        return self._layout.dtype

    @property
    def layout(self) -> CacheLayout:
        """What it was allocated for."""
        return self._layout

    @property
    def bytes_per_position(self) -> int:
        """Bytes of one position of one row over all layers."""
        return sum(2 * heads * size for heads, size in self._layout.layers) * self.dtype.numpy.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes reserved in all."""
        return self.bytes_per_position * self._rows * self._capacity

    def copy_row(self, source: int, destination: int, length: int) -> None:
        """Copy the first ``length`` positions of one row over another."""
        self._check(source, 0, length)
        self._check(destination, 0, length)
        if source == destination:
            return
        for array in self.arrays:
            array[destination, :, :length] = array[source, :, :length]

    def export_block(self, row: int, start: int, count: int) -> CacheBlock:
        """A copy of ``count`` positions of a row."""
        self._check(row, start, count)
        elements = count * self.bytes_per_position // self.dtype.numpy.itemsize
        block = CacheBlock(self._layout, count, np.empty(elements, self.dtype.numpy))
        for array, values in zip(self.arrays, block.arrays(), strict=True):
            values[...] = array[row, :, start : start + count]
        return block

    def import_block(self, row: int, start: int, block: Any) -> None:
        """Write a block of this cache or of one like it.

        :raises MisuseError: it is no such block, or does not fit.
        """
        if not isinstance(block, CacheBlock) or block.layout != self._layout:
            raise MisuseError(
                "a cache block of another backend or model was given; want one that a like cache exported."
            )
        self._check(row, start, block.count)
        for array, values in zip(self.arrays, block.arrays(), strict=True):
            array[row, :, start : start + block.count] = values

    def copy_out(self, row: int, length: int, tensors: Sequence[Tensor]) -> None:
        """See ``KVCache.copy_out``."""
        self._check(row, 0, length)
        check_room(self._layout, length, tensors)
        for index, (array, tensor) in enumerate(zip(self.arrays, tensors, strict=False)):
            place = host_array(tensor)[0]
            if index % 2 == 0:
                place = place.transpose(0, 2, 1)
            place[:, :length] = array[row, :, :length]
            place[:, length:] = 0

    def _check(self, row: int, start: int, count: int) -> None:
        if not (0 <= row < self._rows and start >= 0 and count >= 0 and start + count <= self._capacity):
            raise MisuseError(
                f"positions {start}..{start + count} of row {row} were asked of a cache with {self._rows} rows of "
                f"{self._capacity}; want some inside."
            )
