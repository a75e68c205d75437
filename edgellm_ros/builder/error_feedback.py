"""Rounding column after column, where later columns make good for the errors of earlier ones (the GPTQ method).

With the mean products H of a matrix's inputs, the error of its output is that of e H e^T for the errors e of a row. An
error in one column is cancelled best, in that measure, by moving the columns that are not rounded yet; by how much is
in the Cholesky factor of the inverse of H. It is done within tiles of columns: the rest of H gains little and takes
much memory.
"""

from __future__ import annotations

import numpy as np

from .block_search import inverse_of, search_blocks
from .input_moments import InputMoments


def feedback_factors(moments: InputMoments) -> np.ndarray:
    """float32 [tiles, tile, tile]: row j says by which share of the error of column j the columns after it move."""
    upper = np.linalg.cholesky(np.linalg.inv(moments.damped())).swapaxes(1, 2)
    diagonal = np.einsum("tii->ti", upper)
    factors: np.ndarray = (upper / diagonal[:, :, None]).astype(np.float32)
    return factors


def round_with_feedback(
    values: np.ndarray, block: int, moments: InputMoments, *, symmetric: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """See ``quantize_int4.round_to_int4``; the columns are whole tiles, and a tile is whole blocks."""
    rows, columns = values.shape
    factors, tile = feedback_factors(moments), moments.tile
    importance = np.einsum("tii->ti", moments.damped()).astype(np.float32).reshape(-1)
    work = np.ascontiguousarray(values.T)  # [columns, rows]: a step takes one column, all rows
    integers = np.empty((rows, columns // block, block), dtype=np.int8)
    scales = np.empty((rows, columns // block), dtype=np.float32)
    zeros = np.empty((rows, columns // block), dtype=np.uint8)
    for start in range(0, columns, block):
        inside = start % tile
        x = work[start : start + block]
        best = search_blocks(np.ascontiguousarray(x.T), importance[start : start + block], symmetric=symmetric)
        row_factors = factors[start // tile, inside : inside + block]
        steps = _round_block(x, best.scale, best.lowest - best.zero, best.highest - best.zero, row_factors, inside)
        end = start - inside + tile
        work[start + block : end] -= row_factors[:, inside + block :].T @ x
        index = start // block
        integers[:, index] = (steps + best.zero).T
        scales[:, index], zeros[:, index] = best.scale, best.zero
    return integers, scales, zeros


def _round_block(
    x: np.ndarray, scale: np.ndarray, lowest: np.ndarray, highest: np.ndarray, factors: np.ndarray, inside: int
) -> np.ndarray:
    """Round the columns of a block, float32 [block, rows]; leaves their errors in x and returns the steps."""
    inverse = inverse_of(scale)
    steps = np.empty_like(x)
    moved = np.empty_like(x)
    for column in range(len(x)):
        q = np.multiply(x[column], inverse, out=steps[column])
        np.rint(q, out=q)
        np.clip(q, lowest, highest, out=q)
        x[column] -= q * scale
        later = factors[column, inside + column + 1 : inside + len(x), None]
        x[column + 1 :] -= np.multiply(later, x[column], out=moved[column + 1 :])
    return steps
