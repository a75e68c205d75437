"""GGUF blocks as integers of eight bits with one scale for 32 weights, exactly or nearly so, without the weights.

A block with levels q, scale d and minimum m holds d*q + m. With a scale of d/k for a whole k its levels stay exact, and
only the minimum is rounded: to a step, if m/d*k is no whole number. Of the largest few k that fit into eight bits, the
one that rounds least is taken. The squared error is about a fifth of what rounding every weight gives for four bits,
half of it for five, and the same for all 32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .gguf_k_types import halves, levels_q4_k, levels_q5_k, scales_and_minima

Array = np.ndarray[Any, np.dtype[Any]]
Blocks = tuple[Array, Array]

_TRIED = 8
_STEPS = np.float32(127)


def affine_to_int8(levels: Array, scale: Array, minimum: Array) -> Blocks:
    """uint8 [n, 32], float32 [n] and [n] as int8 [n, 32] and float32 scales [n]."""
    low = scale * levels.min(axis=1) + minimum
    high = scale * levels.max(axis=1) + minimum
    largest = np.maximum(np.abs(low), np.abs(high))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        most = np.floor(_STEPS * np.abs(scale) / largest)
        offset = minimum / scale
    usable = (most >= 1) & np.isfinite(offset)
    tried = np.maximum(np.where(usable, np.minimum(most, _STEPS), 1)[:, None] - np.arange(_TRIED, dtype=np.float32), 1)
    places = tried * np.where(usable, offset, 0)[:, None]
    best = (np.abs(places - np.rint(places)) / tried).argmin(axis=1)[:, None]
    factor = np.take_along_axis(tried, best, axis=1)
    shift = np.rint(np.take_along_axis(places, best, axis=1))
    integers = (levels * factor.astype(np.int16) + shift.astype(np.int16)).astype(np.int8)
    scales = scale / factor[:, 0]
    if not usable.all():  # one level, or levels much finer than eight bits can tell apart: round the weights
        rest = ~usable
        values = scale[rest, None] * levels[rest] + minimum[rest, None]
        scales[rest] = largest[rest] / _STEPS
        with np.errstate(divide="ignore", invalid="ignore"):
            integers[rest] = np.nan_to_num(np.rint(values / scales[rest, None]), nan=0, posinf=0, neginf=0)
    return integers, scales


def _nibbles(packed: Array) -> Array:
    return np.concatenate((packed & 15, packed >> 4), axis=1)


def _fifth_bits(blocks: Array, start: int) -> Array:
    return np.unpackbits(np.ascontiguousarray(blocks[:, start : start + 4]), axis=1, bitorder="little") << 4


def q4_0(blocks: Array) -> Blocks:
    """Q4_0, uint8 [n, 18]: exact."""
    return _nibbles(blocks[:, 2:]).view(np.int8) - np.int8(8), halves(blocks, 0)[:, 0]


def q5_0(blocks: Array) -> Blocks:
    """Q5_0, uint8 [n, 22]: exact."""
    levels = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return levels.view(np.int8) - np.int8(16), halves(blocks, 0)[:, 0]


def q8_0(blocks: Array) -> Blocks:
    """Q8_0, uint8 [n, 34]: exact."""
    return np.ascontiguousarray(blocks[:, 2:]).view(np.int8), halves(blocks, 0)[:, 0]


def q4_1(blocks: Array) -> Blocks:
    """Q4_1, uint8 [n, 20]."""
    return affine_to_int8(_nibbles(blocks[:, 4:]), halves(blocks, 0)[:, 0], halves(blocks, 2)[:, 0])


def q5_1(blocks: Array) -> Blocks:
    """Q5_1, uint8 [n, 24]."""
    levels = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return affine_to_int8(levels, halves(blocks, 0)[:, 0], halves(blocks, 2)[:, 0])


def _k_type(blocks: Array, levels: Array) -> Blocks:
    scale, minimum = scales_and_minima(blocks)
    return affine_to_int8(levels.reshape(-1, 32), scale.reshape(-1), -minimum.reshape(-1))


def q4_k(blocks: Array) -> Blocks:
    """Q4_K, uint8 [n, 144], as [8n, 32]."""
    return _k_type(blocks, levels_q4_k(blocks))


def q5_k(blocks: Array) -> Blocks:
    """Q5_K, uint8 [n, 176], as [8n, 32]."""
    return _k_type(blocks, levels_q5_k(blocks))
