"""Sines and cosines of flow time, as the action networks of the openpi line take it."""

from __future__ import annotations

import numpy as np


def sinusoids(times: np.ndarray, width: int, periods: tuple[float, float]) -> np.ndarray:
    """float32 [n, width]: sines, then cosines, of ``times`` [n] at width/2 periods in geometric order."""
    shortest, longest = periods
    period = shortest * (longest / shortest) ** np.linspace(0.0, 1.0, width // 2)
    angles = np.asarray(times, dtype=np.float64)[:, None] * (1.0 / period * 2.0 * np.pi)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
