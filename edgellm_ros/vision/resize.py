"""Resizing as Pillow does it: separable kernels, widened when an image shrinks, 8-bit between the two passes.

The image processors of transformers stand on these kernels, in Pillow or in torchvision's copy of them. All weights
of a pair of lengths are computed once. A picture lies in lines [H,3,W], each of three colours one after the other, so
that both passes are products of matrices in place: ``resize_runs.py`` says which. Pixels equal those of Pillow
up to 12 and of torchvision but for ties of rounding, which may fall one grey level to the other side: 25 of a million
values under Lanczos, and two levels for one of ten million, where neighbours fall together. Sums of 64 bits would be
exact and take 1.5 times as long. Pillow 13 takes rows first where that is cheaper, which moves steep edges by many
levels: models in use were not trained with that.
"""

from __future__ import annotations

import math
import threading
from functools import lru_cache
from typing import Any

import numpy as np

from .opencv import opencv
from .resize_runs import Run, runs
from .resize_taps import Filter as Filter  # part of this module for its callers

VALUES_AT_ONCE = 3 << 18  # of a strip of lines whose pixels are resized, input and output: the cache shall hold them
STRIP = 8192  # columns that are worked on together when lines are; narrower ones read memory in too small pieces
SPACE = 16  # numbers between rows: at a distance of a power of two they would take the same places of the cache
HALF_UP = {np.dtype(np.float32): 8e-6, np.dtype(np.float64): 1e-9}  # OpenCV alone rounds exact halves to even


@lru_cache(maxsize=128)
def _blocks(length: int, new_length: int, kernel: Filter, along: bool) -> tuple[Run, ...]:
    # the weights of simpler kernels meet in ties so often that only exact sums fall to the right side
    number = np.dtype(np.float32 if kernel is Filter.LANCZOS else np.float64)
    return runs(length, new_length, kernel, number, along=along)


class _Buffers(threading.local):
    """Memory of one thread that is used again and again: fresh pages cost more than what is written into them."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, np.dtype[Any]], np.ndarray] = {}

    def take(self, name: str, shape: tuple[int, ...], number: np.dtype[Any]) -> np.ndarray:
        """An array of this name, whose content is whatever finite numbers were left there."""
        size = math.prod(shape)
        held = self._arrays.get((name, number))
        if held is None or held.size < size:
            held = self._arrays[name, number] = np.zeros(size, number)
        return held[:size].reshape(shape)


_buffers = _Buffers()
_LEVELS = np.dtype(np.uint8)


def _resize_pixels(image: np.ndarray, result: np.ndarray, kernel: Filter, cv2: Any) -> None:
    """uint8 [H,3,W] into uint8 [H,3,new W]."""
    (lines, colours, length), new_length = image.shape, result.shape[2]
    blocks = _blocks(length, new_length, kernel, True)
    number = blocks[0].weights.dtype
    before = max(-min(block.start for block in blocks), 0)
    width = before + max(length, *(block.stop for block in blocks)) + SPACE
    made = sum(block.made for block in blocks) + SPACE
    at_once = max(1, min(lines, VALUES_AT_ONCE // (width + made) // colours))
    values = _buffers.take("values", (at_once * colours, width), number)
    sums = _buffers.take("sums", (at_once * colours, made), number)
    values[:, :before] = 0
    values[:, before + length :] = 0
    inside = values.reshape(at_once, colours, width)[:, :, before : before + length]
    rows = result.reshape(-1, new_length)
    stacks = [
        (
            _every(values, before + block.start, block.step, (block.products, len(values), block.window)),
            block.weights,
            _every(sums, block.first, block.together, (block.products, len(sums), block.together)),
        )
        for block in blocks
    ]
    for start in range(0, lines, at_once):
        stop = min(start + at_once, lines)
        count = colours * (stop - start)
        if image.flags.c_contiguous:
            _convert(image[start:stop].reshape(count, length), values[:count, before : before + length], cv2)
        else:
            np.copyto(inside[: stop - start], image[start:stop])
        for windows, weights, into in stacks:
            np.matmul(windows[:, :count], weights, out=into[:, :count])
        _round(sums[:count, :new_length], rows[colours * start : colours * stop], cv2)


def _every(array: np.ndarray, start: int, step: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Views [count,rows,columns] of a contiguous array [rows,columns] from number ``start`` on, ``step`` apart."""
    line, item = array.strides
    return np.ndarray(shape, array.dtype, array, start * item, (step * item, line, item))  # as_strided takes far longer


