"""Matrices as blocks of four bits, rounded as well as what is known about their inputs allows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .block_search import search_blocks
from .error_feedback import round_with_feedback
from .input_moments import InputMoments
from .weights import Weight

PIECE_BYTES = 1 << 18  # blocks are worked on in pieces that stay in the processor's cache
FEWEST_ROWS = 2048  # of a band that is rounded column after column: fewer are no faster

Rounded = tuple[np.ndarray, np.ndarray, np.ndarray]


def _round_blocks(values: np.ndarray, block: int, symmetric: bool) -> Rounded:
    rows, columns = values.shape
    x = np.ascontiguousarray(values, dtype=np.float32).reshape(-1, block)
    integers = np.empty(x.shape, dtype=np.int8)
    scales, zeros = np.empty(len(x), dtype=np.float32), np.empty(len(x), dtype=np.uint8)
    step = max(1, PIECE_BYTES // (4 * block))
    for start in range(0, len(x), step):
        piece = slice(start, start + step)
        best = search_blocks(x[piece], None, symmetric=symmetric)
        integers[piece] = best.steps(best.inverse, best.zero) + best.zero[:, None]
        scales[piece], zeros[piece] = best.scale, best.zero
    shape = (rows, columns // block)
    return integers.reshape(*shape, block), scales.reshape(shape), zeros.reshape(shape)


def round_to_int4(values: np.ndarray, block: int, moments: InputMoments | None = None, *, symmetric: bool) -> Rounded:
    """Blocks along the last axis of float32 [n, columns], the last one filled up with zeros.

    int8 [n, blocks, block], float32 scales [n, blocks] and uint8 zeros [n, blocks]; weight = scale * (integer - zero).
    Integers and zeros go from 0 to 15; ``symmetric``: integers from -8 to 7, and zeros are 0.
    """
    if moments is not None and moments.tile % block == 0 and len(moments) == values.shape[1]:
        return round_with_feedback(values, block, moments, symmetric=symmetric)
    if values.shape[1] % block:
        values = np.pad(values, ((0, 0), (0, -values.shape[1] % block)))
    return _round_blocks(values, block, symmetric)


def pack(nibbles: np.ndarray) -> np.ndarray:
    """int8 or uint8 [..., n] of which four bits count, as uint8 [..., ceil(n/2)], the first of two in the low half."""
    nibbles = nibbles.view(np.uint8)
    if nibbles.shape[-1] % 2:
        nibbles = np.concatenate((nibbles, np.zeros_like(nibbles[..., :1])), axis=-1)
    return nibbles[..., ::2] & 15 | nibbles[..., 1::2] << 4


def int4_bands(weight: Weight, block: int, moments: InputMoments | None, *, symmetric: bool) -> Iterator[Rounded]:
    """The matrix as bands of an even number of rows, as ``round_to_int4`` gives them."""
    for start, stop in weight.bands(step=2, least=1 if moments is None else FEWEST_ROWS):
        yield round_to_int4(weight.read_checked(start, stop), block, moments, symmetric=symmetric)
