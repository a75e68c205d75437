"""A resize along one axis as matrix products over windows of input pixels that lie at equal distances.

A product makes several output pixels at once from the window under all of them. Where windows are equally far apart,
one call to a stack of products does them all, and a view of the input stands for the windows, so nothing is gathered.
The distances are whole for the usual ratios (8 pixels from 5, 4 from 9, 16 from 64); for others windows are a little
wider than they need be, and a run ends where that no longer suffices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .resize_taps import Filter, Taps, taps

SLACK = 2  # pixels that windows may be wider than they need be
DRIFT = 1 / 8  # pixels from one window to the next that count as equal distances: runs of SLACK / DRIFT at least
LINES_TOGETHER = range(4, 9)  # of a product: more share more loads, but their common window holds more zeros
LINES_AT_ONCE = 160  # of a run, input and output: the cache shall hold them
PIXELS_TOGETHER = {4: range(12, 17), 8: range(6, 9)}  # by bytes of a number: what fills a vector register of 64 bytes


@dataclass(frozen=True, eq=False)
class Run:
    """Output pixels ``first ..``, ``together`` of each product; the n-th window starts at ``start + n * step``.

    Windows may begin before the picture and end behind it: weights are zero there.
    ``weights`` [products,together,window], or [products,window,together] for products with pixels of a line.
    """

    first: int
    start: int
    step: int
    together: int
    window: int
    weights: np.ndarray

    @property
    def products(self) -> int:
        """How many."""
        return len(self.weights)

    @property
    def stop(self) -> int:
        """The end of the last window."""
        return self.start + (self.products - 1) * self.step + self.window

    @property
    def made(self) -> int:
        """Output pixels, with those behind the last one of the picture."""
        return self.products * self.together


@lru_cache(maxsize=128)
def runs(length: int, new_length: int, kernel: Filter, number: np.dtype[Any], *, along: bool) -> tuple[Run, ...]:
    """The runs that resize an axis, of pixels ``along`` lines or of whole lines; weights are float32 or float64."""
    table = taps(length, new_length, kernel)
    together = _together(table, PIXELS_TOGETHER[number.itemsize] if along else LINES_TOGETHER, along)
    together = min(together, new_length)
    step = round(together * table.scale)
    most = new_length
    if not along:
        most = max(1, int((LINES_AT_ONCE - 2 * table.reach - SLACK) / (step + together)))
    result: list[Run] = []
    product, products = 0, -(-new_length // together)
    while product < products:
        first = product
        lows: list[int] = []
        highs: list[int] = []
        while product < products and product - first < most:
            offset = (product - first) * step
            low = _edge(table, product * together, -table.reach) - offset
            if lows and max(*lows, low) - min(*lows, low) > SLACK:
                break
            lows.append(low)
            highs.append(_edge(table, (product + 1) * together - 1, table.reach) - offset)
            product += 1
        start, window = min(lows), max(highs) - min(lows)
        weights = np.zeros((product - first, together, window), number)
        for index, stack in enumerate(weights):
            rows = slice((first + index) * together, min((first + index + 1) * together, new_length))
            low = start + index * step
            stack[: rows.stop - rows.start] = table.dense(rows, low, low + window)
        if along:
            weights = np.ascontiguousarray(weights.transpose(0, 2, 1))
        result.append(Run(first * together, start, step, together, window, weights))
    return tuple(result)


def _edge(table: Taps, pixel: int, reach: float) -> int:
    """Where the window of an output pixel starts or ends if the picture has no end."""
    return math.floor((pixel + 0.5) * table.scale + reach + 0.5)


def _together(table: Taps, sizes: range, along: bool) -> int:
    """The size of products that costs least: lines by their window; pixels by their share of it, as registers do."""

    def cost(size: int) -> tuple[bool, float]:
        drift = abs(size * table.scale - round(size * table.scale))
        window = size * table.scale + 2 * table.reach + SLACK * (drift > 0)
        return drift > DRIFT, window / size if along else window

    return min(sizes, key=cost)
