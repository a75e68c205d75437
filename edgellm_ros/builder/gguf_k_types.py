"""GGUF's k-types: blocks of 256 weights in sub-blocks whose scales are quantised themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def halves(blocks: Array, start: int) -> Array:
    """One little-endian float16 of each block, uint8 [n, bytes], as float32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def scales_and_minima(blocks: Array) -> tuple[Array, Array]:
    """Of Q4_K and Q5_K blocks, float32 [n, 8] each: weight = scale * level - minimum."""
    first, second, last = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate((first & 63, last & 15 | first >> 6 << 4), axis=1)
    minima = np.concatenate((second & 63, last >> 4 | second >> 6 << 4), axis=1)
    return halves(blocks, 0) * scales.astype(np.float32), halves(blocks, 2) * minima.astype(np.float32)


def _nibbles_of_pairs(packed: Array) -> Array:
    """uint8 [n, 128] as [n, 8, 32]: of each 32 bytes first the low halves, then the high ones."""
    pairs = packed.reshape(len(packed), 4, 1, 32)
    return np.concatenate((pairs & 15, pairs >> 4), axis=2).reshape(len(packed), 8, 32)


def levels_q4_k(blocks: Array) -> Array:
    """Levels of Q4_K blocks, uint8 [n, 8, 32]."""
    return _nibbles_of_pairs(blocks[:, 16:])


def levels_q5_k(blocks: Array) -> Array:
    """Levels of Q5_K blocks, uint8 [n, 8, 32]: bit i of each of 32 bytes is the fifth bit of sub-block i."""
    fifth = blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8)[:, None] & 1
    levels: Array = _nibbles_of_pairs(blocks[:, 48:]) | fifth << 4
    return levels


def _weights(blocks: Array, levels: Array) -> Array:
    scale, minimum = scales_and_minima(blocks)
    values = levels.astype(np.float32)
    values *= scale[:, :, None]
    values -= minimum[:, :, None]
    return values.reshape(len(blocks), 256)


def q4_k(blocks: Array) -> Array:
    """Q4_K, uint8 [n, 144]."""
    return _weights(blocks, levels_q4_k(blocks))


def q5_k(blocks: Array) -> Array:
    """Q5_K, uint8 [n, 176]."""
    return _weights(blocks, levels_q5_k(blocks))


def q6_k(blocks: Array) -> Array:
    """Q6_K, uint8 [n, 210]: sixteen sub-blocks of 16 with signed scales."""
    count = len(blocks)
    low = blocks[:, :128].reshape(count, 2, 1, 64) >> np.array([0, 4], dtype=np.uint8).reshape(2, 1) & 15
    high = blocks[:, 128:192].reshape(count, 2, 1, 32) >> np.array([0, 2, 4, 6], dtype=np.uint8).reshape(4, 1) & 3
    integers = low.reshape(count, 16, 16) | high.reshape(count, 16, 16) << 4
    scale = halves(blocks, 208) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    values = integers.astype(np.float32)
    values -= 32
    values *= scale[:, :, None]
    return values.reshape(count, 256)
