"""Pictures as text: two pixels in each character, in the terminal's 24-bit colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_BLOCK = "\u2580"  # its upper half is drawn in the foreground's colour, the lower in the background's
_RESET = "\033[0m"


SMALLEST = 8  # characters; below that a picture shows nothing


def picture_lines(pictures: Sequence[Any], width: int = 48, columns: int = 1000) -> list[str]:
    """Square uint8 RGB pictures [n,n,3] side by side, each at most ``width`` characters wide and half as many high.

    No line is wider than the terminal's ``columns``; where that leaves too little, there are none.
    """
    width = min(width, columns // len(pictures))
    if width < SMALLEST:
        return []
    rows = np.concatenate([_smaller(picture, width) for picture in pictures], axis=1)
    return [
        "".join(_colours(upper, lower) + _BLOCK for upper, lower in zip(rows[y], rows[y + 1], strict=True)) + _RESET
        for y in range(0, len(rows) - len(rows) % 2, 2)
    ]


def _smaller(picture: Any, width: int) -> Any:
    """Blocks of pixels become their mean."""
    factor = -(-len(picture) // width)
    side = len(picture) // factor
    blocks = picture[: side * factor, : side * factor].reshape(side, factor, side, factor, 3)
    return blocks.mean(axis=(1, 3)).astype(np.uint8)


def _colours(upper: Any, lower: Any) -> str:
    return f"\033[38;2;{upper[0]};{upper[1]};{upper[2]};48;2;{lower[0]};{lower[1]};{lower[2]}m"
