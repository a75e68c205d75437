"""Keys and values in device memory, in one of two layouts.

``HEADS_FIRST`` [rows, heads, capacity, size]: what ONNX Runtime and the ``tensorrt`` lowering read and write in place.
``TIME_FIRST`` [rows, capacity, heads, size]: for the ``tensorrt_legacy`` lowering, whose engine reads the first
positions of a row as a tensor of their own and gives the new rows back, which ``scatter`` puts into the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from ...errors import BackendError, MisuseError
from ..base import CacheLayout, DataType, Tensor
from ..cache_room import check_room
from .device import Device
from .kernels import Kernels
from .tensor import CUDAMemory, cuda_tensor

CACHE_DTYPES = (DataType.FLOAT32, DataType.FLOAT16, DataType.BFLOAT16)
SEGMENT = np.dtype(
    [
        ("source", "u8"), ("destination", "u8"), ("source_stride", "u8"), ("destination_stride", "u8"),
        ("bytes", "u8"), ("segments", "u8"),
    ]
)  # fmt: skip
_LAYING_OUT = np.dtype(
    [
        ("source", "u8"), ("destination", "u8"), ("head_stride", "u8"), ("position_stride", "u8"),
        ("heads", "u4"), ("size", "u4"), ("turned", "u4"), ("unused", "u4"),
    ]
)  # fmt: skip
_THREADS = 128
_TILE, _TILE_THREADS = 32, 256  # positions and elements of a head that a block moves at a time
_MOST_BLOCKS = 256  # that share the tiles of one array


class CacheOrder(Enum):
    """Which axis of a row comes first."""

    HEADS_FIRST = "heads_first"
    TIME_FIRST = "time_first"


@dataclass(frozen=True)
class CUDACacheBlock:
    """Some positions of one row, packed in the order of their cache, all arrays one behind the other."""

    layout: CacheLayout
    order: CacheOrder
    count: int
    memory: CUDAMemory


class CUDAKVCache:
    """Caches that an engine reads in place.

    :raises BackendError: an element type that this backend has not, or not enough memory.
    """

    def __init__(
        self, device: Device, kernels: Kernels, layout: CacheLayout, rows: int, capacity: int, order: CacheOrder
    ) -> None:
        if layout.dtype not in CACHE_DTYPES:
            raise BackendError(
                f"a {layout.dtype.value} cache was asked; want one of {[dtype.value for dtype in CACHE_DTYPES]}."
            )
        self._device, self._kernels = device, kernels
        self.layout, self.order = layout, order
        self._rows, self._capacity = rows, capacity
        size = layout.dtype.numpy.itemsize
        #: (heads, bytes of one head's position) of every array: keys of layer i at 2i, values at 2i + 1
        self._arrays = [(heads, head_dim * size) for heads, head_dim in layout.layers for _ in ("key", "value")]
        self._memory = [
            CUDAMemory(device, rows * capacity * heads * width, kind="caches") for heads, width in self._arrays
        ]
        # Tables of copies are small; one of the largest kind is kept for all of them.
        self._table = CUDAMemory(device, max(1, len(self._arrays)) * SEGMENT.itemsize)

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
        return self.layout.dtype

    @property
    def bytes_per_position(self) -> int:
        """Bytes of one position of one row over all layers."""
        return sum(heads * width for heads, width in self._arrays)

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.bytes_per_position * self._rows * self._capacity

    def address(self, array: int, row: int) -> int:
        """Where ``row`` of an array begins."""
        heads, width = self._arrays[array]
        return self._memory[array].address + row * self._capacity * heads * width

    def shape(self, array: int, batch: int, length: int) -> tuple[int, int, int, int]:
        """Shape of an array as an engine sees ``batch`` rows of ``length`` positions."""
        heads, width = self._arrays[array]
        size = width // self.dtype.numpy.itemsize
        if self.order is CacheOrder.TIME_FIRST:
            return batch, length, heads, size
        return batch, heads, length, size

    # moving positions about

    def copy_row(self, source: int, destination: int, length: int) -> None:
        """Copy the first ``length`` positions of one row over another."""
        self._check(source, 0, length)
        self._check(destination, 0, length)
        if source == destination or length == 0:
            return
        table = self._segments(length)
        for array in range(len(self._arrays)):
            table["source"][array] = self.address(array, source)
            table["destination"][array] = self.address(array, destination)
        table["source_stride"] = table["destination_stride"] = self._strides()
        self._copy(table)

    def export_block(self, row: int, start: int, count: int) -> CUDACacheBlock:
        """A copy of ``count`` positions of a row, on the device."""
        self._check(row, start, count)
        memory = CUDAMemory(self._device, self.bytes_per_position * count, zero=False, kind="blocks")
        block = CUDACacheBlock(self.layout, self.order, count, memory)
        self._exchange(block, row, start, into_cache=False)
        return block

    def import_block(self, row: int, start: int, block: Any) -> None:
        """Write a block of this cache or of one like it.

        :raises MisuseError: it is no such block, or does not fit.
        """
        if (
            not isinstance(block, CUDACacheBlock)
            or (block.layout, block.order) != (self.layout, self.order)
            or block.memory.device is not self._device
        ):
            raise MisuseError(
                "a cache block of another backend or model was given; want one that a like cache exported."
            )
        self._check(row, start, block.count)
        self._exchange(block, row, start, into_cache=True)

    def _exchange(self, block: CUDACacheBlock, row: int, start: int, *, into_cache: bool) -> None:
        if block.count == 0:
            return
        table = self._segments(block.count)
        packed, place = ("source", "destination") if into_cache else ("destination", "source")
        offset = 0
        for array, (heads, width) in enumerate(self._arrays):
            step = width if self.order is CacheOrder.HEADS_FIRST else heads * width
            table[place][array] = self.address(array, row) + start * step
            table[packed][array] = block.memory.address + offset
            offset += block.count * heads * width
        table[f"{place}_stride"] = self._strides()
        table[f"{packed}_stride"] = table["bytes"]
        self._copy(table)

    def copy_out(self, row: int, length: int, tensors: Sequence[Tensor]) -> None:
        """See ``KVCache.copy_out``; nothing leaves the device."""
        self._check(row, 0, length)
        room = check_room(self.layout, length, tensors)
        table = np.zeros(len(tensors), dtype=_LAYING_OUT)
        item = self.dtype.numpy.itemsize
        for array, ((heads, width), tensor) in enumerate(zip(self._arrays, tensors, strict=False)):
            size, first = width // item, self.order is CacheOrder.HEADS_FIRST
            steps = (self._capacity * size, size) if first else (size, heads * size)
            place = cuda_tensor(tensor, self._device).address
            table[array] = (self.address(array, row), place, *steps, heads, size, array % 2 == 0, 0)
        if table.size and room:
            self._device.write(self._table.address, table)
            tiles = max(heads * -(-width // item // _TILE) for heads, width in self._arrays) * -(-room // _TILE)
            kernel = self._kernels[f"lay_out_{8 * item}"]
            kernel.launch((min(tiles, _MOST_BLOCKS), table.size, 1), _TILE_THREADS, self._table.address, length, room)

    def _segments(self, count: int) -> np.ndarray:
        """A table whose pieces hold ``count`` positions: one a head, or one for all heads."""
        table = np.zeros(len(self._arrays), dtype=SEGMENT)
        for array, (heads, width) in enumerate(self._arrays):
            first = self.order is CacheOrder.HEADS_FIRST
            table["segments"][array] = heads if first else 1
            table["bytes"][array] = count * (width if first else heads * width)
        return table

    def _strides(self) -> np.ndarray:
        """Bytes from one piece of a row to the next; with one piece it does not matter."""
        return np.array([self._capacity * width for _, width in self._arrays], dtype=np.uint64)

    def _copy(self, table: np.ndarray) -> None:
        if table.size:
            self._device.write(self._table.address, table)
            pieces = min(64, int(table["segments"].max()))
            self._kernels["copy_segments"].launch((pieces, table.size, 1), _THREADS, self._table.address)

    def _check(self, row: int, start: int, count: int) -> None:
        if not (0 <= row < self._rows and start >= 0 and count >= 0 and start + count <= self._capacity):
            raise MisuseError(
                f"positions {start}..{start + count} of row {row} were asked of a cache with {self._rows} rows of "
                f"{self._capacity}; want some inside."
            )
