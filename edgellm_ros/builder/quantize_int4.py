"""Four-bit blocks whose scale, and zero where there is one, are searched for: nearest rounding costs more.

For integers chosen, the scale of the least squared error is known in closed form, and so is that error. So a search
tries ways to round a block, a few scales around the one that covers its range, and keeps the best. Blocks are worked
on in pieces that stay in the processor's cache.
"""

from __future__ import annotations

import numpy as np

PIECE_BYTES = 1 << 18
_SHRINKS = (1.05, 1.0, 0.95, 0.9, 0.85, 0.8, 0.74)  # of the range that the sixteen steps cover
_LARGEST = np.float32(3e38)


def _blocks(values: np.ndarray, block: int) -> np.ndarray:
    """float32 [n, columns] as [n * blocks, block], the last block of each row filled up with zeros."""
    columns = values.shape[1]
    if columns % block:
        values = np.pad(values, ((0, 0), (0, -columns % block)))
    return np.ascontiguousarray(values, dtype=np.float32).reshape(-1, block)


def _inverse(scale: np.ndarray) -> np.ndarray:
    """1 / scale, 0 where that is no number: such a block is zero for all purposes."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale
    inverse[~(np.abs(inverse) < _LARGEST)] = 0
    return inverse


class _Best:
    """The best rounding of each block so far: ``inverse`` scale and ``zero`` make it, ``scale`` undoes it best."""

    def __init__(self, x: np.ndarray, lowest: int, highest: int) -> None:
        self.x = x
        self.lowest, self.highest = np.float32(lowest), np.float32(highest)
        count = len(x)
        self.gain = np.full(count, -1, dtype=np.float32)  # what the squared error is less than the block's square
        self.inverse = np.zeros(count, dtype=np.float32)
        self.zero = np.zeros(count, dtype=np.float32)
        self.scale = np.zeros(count, dtype=np.float32)
        self._work = np.empty_like(x)

    def steps(self, inverse: np.ndarray, zero: np.ndarray) -> np.ndarray:
        """The integers of a rounding, as distances from the zero; valid until the next call."""
        q: np.ndarray = np.multiply(self.x, inverse[:, None], out=self._work)
        np.rint(q, out=q)
        np.maximum(q, (self.lowest - zero)[:, None], out=q)
        np.minimum(q, (self.highest - zero)[:, None], out=q)
        return q

    def offer(self, inverse: np.ndarray, zero: np.ndarray) -> None:
        """Take a rounding where it is better than the best."""
        q = self.steps(inverse, zero)
        product = np.einsum("ij,ij->i", self.x, q)
        square = np.einsum("ij,ij->i", q, q)
        scale = product / np.maximum(square, np.float32(1))
        gain = product * scale
        better = gain > self.gain
        self.gain[better] = gain[better]
        self.inverse[better] = inverse[better]
        self.zero[better] = zero[better]
        self.scale[better] = scale[better]


def _asymmetric(x: np.ndarray) -> _Best:
    """Steps 0 to 15 around a whole zero between them."""
    best = _Best(x, 0, 15)
    low, high = np.minimum(x.min(axis=1), 0), np.maximum(x.max(axis=1), 0)
    for shrink in _SHRINKS:
        inverse = _inverse((high - low) * np.float32(shrink / 15))
        place = np.clip(-low * inverse - np.float32(7.5 * (1 - shrink)), 0, 15)
        for zero in (np.floor(place), np.minimum(np.floor(place) + 1, 15)):
            best.offer(inverse, zero)
    return best


def _symmetric(x: np.ndarray) -> _Best:
    """Steps -8 to 7."""
    best = _Best(x, -8, 7)
    zero = np.zeros(len(x), dtype=np.float32)
    largest = x[np.arange(len(x)), np.abs(x).argmax(axis=1)]
    for shrink in _SHRINKS:
        for steps in (-8, 7, -7):
            best.offer(_inverse(largest * np.float32(shrink / steps)), zero)
    return best


def _refine(best: _Best) -> None:
    """Round again under the scale that was best for the rounding before."""
    best.offer(_inverse(best.scale), best.zero.copy())


def _search(values: np.ndarray, block: int, symmetric: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integers uint8 or int8 [blocks, block] (as bytes), scales float32 and zeros uint8 [blocks]."""
    x = _blocks(values, block)
    integers = np.empty(x.shape, dtype=np.int8)
    scales, zeros = np.empty(len(x), dtype=np.float32), np.empty(len(x), dtype=np.uint8)
    step = max(1, PIECE_BYTES // (4 * block))
    for start in range(0, len(x), step):
        piece = slice(start, start + step)
        best = _symmetric(x[piece]) if symmetric else _asymmetric(x[piece])
        _refine(best)
        integers[piece] = best.steps(best.inverse, best.zero) + best.zero[:, None]
        scales[piece], zeros[piece] = best.scale, best.zero
    return integers, scales, zeros


def pack(nibbles: np.ndarray) -> np.ndarray:
    """int8 or uint8 [..., n] of which four bits count, as uint8 [..., ceil(n/2)], the first of two in the low half."""
    nibbles = nibbles.view(np.uint8)
    if nibbles.shape[-1] % 2:
        nibbles = np.concatenate((nibbles, np.zeros_like(nibbles[..., :1])), axis=-1)
    return nibbles[..., ::2] & 15 | nibbles[..., 1::2] << 4


def quantize_uint4(values: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks along the last axis of float32 [n, columns]; weight = scale * (integer - zero), 0 to 15 both.

    Integers uint8 [n, blocks, block/2] and zeros uint8 [n, ceil(blocks/2)], two to a byte, and scales float32
    [n, blocks].
    """
    rows, blocks = len(values), -(-values.shape[1] // block)
    integers, scales, zeros = _search(values, block, symmetric=False)
    return (
        pack(integers.reshape(rows, blocks, block)),
        scales.reshape(rows, blocks),
        pack(zeros.reshape(rows, blocks)),
    )


def quantize_int4(values: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks along the last axis of float32 [n, columns]; weight = scale * integer, from -8 to 7.

    Integers int8 [n, blocks, block], one to a byte, and scales float32 [n, blocks].
    """
    rows, blocks = len(values), -(-values.shape[1] // block)
    integers, scales, _ = _search(values, block, symmetric=True)
    return integers.reshape(rows, blocks, block), scales.reshape(rows, blocks)
