"""Sines and cosines of flow time, as each network takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Waves:
    """``count`` angular speeds in geometric order from ``first`` to ``last``: sines of all, then cosines of all.

    Or the cosines first; either way times ``scale``.
    """

    count: int
    first: float
    last: float
    cosines_first: bool = False
    scale: float = 1.0

    @classmethod
    def of_periods(cls, width: int, shortest: float, longest: float) -> Waves:
        """``width`` numbers whose periods run from the shortest to the longest."""
        return cls(width // 2, 2 * np.pi / shortest, 2 * np.pi / longest)


def sinusoids(times: np.ndarray, waves: Sequence[Waves]) -> np.ndarray:
    """float32 [n, width]: what each of ``waves`` makes of ``times`` [n], side by side."""
    parts: list[np.ndarray] = [np.empty((len(times), 0))]
    for wave in waves:
        speeds = wave.first * (wave.last / wave.first) ** np.linspace(0.0, 1.0, wave.count)
        angles = np.asarray(times, dtype=np.float64)[:, None] * speeds
        both = [np.sin(angles), np.cos(angles)]
        parts += [wave.scale * part for part in (both[::-1] if wave.cosines_first else both)]
    return np.concatenate(parts, axis=1).astype(np.float32)