def _resize_lines(image: np.ndarray, result: np.ndarray, kernel: Filter, cv2: Any) -> None:
    """uint8 [lines, columns] into uint8 [new lines, columns]."""
    (length, columns), new_length = image.shape, len(result)
    blocks = _blocks(length, new_length, kernel, False)
    number = blocks[0].weights.dtype
    most = max(block.stop - block.start for block in blocks)
    made = max(block.made for block in blocks)
    for first in range(0, columns, STRIP):
        width = min(STRIP, columns - first)
        values = _buffers.take("values", (most, width + SPACE), number)
        sums = _buffers.take("sums", (made, width + SPACE), number)
        line = width + SPACE
        source, target = image[:, first : first + width], result[:, first : first + width]
        for block in blocks:
            low, high = max(block.start, 0), min(block.stop, length)
            values[: low - block.start] = 0
            values[high - block.start : block.stop - block.start] = 0
            _convert(source[low:high], values[low - block.start : high - block.start, :width], cv2)
            windows = _every(values, 0, block.step * line, (block.products, block.window, width))
            into = _every(sums, 0, block.together * line, (block.products, block.together, width))
            np.matmul(block.weights, windows, out=into)
            rows = target[block.first : block.first + block.made]
            _round(sums[: len(rows), :width], rows, cv2)


def _convert(levels: np.ndarray, values: np.ndarray, cv2: Any) -> None:
    """Levels uint8 into numbers, where finite ones stand: their share is nothing, and NumPy's copy takes longer."""
    cv2.accumulateWeighted(levels, values, 1.0)


def _round(sums: np.ndarray, result: np.ndarray, cv2: Any) -> None:
    """Into uint8, halves up; what is below 0 or above 255 becomes that. ``sums`` are lost."""
    half_up = HALF_UP[sums.dtype]
    if sums.dtype == np.float64:
        cv2.add(sums, half_up, dst=result, dtype=cv2.CV_8U)
        return
    cv2.threshold(sums, 0, 0, cv2.THRESH_TOZERO, dst=sums)  # with the next in half the time of the one above
    cv2.convertScaleAbs(sums, dst=result, alpha=1, beta=half_up)


def _place(borrowed: str, shape: tuple[int, ...]) -> np.ndarray:
    return _buffers.take(borrowed, shape, _LEVELS) if borrowed else np.empty(shape, np.uint8)


def lines_of(image: np.ndarray, *, borrowed: str = "") -> np.ndarray:
    """uint8 [H,W,3] as lines uint8 [H,3,W], a view of planes; ``borrowed`` as of ``resize_lines``."""
    height, width = image.shape[:2]
    planes = _place(borrowed, (3, height, width))
    opencv().split(image, list(planes))  # into lines it takes four times as long
    return planes.transpose(1, 0, 2)


def resize_lines(lines: np.ndarray, height: int, width: int, kernel: Filter, *, borrowed: str = "") -> np.ndarray:
    """Lines uint8 [H,3,W] to uint8 [height,3,width]; C-contiguous. Columns first, then rows, as Pillow does.

    The result is ``lines`` itself where nothing changes. With a name in ``borrowed`` it lies in memory that the next
    call with that name by the same thread uses again: for what is read at once and not kept.
    """
    cv2 = opencv()
    old_height, _, old_width = lines.shape
    if old_width != width:
        shape = (old_height, 3, width)
        wide = _place(borrowed, shape) if old_height == height else _buffers.take("wide", shape, _LEVELS)
        _resize_pixels(lines, wide, kernel, cv2)
        lines = wide
    if old_height != height:
        result = _place(borrowed, (height, 3, width))
        _resize_lines(np.ascontiguousarray(lines).reshape(old_height, -1), result.reshape(height, -1), kernel, cv2)
        lines = result
    return lines


def resize(image: np.ndarray, height: int, width: int, kernel: Filter) -> np.ndarray:
    """uint8 [H,W,3] to uint8 [height,width,3]; C-contiguous, and the image itself where nothing changes."""
    if image.shape[:2] == (height, width):
        return np.ascontiguousarray(image)
    lines = resize_lines(lines_of(image, borrowed="lines"), height, width, kernel, borrowed="resized")
    result: np.ndarray = opencv().merge([lines[:, channel] for channel in range(3)])
    return result
