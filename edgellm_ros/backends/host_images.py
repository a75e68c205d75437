"""Images of bytes on the CPU, in plain NumPy: what a GPU's kernels must agree with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .host_tensor import host_array
from .image_kernels import FRACTION_BITS, Blend, Order, Spot, check_letterbox, check_rearrange, check_resample


class HostImages:
    """See ``ImageKernels``; a processor's own code is faster on a CPU."""

    preferred = False

    def resample(self, source: Any, first: Any, weights: Any, out: Any) -> None:
        """See ``ImageKernels``."""
        tensors = (source, first, weights, out)
        check_resample(tensors)
        resample(*(host_array(tensor) for tensor in tensors))

    def rearrange(self, source: Any, out: Any, order: Order) -> None:
        """See ``ImageKernels``."""
        given, place = host_array(source), host_array(out)
        check_rearrange((given.size, source.dtype), (place.size, out.dtype), order)
        flat, result = given.reshape(-1)[order.source_start :], place.reshape(-1)[order.out_start :]
        rearrange(flat, result, order.sizes, order.strides)

    def letterbox(self, source: Any, lines: Blend, columns: Blend, out: Any, spot: Spot) -> None:
        """See ``ImageKernels``."""
        check_letterbox(source, lines, columns, out, spot)
        tables = [host_array(table) for table in (*lines, *columns)]
        letterbox(host_array(source), tables, host_array(out)[spot.picture], spot.top, spot.left)


def resample(source: np.ndarray, first: np.ndarray, weights: np.ndarray, out: np.ndarray) -> None:
    """See ``ImageKernels.resample``."""
    length = source.shape[1]
    sums = np.full(out.shape, 1 << (FRACTION_BITS - 1), np.int32)
    for tap in range(weights.shape[1]):
        taken = source[:, np.minimum(first + tap, length - 1)]
        sums += weights[:, tap, None] * taken.astype(np.int32)
    out[...] = np.clip(sums >> FRACTION_BITS, 0, 255)


def rearrange(source: np.ndarray, out: np.ndarray, sizes: Sequence[int], strides: Sequence[int]) -> None:
    """See ``ImageKernels.rearrange``; both flat, from their starts on."""
    view = np.lib.stride_tricks.as_strided(source, tuple(sizes), tuple(strides))  # a stride of bytes is one of elements
    out[: view.size].reshape(tuple(sizes))[...] = view


def letterbox(source: np.ndarray, tables: Sequence[np.ndarray], out: np.ndarray, top: int, left: int) -> None:
    """See ``ImageKernels.letterbox``; tables of lines, then of columns, and ``out`` [3,height,width]."""
    first_line, line_shares, first_column, column_shares = tables
    levels = source.astype(np.float32)
    wide = _blended(levels, first_column, column_shares[:, None], 1)
    blended = _blended(wide, first_line, line_shares[:, None, None], 0)
    out[...] = -1.0
    down, across = blended.shape[:2]
    part = out[:, top : top + down, left : left + across]
    np.multiply(blended.transpose(2, 0, 1), np.float32(2 / 255), out=part)
    part -= 1


def _blended(values: np.ndarray, first: np.ndarray, shares: np.ndarray, axis: int) -> np.ndarray:
    after = np.minimum(first + 1, values.shape[axis] - 1)
    result: np.ndarray = values.take(first, axis) * (1 - shares) + values.take(after, axis) * shares
    return result
