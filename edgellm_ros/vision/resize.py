"""Resizing as Pillow does it: separable kernels, widened when an image shrinks, 8-bit between the two passes.

The image processors of transformers stand on these kernels, in Pillow or in torchvision's copy of them. All weights
of a pair of lengths are computed once. A pass multiplies blocks of a few output rows at once with the input rows under
them: the blocks overlap little, so small matrix products beat a sum over taps by far. Pixels equal those of Pillow
up to 12 and of torchvision but for ties of rounding, which may fall one grey level to the other side. Pillow 13 takes
rows first where that is cheaper, which moves steep edges by many levels: models in use were not trained with that.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .opencv import opencv
from .resize_taps import Filter as Filter  # part of this module for its callers
from .resize_taps import taps

ROWS_AT_ONCE = 4  # of a product; more rows share more loads, but their common window holds more zeros
PRODUCTS_AT_ONCE = 12  # whose input is converted, and whose results are rounded, in one call each
WINDOW = 112  # input rows of them at most, where a single one does not take more: again so that the cache holds them
TURNED_AT_ONCE = 32  # rows of an image that is transposed
STRIP = 4096  # columns that are worked on together, so that a window of rows stays in the second-level cache
HALF_UP = {np.dtype(np.float32): 8e-6, np.dtype(np.float64): 1e-9}  # OpenCV alone rounds exact halves to even


@dataclass(frozen=True)
class _Product:
    """Output rows ``start ..`` of a block as products with its input rows ``low .. high``, both from its first on."""

    start: int
    low: int
    high: int
    weights: np.ndarray  # [rows, high - low], float32 or float64


@dataclass(frozen=True)
class _Block:
    """Output rows ``start .. stop`` and the input rows ``low .. high`` under them."""

    start: int
    stop: int
    low: int
    high: int
    products: tuple[_Product, ...]


@lru_cache(maxsize=64)
def _blocks(length: int, new_length: int, kernel: Filter) -> tuple[_Block, ...]:
    table = taps(length, new_length, kernel)
    lows, highs = table.lows, table.highs
    # the weights of simpler kernels meet in ties so often that only exact sums fall to the right side
    number = np.float32 if kernel is Filter.LANCZOS else np.float64
    at_once = ROWS_AT_ONCE * max(1, min(PRODUCTS_AT_ONCE, int((WINDOW - 2 * table.reach) / table.scale / ROWS_AT_ONCE)))
    blocks = []
    for start in range(0, new_length, at_once):
        stop = min(start + at_once, new_length)
        first = int(lows[start])
        products = []
        for row in range(start, stop, ROWS_AT_ONCE):
            rows = slice(row, min(row + ROWS_AT_ONCE, stop))
            low, high = int(lows[rows][0]), int(highs[rows][-1])
            weights = np.ascontiguousarray(table.dense(rows, low, high), number)
            products.append(_Product(row - start, low - first, high - first, weights))
        blocks.append(_Block(start, stop, first, int(highs[stop - 1]), tuple(products)))
    return tuple(blocks)


class _Buffers(threading.local):
    """Memory of one thread that is used again and again: fresh pages cost more than what is written into them."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, np.dtype[Any]], np.ndarray] = {}

    def take(self, name: str, shape: tuple[int, ...], number: np.dtype[Any]) -> np.ndarray:
        """An array of this name, whose content is whatever was left there."""
        size = math.prod(shape)
        held = self._arrays.get((name, number))
        if held is None or held.size < size:
            held = self._arrays[name, number] = np.empty(size, number)
        return held[:size].reshape(shape)


_buffers = _Buffers()
_LEVELS = np.dtype(np.uint8)


def _resize_rows(image: np.ndarray, result: np.ndarray, kernel: Filter, cv2: Any) -> None:
    """uint8 [rows, columns] into uint8 [new rows, columns]."""
    blocks = _blocks(image.shape[0], result.shape[0], kernel)
    columns = image.shape[1]
    number = blocks[0].products[0].weights.dtype
    half_up = HALF_UP[number]
    window = max(block.high - block.low for block in blocks)
    for first in range(0, columns, STRIP):
        width = min(STRIP, columns - first)
        values = _buffers.take("window", (window, width), number)
        sums = _buffers.take("sums", (ROWS_AT_ONCE * PRODUCTS_AT_ONCE, width), number)
        source, target = image[:, first : first + width], result[:, first : first + width]
        for block in blocks:
            np.copyto(values[: block.high - block.low], source[block.low : block.high])
            for product in block.products:
                part = sums[product.start : product.start + len(product.weights)]
                np.matmul(product.weights, values[product.low : product.high], out=part)
            rows = target[block.start : block.stop]
            cv2.add(sums[: len(rows)], half_up, dst=rows, dtype=cv2.CV_8U)


def _turn(image: np.ndarray, result: np.ndarray, cv2: Any) -> None:
    """Transpose [H,W,3] into [W,H,3]; OpenCV alone leaves the cache with large images."""
    for start in range(0, len(image), TURNED_AT_ONCE):
        stop = start + TURNED_AT_ONCE
        cv2.transpose(image[start:stop], result[:, start:stop])


def resize(image: np.ndarray, height: int, width: int, kernel: Filter, *, borrowed: str = "") -> np.ndarray:
    """uint8 [H,W,3] to uint8 [height,width,3]; C-contiguous. Columns first, then rows, as Pillow does.

    The result is the image itself where nothing changes. With a name in ``borrowed`` it lies in memory that the next
    call with that name by the same thread uses again: for what is read at once and not kept.
    """
    cv2 = opencv()
    old_height, old_width = image.shape[:2]

    def result_of(shape: tuple[int, ...]) -> np.ndarray:
        return _buffers.take(borrowed, shape, _LEVELS) if borrowed else np.empty(shape, np.uint8)

    if old_width != width:
        turned = _buffers.take("turned", (old_width, old_height, 3), _LEVELS)
        _turn(image, turned, cv2)
        wide = _buffers.take("wide", (width, old_height, 3), _LEVELS)
        _resize_rows(turned.reshape(old_width, -1), wide.reshape(width, -1), kernel, cv2)
        shape = (old_height, width, 3)
        image = result_of(shape) if old_height == height else _buffers.take("upright", shape, _LEVELS)
        _turn(wide, image, cv2)
    if old_height != height:
        result = result_of((height, width, 3))
        _resize_rows(np.ascontiguousarray(image).reshape(old_height, -1), result.reshape(height, -1), kernel, cv2)
        image = result
    return np.ascontiguousarray(image)
