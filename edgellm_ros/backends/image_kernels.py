"""What a device does to images of bytes: one pass of a resize, and values in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from .values import DataType

FRACTION_BITS = 22  # of the weights of a resize
MOST_AXES = 8


class Order(NamedTuple):
    """Elements in order of an array of ``sizes``, at most 8 axes, at ``strides`` of the source, from starts on."""

    sizes: Sequence[int]
    strides: Sequence[int]
    source_start: int = 0
    out_start: int = 0


class Blend(NamedTuple):
    """One axis of a bilinear resize: output i lies ``shares[i]`` of the way from input ``first[i]`` to the next one.

    Tensors int32 [n] and float32 [n]; what comes after the last input is the last one.
    """

    first: Any
    shares: Any


class Spot(NamedTuple):
    """Where a picture goes: its number among them, and its top left corner there, in pixels."""

    picture: int
    top: int
    left: int


class ImageKernels(Protocol):
    """Kernels over tensors of one backend."""

    @property
    def preferred(self) -> bool:
        """Whether raw frames are best brought over and prepared there."""
        ...

    def resample(self, source: Any, first: Any, weights: Any, out: Any) -> None:
        """out[o,i,k] = sum of weights[i,t] * source[o,first[i]+t,k] over t, as levels of 0 to 255.

        source uint8 [O,length,K], out uint8 [O,n,K], first int32 [n], weights int32 [n,taps], multiples of 2**-22;
        halves are rounded up. A place beyond the length counts as the last one.

        :raises ValueError: shapes or types that do not fit.
        """
        ...

    def rearrange(self, source: Any, out: Any, order: Order) -> None:
        """Elements of the source in another order, one behind the other; source uint8, out uint8 or float32.

        :raises ValueError: types that do not fit, or places outside either.
        """
        ...

    def letterbox(self, source: Any, lines: Blend, columns: Blend, out: Any, spot: Spot) -> None:
        """Blend a picture in 32-bit numbers, columns first, onto a black ground: all of ``out[spot.picture]``.

        source uint8 [H,W,3], out float32 [N,3,height,width]; a level v is written as v * 2/255 - 1, so black is -1.
        ``first`` of both blends lies inside the source; this is not checked.

        :raises ValueError: shapes or types that do not fit, or a spot where the blended picture is not inside.
        """
        ...


def check_resample(tensors: Sequence[Any]) -> None:
    """:raises ValueError: shapes or types of the tensors of ``ImageKernels.resample`` that do not fit."""
    source, first, weights, out = (tuple(tensor.shape) for tensor in tensors)
    fits = len(source) == len(out) == 3 and (source[0], source[2]) == (out[0], out[2])
    fits = fits and first == out[1:2] and len(weights) == 2 and weights[:1] == first
    types = [DataType.UINT8, DataType.INT32, DataType.INT32, DataType.UINT8]
    if not fits or [tensor.dtype for tensor in tensors] != types:
        raise ValueError(
            f"a resize of {source} to {out} by tables {first} and {weights} was asked; want uint8 [O,length,K] and "
            "[O,n,K], int32 [n] and [n,taps]."
        )


def check_rearrange(source: tuple[int, DataType], out: tuple[int, DataType], order: Order) -> int:
    """How many elements are written; ``source`` and ``out`` are counts and types.

    :raises ValueError: see ``ImageKernels.rearrange``.
    """
    sizes, strides, source_start, out_start = order
    count = int(np.prod(sizes, dtype=np.int64))
    last = source_start + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    fits = 0 < len(sizes) <= MOST_AXES and min(sizes) > 0 and min(strides) >= 0 and source_start >= 0 <= out_start
    fits = fits and last < source[0] and out_start + count <= out[0]
    if not fits or source[1] is not DataType.UINT8 or out[1] not in (DataType.UINT8, DataType.FLOAT32):
        raise ValueError(
            f"{order} of {source[0]} {source[1].value} was asked into {out[0]} {out[1].value}; want places inside "
            "both, uint8 into uint8 or float32, and at most 8 axes."
        )
    return count


def check_letterbox(source: Any, lines: Blend, columns: Blend, out: Any, spot: Spot) -> None:
    """:raises ValueError: see ``ImageKernels.letterbox``."""
    given, result = tuple(source.shape), tuple(out.shape)
    down, across = tuple(lines.first.shape), tuple(columns.first.shape)
    fits = len(given) == 3 and given[2] == 3 and 0 not in given and len(result) == 4 and result[1] == 3
    fits = fits and len(down) == len(across) == 1
    fits = fits and (tuple(lines.shares.shape), tuple(columns.shares.shape)) == (down, across)
    fits = fits and 0 <= spot.picture < result[0] and 0 <= spot.top <= result[2] - down[0]
    fits = fits and 0 <= spot.left <= result[3] - across[0]
    types = [tensor.dtype for tensor in (source, *lines, *columns, out)]
    number = DataType.FLOAT32
    if not fits or types != [DataType.UINT8, DataType.INT32, number, DataType.INT32, number, number]:
        raise ValueError(
            f"a picture of {given} was asked as {down} by {across} at {spot} of {result}; want uint8 [H,W,3], tables "
            "int32 and float32 [h] and [w], and a place for them inside float32 [N,3,height,width]."
        )
