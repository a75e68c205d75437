"""Rows of random tensors: seeded, and the same in whatever bands they are read."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from ..errors import CheckpointError

BLOCK_ROWS = 64  # rows drawn from one generator, so that any band of a tensor can be drawn alone


def check_seed(seed: int) -> int:
    """:raises CheckpointError: it is no whole number from 0 on."""
    if type(seed) is not int or seed < 0:
        raise CheckpointError(f"seed is {seed!r}; want a whole number from 0 on.")
    return seed


def random_rows(seed: int, name: str, shape: Sequence[int], start: int, stop: int) -> np.ndarray:
    """Rows ``start`` to ``stop`` of a tensor of standard normal numbers, float32."""

    def block(number: int) -> np.ndarray:
        generator = np.random.default_rng([seed, zlib.crc32(name.encode()), number])
        return generator.standard_normal((BLOCK_ROWS, *shape[1:]), dtype=np.float32)

    first = start // BLOCK_ROWS
    blocks = [block(number) for number in range(first, -(-stop // BLOCK_ROWS))]
    return np.concatenate(blocks)[start - first * BLOCK_ROWS : stop - first * BLOCK_ROWS]
