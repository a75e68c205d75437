"""Levels to the numbers a network takes, through a table of 256 entries per channel."""

from __future__ import annotations

import numpy as np

from ..opencv import opencv


def planes(image: np.ndarray, table: np.ndarray, out: np.ndarray) -> None:
    """Write uint8 [H,W,3] into ``out`` [3,H,W] through ``table`` [256,3]; ``out`` has the table's dtype."""
    cv2 = opencv()
    for channel in range(3):
        plane = cv2.extractChannel(image, channel)
        if table.dtype == np.uint8:
            out[channel] = plane
        else:
            out[channel] = cv2.LUT(plane, np.ascontiguousarray(table[:, channel]).reshape(1, 256))
