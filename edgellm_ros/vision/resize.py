"""Resizing as Pillow does it: separable kernels, widened when an image shrinks, 8-bit between the two passes.

The image processors of transformers stand on these kernels, in Pillow or in torchvision's copy of them. All weights
of a pair of lengths are computed once. A pass multiplies blocks of a few output rows at once with the input rows under
them: the blocks overlap little, so small matrix products beat a sum over taps by far. Pixels equal those of Pillow
up to 12 and of torchvision but for ties of rounding, which may fall one grey level to the other side. Pillow 13 takes
rows first where that is cheaper, which moves steep edges by many levels: models in use were not trained with that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np

from .opencv import opencv

ROWS_AT_ONCE = 8  # more rows share more loads, but their common window holds more zeros
STRIP = 2048  # columns that are worked on together, so that a window of rows stays in the second-level cache
FRACTION = float(1 << 22)  # Pillow keeps weights as whole numbers of this fraction, which decides ties of gradients
HALF_UP = {np.dtype(np.float32): 8e-6, np.dtype(np.float64): 1e-9}  # OpenCV alone rounds exact halves to even


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


@dataclass(frozen=True)
class _Block:
    """Output rows ``start .. start + len(weights)`` as products with input rows ``low .. high``."""

    start: int
    low: int
    high: int
    weights: np.ndarray  # [rows, high - low], float32 or float64


@lru_cache(maxsize=64)
def _blocks(length: int, new_length: int, kernel: Filter) -> tuple[_Block, ...]:
    function, support = _KERNELS[kernel]
    scale = length / new_length
    widening = max(scale, 1.0)
    reach = support * widening
    centres = (np.arange(new_length) + 0.5) * scale
    lows = np.maximum((centres - reach + 0.5).astype(np.int64), 0)
    highs = np.minimum((centres + reach + 0.5).astype(np.int64), length)
    # the weights of simpler kernels meet in ties so often that only exact sums fall to the right side
    number = np.float32 if kernel is Filter.LANCZOS else np.float64
    blocks = []
    for start in range(0, new_length, ROWS_AT_ONCE):
        part = slice(start, min(start + ROWS_AT_ONCE, new_length))
        low, high = int(lows[part][0]), int(highs[part][-1])
        taps = np.arange(low, high)
        weights = function((taps - centres[part, None] + 0.5) / widening)
        weights = weights * ((taps >= lows[part, None]) & (taps < highs[part, None]))
        weights /= weights.sum(axis=1, keepdims=True)
        weights = np.trunc(weights * FRACTION + np.copysign(0.5, weights)) / FRACTION
        blocks.append(_Block(start, low, high, np.ascontiguousarray(weights, number)))
    return tuple(blocks)


def _resize_rows(image: np.ndarray, new_length: int, kernel: Filter, cv2: Any) -> np.ndarray:
    """uint8 [rows, columns] to uint8 [new_length, columns]."""
    blocks = _blocks(image.shape[0], new_length, kernel)
    number = blocks[0].weights.dtype
    half_up = HALF_UP[number]
    columns = image.shape[1]
    result = np.empty((new_length, columns), np.uint8)
    scratch = np.empty((ROWS_AT_ONCE, min(STRIP, columns)), number)
    for first in range(0, columns, STRIP):
        source = image[:, first : first + STRIP].astype(number)
        target = result[:, first : first + STRIP]
        for block in blocks:
            product = scratch[: len(block.weights), : source.shape[1]]
            np.matmul(block.weights, source[block.low : block.high], out=product)
            rows = target[block.start : block.start + len(block.weights)]
            cv2.add(product, half_up, dst=rows, dtype=cv2.CV_8U)
    return result


def resize(image: np.ndarray, height: int, width: int, kernel: Filter) -> np.ndarray:
    """uint8 [H,W,3] to uint8 [height,width,3]; C-contiguous. Columns first, then rows, as Pillow does."""
    cv2 = opencv()
    if image.shape[1] != width:
        turned = np.ascontiguousarray(cv2.transpose(image))
        turned = _resize_rows(turned.reshape(image.shape[1], -1), width, kernel, cv2)
        image = cv2.transpose(turned.reshape(width, image.shape[0], 3))
    if image.shape[0] != height:
        image = _resize_rows(image.reshape(image.shape[0], -1), height, kernel, cv2).reshape(height, width, 3)
    return np.ascontiguousarray(image)
