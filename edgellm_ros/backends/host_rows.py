"""Rows of matrices moved by index, and the step of an action solver: what a GPU's kernels must agree with.

Each checks its shapes, because an index array of the wrong length would be broadcast without a word.
"""

from __future__ import annotations

import numpy as np


def _check(table: np.ndarray, rows: np.ndarray, part: np.ndarray) -> None:
    fits = table.ndim == 2 and rows.ndim == 1 and part.shape == (rows.size, table.shape[1])
    if not fits or part.dtype != table.dtype or rows.dtype != np.int32:
        raise ValueError(
            f"rows {rows.dtype} {rows.shape} of {table.dtype} {table.shape} and {part.dtype} {part.shape} were asked; "
            "want int32 [M] of [N,D] and [M,D] of one type."
        )


def gather_rows(source: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """out[m] = source[rows[m]]; source [N,D], rows int32 [M], out [M,D]; zeros for a row outside 0..N-1."""
    _check(source, rows, out)
    known = (rows >= 0) & (rows < source.shape[0])
    out[known] = source[rows[known]]
    out[~known] = 0


def splice_rows(source: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """out[rows[m]] = source[m]; source [M,D], rows int32 [M], out [N,D]; nothing for a row outside 0..N-1.

    A row named twice gets one of its two sources; which one is not said.
    """
    _check(out, rows, source)
    known = (rows >= 0) & (rows < out.shape[0])
    out[rows[known]] = source[known]


def euler_step(state: np.ndarray, velocity: np.ndarray, step: float) -> None:
    """Add ``step * velocity`` to ``state`` in float32; equal shapes."""
    if state.shape != velocity.shape or {state.dtype, velocity.dtype} != {np.dtype(np.float32)}:
        raise ValueError(f"an euler step of {state.shape} with {velocity.shape} was asked; want equal float32 shapes.")
    state += np.float32(step) * velocity
