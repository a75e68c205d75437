"""What can stand on the table: colours, shapes, sizes, and the combinations that training never sees."""

from __future__ import annotations

import numpy as np

COLOURS: dict[str, tuple[int, int, int]] = {  # RGB
    "red": (205, 40, 40),
    "orange": (240, 140, 30),
    "yellow": (240, 222, 60),
    "green": (50, 150, 60),
    "cyan": (70, 205, 215),
    "blue": (40, 75, 205),
    "purple": (125, 50, 160),
    "pink": (245, 140, 190),
}
COLOUR_NAMES = tuple(COLOURS)
COLOUR_VALUES = np.array(list(COLOURS.values()), dtype=np.float64)
SHAPE_NAMES = ("cube", "disc", "ring")
#: Training also shows things without a name: paints that are no colour of the list, and flat blocks with corners.
UNNAMED_COLOUR, UNNAMED_SHAPE = len(COLOUR_NAMES), len(SHAPE_NAMES)
RADII = np.array([0.019, 0.023, 0.023, 0.022])  # metres, the contact circle of each shape
HEIGHTS = np.array([0.030, 0.010, 0.010, 0.016])  # metres
MAX_OBJECTS = 5

#: (colour, shape) pairs that no training scene or prompt contains; they measure how well words and looks combine anew.
HELD_OUT = frozenset({("red", "ring"), ("blue", "disc"), ("yellow", "cube"), ("purple", "ring")})
ALL_COMBINATIONS = tuple((colour, shape) for colour in range(len(COLOUR_NAMES)) for shape in range(len(SHAPE_NAMES)))
HELD_OUT_COMBINATIONS = tuple(
    (colour, shape) for colour, shape in ALL_COMBINATIONS if (COLOUR_NAMES[colour], SHAPE_NAMES[shape]) in HELD_OUT
)
SEEN_COMBINATIONS = tuple(pair for pair in ALL_COMBINATIONS if pair not in HELD_OUT_COMBINATIONS)


def describe(colour: int, shape: int) -> str:
    """``red cube`` for indices into the two tables."""
    return f"{COLOUR_NAMES[colour]} {SHAPE_NAMES[shape]}"
