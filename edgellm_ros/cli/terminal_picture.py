"""Pictures as text: two pixels in each character, in the terminal's 24-bit colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_BLOCK = "\u2580"  # its upper half is drawn in the foreground's colour, the lower in the background's
_RESET = "\033[0m"


def picture_lines(pictures: Sequence[Any], width: int = 48) -> list[str]:
    """Square uint8 RGB pictures [n,n,3] side by side, each ``width`` characters wide and half as many lines high."""
    import cv2

    rows = np.concatenate([cv2.resize(p, (width, width), interpolation=cv2.INTER_AREA) for p in pictures], axis=1)
    return [
        "".join(_colours(upper, lower) + _BLOCK for upper, lower in zip(rows[y], rows[y + 1], strict=True)) + _RESET
        for y in range(0, width - width % 2, 2)
    ]


def _colours(upper: Any, lower: Any) -> str:
    return f"\033[38;2;{upper[0]};{upper[1]};{upper[2]};48;2;{lower[0]};{lower[1]};{lower[2]}m"
