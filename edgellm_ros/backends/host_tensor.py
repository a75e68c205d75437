"""Tensors in host memory, shared by the backends whose device is the CPU."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np

from ..errors import MisuseError
from .base import DataType, Tensor

ALIGNMENT = 64  # bytes; one cache line and one AVX-512 register
_MAPPED_FROM = 2**18  # bytes; from here on memory comes from the system page by page


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Zeroed, C-contiguous, 64-byte aligned memory whose untouched pages cost nothing."""
    size = math.prod(shape) * dtype.itemsize
    if size >= _MAPPED_FROM:
        # NumPy asks for huge pages from 4 MiB on; then the first position of each head of a cache would cost 2 MiB.
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return np.frombuffer(mapped, dtype=dtype).reshape(shape)
    block = np.zeros(size + ALIGNMENT, dtype=np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + size].view(dtype).reshape(shape)


class HostTensor:
    """A ``Tensor`` over a C-contiguous NumPy array; work has always finished, so ``numpy`` never waits."""

    __slots__ = ("__weakref__", "_dtype", "_owner", "array")

    def __init__(self, array: np.ndarray, dtype: DataType, owner: HostTensor | None = None) -> None:
        self.array = array
        self._dtype = dtype
        self._owner = owner  # keeps the tensor alive that this one is a view of

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self.array.shape

    @property
    def dtype(self) -> DataType:
        """Element type; bfloat16 lies in a uint16 array."""
        return self._dtype

    @property
    def address(self) -> int:
        """Where the first element lies."""
        return int(self.array.ctypes.data)

    def prefix(self, shape: tuple[int, ...]) -> HostTensor:
        """The first ``prod(shape)`` elements as a tensor of that shape: same memory, no copy.

        :raises ValueError: it holds fewer elements, or a dimension is negative.
        """
        shape = tuple(shape)
        if shape == self.array.shape:
            return self
        count = math.prod(shape)
        if count > self.array.size or min(shape, default=0) < 0:
            raise ValueError(f"a prefix of shape {shape} was asked of a tensor of shape {self.shape}; want one inside.")
        return HostTensor(self.array.reshape(-1)[:count].reshape(shape), self._dtype, self)

    def write(self, values: np.ndarray) -> None:
        """Copy ``values`` in.

        :raises ValueError: another shape or element type.
        """
        if values.shape != self.array.shape or values.dtype != self.array.dtype:
            raise ValueError(
                f"a write of {values.dtype} {values.shape} was asked of a tensor {self._dtype.value} {self.shape}; "
                "want the same shape and element type."
            )
        self.array[...] = values

    def numpy(self) -> np.ndarray:
        """A view of the memory itself."""
        return self.array


class HostReadback:
    """A ``Readback`` whose values were copied when it was made."""

    __slots__ = ("_values",)

    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def ready(self) -> bool:
        """Always."""
        return True

    def wait(self) -> np.ndarray:
        """The values; they belong to the caller."""
        return self._values


def host_tensor(tensor: Tensor) -> HostTensor:
    """The tensor itself, when it lies on this device.

    :raises MisuseError: it belongs to another backend.
    """
    if not isinstance(tensor, HostTensor):
        raise MisuseError(f"a {type(tensor).__name__} was given to a CPU backend; want a tensor that it allocated.")
    return tensor


def host_array(tensor: Tensor) -> np.ndarray:
    """The memory of a tensor of this device.

    :raises MisuseError: it belongs to another backend.
    """
    return host_tensor(tensor).array
