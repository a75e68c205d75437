"""Tensors in device memory."""

from __future__ import annotations

import math

import numpy as np

from ...errors import MisuseError
from ..base import DataType, Tensor
from .device import Device


class CUDAMemory:
    """A block of device memory that is freed when nothing refers to it any more."""

    __slots__ = ("address", "device", "size")

    def __init__(self, device: Device, size: int, *, zero: bool = True, kind: str = "other") -> None:
        self.device = device
        self.size = size
        self.address = device.allocate(size, zero=zero, kind=kind)

    def __del__(self) -> None:
        address = getattr(self, "address", 0)  # absent when the allocation failed
        if address:
            self.device.free(address)


class CUDATensor:
    """A ``Tensor`` over device memory; keeps that memory alive."""

    __slots__ = ("_dtype", "_memory", "_shape")

    def __init__(self, memory: CUDAMemory, shape: tuple[int, ...], dtype: DataType) -> None:
        self._memory = memory
        self._shape = shape
        self._dtype = dtype

    @classmethod
    def zeros(cls, device: Device, shape: tuple[int, ...], dtype: DataType) -> CUDATensor:
        """Over memory of its own. :raises BackendError: the GPU has not enough."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.numpy.itemsize
        return cls(CUDAMemory(device, size, kind="tensors"), tuple(shape), dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._shape

    @property
    def dtype(self) -> DataType:
        """Element type."""
        return self._dtype

    @property
    def address(self) -> int:
        """Where the first element lies on the device."""
        return self._memory.address

    @property
    def nbytes(self) -> int:
        """Bytes of the elements of ``shape``."""
        return math.prod(self._shape) * self._dtype.numpy.itemsize

    def prefix(self, shape: tuple[int, ...]) -> CUDATensor:
        """The first ``prod(shape)`` elements as a tensor of that shape: same memory, no copy.

        :raises ValueError: it holds fewer elements, or a dimension is negative.
        """
        shape = tuple(shape)
        if shape == self._shape:
            return self
        if math.prod(shape) > math.prod(self._shape) or min(shape, default=0) < 0:
            raise ValueError(f"a prefix of shape {shape} was asked of a tensor of shape {self.shape}; want one inside.")
        return CUDATensor(self._memory, shape, self._dtype)

    def write(self, values: np.ndarray) -> None:
        """Enqueue a copy of host ``values``; the array may be changed at once.

        :raises ValueError: another shape or element type.
        """
        if values.shape != self._shape or values.dtype != self._dtype.numpy:
            raise ValueError(
                f"a write of {values.dtype} {values.shape} was asked of a tensor {self._dtype.value} {self.shape}; "
                "want the same shape and element type."
            )
        self._memory.device.write(self.address, values)

    def numpy(self) -> np.ndarray:
        """Wait for the work that writes it, and copy it to the host."""
        values: np.ndarray = self._memory.device.read(self.address, self._shape, self._dtype.numpy).wait()
        return values


def cuda_tensor(tensor: Tensor, device: Device) -> CUDATensor:
    """The tensor itself, when it lies on this device.

    :raises MisuseError: it belongs to another backend.
    """
    if not isinstance(tensor, CUDATensor) or tensor._memory.device is not device:
        raise MisuseError(f"a {type(tensor).__name__} was given to a GPU backend; want a tensor that it allocated.")
    return tensor
