"""How large the inputs of a matrix are, and how they go together: what says which errors of its weights matter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LARGEST_TILE = 128
_DAMPING = 0.1  # of the mean square, added to every input's: a text that is short must not decide too much


def tile_of(columns: int) -> int:
    """Columns whose inputs are looked at together: a multiple of 64 or 32 that divides ``columns``, or 0."""
    for step in (64, 32):
        for tile in range(LARGEST_TILE, 0, -step):
            if columns % tile == 0:
                return tile
    return 0


@dataclass(frozen=True)
class InputMoments:
    """``values`` float32 [tiles, tile, tile]: mean products of the inputs within each tile of columns."""

    values: np.ndarray

    def __len__(self) -> int:
        return int(self.values.shape[0] * self.values.shape[1])

    @property
    def tile(self) -> int:
        """Columns of a tile."""
        return int(self.values.shape[1])

    def damped(self) -> np.ndarray:
        """``values`` with every input's square raised a little, float64; the unit matrix where all inputs are zero."""
        values = self.values.astype(np.float64)
        squares = np.einsum("tii->ti", values)
        mean = float(squares.mean())
        if not np.isfinite(values).all() or mean <= 0:
            return np.broadcast_to(np.eye(self.tile), values.shape).copy()
        values /= mean
        index = np.arange(self.tile)
        values[:, index, index] += _DAMPING
        return values
