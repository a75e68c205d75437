"""Weights seen otherwise than they lie in their file: kernels as matrices, rows under factors of their own."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from .weights import Weight


def flattened(weight: Weight) -> Weight:
    """A kernel [rows, ...] as the matrix [rows, columns]: a convolution whose stride is its size is such a product."""

    def read(start: int, stop: int) -> np.ndarray:
        return weight.read(start, stop).reshape(stop - start, -1)

    return Weight(weight.name, (weight.rows, math.prod(weight.shape[1:])), read, lambda start, stop: None)


def reshaped(weight: Weight, *shape: int) -> Weight:
    """The same numbers in another shape of equal size, such as a table without its leading ones."""

    def read(start: int, stop: int) -> np.ndarray:
        return weight.read(0, weight.rows).reshape(shape)[start:stop]

    return Weight(weight.name, shape, read, lambda start, stop: None)


def turned(weight: Weight) -> Weight:
    """A matrix [columns, rows] as [rows, columns]; it is read whole, so it should be small."""

    def read(start: int, stop: int) -> np.ndarray:
        return np.ascontiguousarray(weight.read(0, weight.rows).T[start:stop])

    return Weight(f"{weight.name}.turned", weight.shape[::-1], read, lambda start, stop: None)


def entry(weight: Weight, index: int) -> Weight:
    """One of the tensors [rows, ...] that are stacked in a weight [count, rows, ...]; it is read whole."""

    def read(start: int, stop: int) -> np.ndarray:
        return np.ascontiguousarray(weight.read(index, index + 1)[0][start:stop])

    return Weight(f"{weight.name}[{index}]", weight.shape[1:], read, lambda start, stop: None)


def rows_between(weight: Weight, first: int, last: int) -> Weight:
    """Rows ``first`` to ``last``."""

    def read(start: int, stop: int) -> np.ndarray:
        return weight.read(first + start, first + stop)

    shape = (last - first, *weight.shape[1:])
    return Weight(f"{weight.name}[{first}:{last}]", shape, read, lambda start, stop: None)


def rows_times(weight: Weight, label: str, factors: Callable[[], np.ndarray]) -> Weight:
    """The weight with a factor for each row; ``factors`` gives float32 [rows], and is called once, when it is read."""
    kept = cache(factors)

    def read(start: int, stop: int) -> np.ndarray:
        values = weight.read(start, stop)
        return np.asarray(values * kept()[start:stop].reshape(-1, *[1] * (values.ndim - 1)), dtype=np.float32)

    return Weight(f"{weight.name}*{label}", weight.shape, read, lambda start, stop: None)


def first_rows_scaled(weight: Weight, count: int, factor: float) -> Weight:
    """The weight with its first ``count`` rows times a number: the queries of a fused projection."""

    def factors() -> np.ndarray:
        values = np.ones(weight.rows, dtype=np.float32)
        values[:count] = factor
        return values

    return rows_times(weight, f"{np.float32(factor)}[:{count}]", factors)


def constant_weight(name: str, values: np.ndarray) -> Weight:
    """Numbers that no checkpoint holds, as a weight."""
    return Weight(name, values.shape, lambda start, stop: values[start:stop], lambda start, stop: None)
