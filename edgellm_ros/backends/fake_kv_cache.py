"""The cache of the fake backend: token ids and positions themselves, so that a mistake with a slot is heard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import MisuseError
from .base import CacheLayout, DataType, Tensor

EMPTY = -1  # id and position of a slot that was never written


class FakeKVCache:
    """(id, position) of every slot: int32 [rows, capacity, 2]."""

    def __init__(self, layout: CacheLayout, rows: int, capacity: int) -> None:
        self._dtype = layout.dtype
        self.slots = np.full((rows, capacity, 2), EMPTY, dtype=np.int32)

    @property
    def rows(self) -> int:
        """Sequences that fit."""
        return int(self.slots.shape[0])

    @property
    def capacity(self) -> int:
        """Positions of each sequence."""
        return int(self.slots.shape[1])

    @property
    def dtype(self) -> DataType:
        """What the layout asked for."""
        return self._dtype

    @property
    def bytes_per_position(self) -> int:
        """Bytes of one slot."""
        return int(self.slots.itemsize * self.slots.shape[2])

    def copy_row(self, source: int, destination: int, length: int) -> None:
        """Copy the first ``length`` slots of one row over another."""
        self._check(source, 0, length)
        self._check(destination, 0, length)
        self.slots[destination, :length] = self.slots[source, :length]

    def export_block(self, row: int, start: int, count: int) -> Any:
        """A copy of ``count`` slots."""
        self._check(row, start, count)
        return self.slots[row, start : start + count].copy()

    def import_block(self, row: int, start: int, block: Any) -> None:
        """Write slots that ``export_block`` gave."""
        self._check(row, start, len(block))
        self.slots[row, start : start + len(block)] = block

    def copy_out(self, row: int, length: int, tensors: Sequence[Tensor]) -> None:
        """:raises MisuseError: there are no keys and values here."""
        self._check(row, 0, length)
        raise MisuseError("the backend fake has no keys and values to copy out; run this policy on another backend.")

    def _check(self, row: int, start: int, count: int) -> None:
        if not (0 <= row < self.rows and start >= 0 and count >= 0 and start + count <= self.capacity):
            raise MisuseError(
                f"positions {start}..{start + count} of row {row} were asked of a cache with {self.rows} rows of "
                f"{self.capacity}; want some inside."
            )
