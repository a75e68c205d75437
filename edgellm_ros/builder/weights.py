"""Matrices that are read in bands of rows, so that no weight is ever in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import CheckpointError
from .checkpoint import Checkpoint

BAND_BYTES = 8 << 20  # of float32; larger bands are no faster

Blocks = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class WeightPart:
    """A tensor of the checkpoint, and what is done to it: ``steps`` of ("multiply" | "add", number), in float32."""

    tensor: str
    steps: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Weight:
    """A tensor [rows, ...] of a model that is still in its file; ``name`` says which for messages.

    ``read(start, stop)`` gives float32 rows. ``read_int8(start, stop)`` gives int8 [n, columns/32, 32] and float32
    scales [n, columns/32], or None where the file does not hold that form. ``parts`` says the same as data: tensors
    of the checkpoint one below the other; none where it cannot be said so.
    """

    name: str
    shape: tuple[int, ...]
    read: Callable[[int, int], np.ndarray]
    read_int8: Callable[[int, int], Blocks | None]
    parts: tuple[WeightPart, ...] = ()

    @property
    def rows(self) -> int:
        """Length of the first axis."""
        return self.shape[0]

    def bands(self, step: int = 1, least: int = 1) -> Iterator[tuple[int, int]]:
        """(start, stop) pairs that cover the rows, each of about ``BAND_BYTES`` at most as float32.

        All but the last have a multiple of ``step`` rows, and ``least`` or more even where that is larger.
        """
        row_bytes = 4 * int(np.prod(self.shape[1:], dtype=np.int64))
        count = step * max(1, -(-least // step), BAND_BYTES // max(1, row_bytes) // step)
        return ((start, min(start + count, self.rows)) for start in range(0, self.rows, count))

    def read_checked(self, start: int, stop: int) -> np.ndarray:
        """Rows as float32.

        :raises CheckpointError: a value is not finite.
        """
        values = self.read(start, stop)
        if not np.isfinite(values).all():
            raise CheckpointError(f"tensor {self.name!r} holds values that are not finite; fetch the checkpoint again.")
        return values


def checkpoint_weight(checkpoint: Checkpoint, name: str) -> Weight:
    """A tensor of a checkpoint by its Hugging Face name."""

    def read(start: int, stop: int) -> np.ndarray:
        return checkpoint.read_rows(name, start, stop)

    def read_int8(start: int, stop: int) -> Blocks | None:
        return checkpoint.read_int8_blocks(name, start, stop)

    return Weight(name, checkpoint.shapes[name], read, read_int8, (WeightPart(name),))


def stack_rows(weights: Sequence[Weight]) -> Weight:
    """Several matrices of equal width, one below the other (fused projections)."""
    if len(weights) == 1:
        return weights[0]
    starts = np.cumsum([0, *(weight.rows for weight in weights)])

    def parts(start: int, stop: int) -> Iterator[tuple[Weight, int, int]]:
        for weight, first in zip(weights, starts.tolist(), strict=False):
            low, high = max(start, first), min(stop, first + weight.rows)
            if low < high:
                yield weight, low - first, high - first

    def read(start: int, stop: int) -> np.ndarray:
        return np.concatenate([weight.read(low, high) for weight, low, high in parts(start, stop)])

    def read_int8(start: int, stop: int) -> Blocks | None:
        blocks = [weight.read_int8(low, high) for weight, low, high in parts(start, stop)]
        found = [block for block in blocks if block is not None]
        if len(found) != len(blocks):
            return None  # mixed types: quantise this band from its float values
        return np.concatenate([block[0] for block in found]), np.concatenate([block[1] for block in found])

    name = "+".join(weight.name for weight in weights)
    told = tuple(part for weight in weights for part in weight.parts) if all(each.parts for each in weights) else ()
    return Weight(name, (int(starts[-1]), *weights[0].shape[1:]), read, read_int8, told)


def scaled(weight: Weight, factor: float) -> Weight:
    """The weight times a number; stored integers stay as they are, under scales times that number."""
    if factor == 1.0:
        return weight
    multiplier = np.float32(factor)

    def read(start: int, stop: int) -> np.ndarray:
        return np.asarray(weight.read(start, stop) * multiplier, dtype=np.float32)

    def read_int8(start: int, stop: int) -> Blocks | None:
        blocks = weight.read_int8(start, stop)
        return None if blocks is None else (blocks[0], np.asarray(blocks[1] * multiplier, dtype=np.float32))

    return Weight(f"{weight.name}*{multiplier}", weight.shape, read, read_int8, _after(weight, "multiply", factor))


def shifted(weight: Weight, offset: float) -> Weight:
    """The weight plus a number (norms that are stored as their distance from it)."""
    if offset == 0.0:
        return weight

    def read(start: int, stop: int) -> np.ndarray:
        return np.asarray(weight.read(start, stop) + np.float32(offset), dtype=np.float32)

    name = f"{weight.name}+{offset:g}"
    return Weight(name, weight.shape, read, lambda start, stop: None, _after(weight, "add", offset))


def _after(weight: Weight, step: str, number: float) -> tuple[WeightPart, ...]:
    return tuple(WeightPart(part.tensor, (*part.steps, (step, number))) for part in weight.parts)
