"""Which input pixels make an output pixel, and how much of each: the tables of Pillow's resize.

Pillow keeps weights as whole numbers of 2**-22, which decides ties of gradients; so do these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np

FRACTION_BITS = 22


class Filter(int, Enum):
    """Resampling kernels by Pillow's numbers, as ``resample`` of a preprocessor_config.json names them."""

    LANCZOS = 1
    BILINEAR = 2
    BICUBIC = 3
    BOX = 4
    HAMMING = 5


def _lanczos(x: np.ndarray) -> np.ndarray:
    values: np.ndarray = np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)
    return values


def _bilinear(x: np.ndarray) -> np.ndarray:
    values: np.ndarray = np.maximum(1 - np.abs(x), 0.0)
    return values


def _bicubic(x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _box(x: np.ndarray) -> np.ndarray:
    return ((x > -0.5) & (x <= 0.5)).astype(np.float64)


def _hamming(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 1, np.sinc(x) * (0.54 + 0.46 * np.cos(np.pi * x)), 0.0)


_KERNELS: dict[Filter, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    Filter.LANCZOS: (_lanczos, 3.0),
    Filter.BILINEAR: (_bilinear, 1.0),
    Filter.BICUBIC: (_bicubic, 2.0),
    Filter.BOX: (_box, 0.5),
    Filter.HAMMING: (_hamming, 1.0),
}


@dataclass(frozen=True, eq=False)
class Taps:
    """Output pixel i is made of input pixels ``lows[i] .. highs[i]``.

    ``weights`` float64 [n,taps], whole numbers of 2**-22, from ``lows[i]`` on, zero where there are fewer.
    ``scale``: input pixels for an output pixel; ``reach``: of the kernel to either side, in input pixels.
    """

    lows: np.ndarray
    highs: np.ndarray
    weights: np.ndarray
    scale: float
    reach: float

    def whole(self) -> tuple[np.ndarray, np.ndarray]:
        """First input pixels int32 [n] and weights int32 [n,taps] as multiples of 2**-22."""
        return self.lows.astype(np.int32), np.rint(self.weights * (1 << FRACTION_BITS)).astype(np.int32)

    def dense(self, rows: slice, low: int, high: int) -> np.ndarray:
        """The weights of output pixels ``rows`` for input pixels ``low .. high``, float64 [rows, high - low]."""
        lows, highs = self.lows[rows], self.highs[rows]
        result = np.zeros((len(lows), high - low))
        for row, (first, last) in enumerate(zip(lows.tolist(), highs.tolist(), strict=True)):
            result[row, first - low : last - low] = self.weights[rows.start + row, : last - first]
        return result


@lru_cache(maxsize=64)
def taps(length: int, new_length: int, kernel: Filter) -> Taps:
    """The table for a pair of lengths."""
    function, support = _KERNELS[kernel]
    scale = length / new_length
    widening = max(scale, 1.0)
    reach = support * widening
    centres = (np.arange(new_length) + 0.5) * scale
    lows = np.maximum((centres - reach + 0.5).astype(np.int64), 0)
    highs = np.minimum((centres + reach + 0.5).astype(np.int64), length)
    offsets = np.arange(int((highs - lows).max()))
    places = lows[:, None] + offsets
    values = function((places - centres[:, None] + 0.5) / widening) * (places < highs[:, None])
    values /= values.sum(axis=1, keepdims=True)
    unit = float(1 << FRACTION_BITS)
    values = np.trunc(values * unit + np.copysign(0.5, values)) / unit
    return Taps(lows, highs, values, scale, reach)


@lru_cache(maxsize=64)
def neighbours(length: int, new_length: int) -> tuple[np.ndarray, np.ndarray]:
    """The two input pixels of each output pixel in OpenCV's bilinear resize, which does not widen where it shrinks.

    The first of them int32 [n], and float32 [n] how far it is from there to the next one. OpenCV with Intel's IPP finds
    places in 64 bits, as here; without it in 32 bits, which moves a share by up to 1e-4.
    """
    places = (np.arange(new_length) + 0.5) * (length / new_length) - 0.5
    first = np.floor(places)
    shares = np.where((first < 0) | (first >= length - 1), 0.0, places - first)
    return np.clip(first, 0, length - 1).astype(np.int32), shares.astype(np.float32)
