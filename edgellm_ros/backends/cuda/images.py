"""Images of bytes on the GPU: see ``ImageKernels``."""

from __future__ import annotations

import struct
from typing import Any

from ..base import DataType
from ..image_kernels import MOST_AXES, Blend, Order, Spot, check_letterbox, check_rearrange, check_resample
from .device import Device
from .kernels import Kernels
from .tensor import cuda_tensor

_THREADS = 256


class CUDAImages:
    """Enqueues on the device's stream."""

    preferred = True

    def __init__(self, device: Device, kernels: Kernels) -> None:
        self._device, self._kernels = device, kernels

    def resample(self, source: Any, first: Any, weights: Any, out: Any) -> None:
        """See ``ImageKernels``."""
        given, starts, factors, result = (cuda_tensor(tensor, self._device) for tensor in (source, first, weights, out))
        check_resample((given, starts, factors, result))
        _, length, inner = given.shape
        self._kernels["resample"].launch(
            (-(-result.nbytes // _THREADS), 1, 1), _THREADS, given.address, starts.address, factors.address,
            result.address, length, result.shape[1], inner, factors.shape[1], result.nbytes,
        )  # fmt: skip

    def rearrange(self, source: Any, out: Any, order: Order) -> None:
        """See ``ImageKernels``."""
        given, result = cuda_tensor(source, self._device), cuda_tensor(out, self._device)
        size = result.dtype.numpy.itemsize
        count = check_rearrange((given.nbytes, given.dtype), (result.nbytes // size, result.dtype), order)
        unused = MOST_AXES - len(order.sizes)
        packed = struct.pack("=16i", *[1] * unused, *order.sizes, *[0] * unused, *order.strides)
        name = "rearrange_bytes" if result.dtype is DataType.UINT8 else "rearrange_numbers"
        self._kernels[name].launch(
            (-(-count // _THREADS), 1, 1), _THREADS, given.address + order.source_start,
            result.address + size * order.out_start, packed, count,
        )  # fmt: skip

    def letterbox(self, source: Any, lines: Blend, columns: Blend, out: Any, spot: Spot) -> None:
        """See ``ImageKernels``."""
        given, result = cuda_tensor(source, self._device), cuda_tensor(out, self._device)
        tables = [cuda_tensor(tensor, self._device) for tensor in (*lines, *columns)]
        check_letterbox(given, Blend(*tables[:2]), Blend(*tables[2:]), result, spot)
        height, width = result.shape[2:]
        picture = result.address + spot.picture * 3 * height * width * result.dtype.numpy.itemsize
        self._kernels["letterbox"].launch(
            (-(-height * width // _THREADS), 1, 1), _THREADS, given.address, *(table.address for table in tables),
            picture, *given.shape[:2], spot.top, spot.left, tables[0].shape[0], tables[2].shape[0], height, width,
        )  # fmt: skip
