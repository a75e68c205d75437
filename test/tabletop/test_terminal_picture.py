from __future__ import annotations

import re

import numpy as np
import pytest

from edgellm_ros.cli.terminal_picture import picture_lines


@pytest.mark.parametrize(("side", "wide"), [(128, 42), (48, 48), (50, 25)])
def test_pictures_stand_side_by_side_two_pixels_a_character(side: int, wide: int) -> None:
    left, right = np.zeros((side, side, 3), np.uint8), np.full((side, side, 3), 255, np.uint8)
    left[: side // 2, :, 0] = 200
    lines = picture_lines([left, right])
    assert len(lines) == wide // 2
    assert all(line.count("\u2580") == 2 * wide and line.endswith("\033[0m") for line in lines)
    assert re.findall(r"38;2;(\d+;\d+;\d+)", lines[0])[0] == "200;0;0"
    assert re.findall(r"48;2;(\d+;\d+;\d+)", lines[-1])[-1] == "255;255;255"
    assert re.findall(r"38;2;(\d+;\d+;\d+)", lines[-1])[0] == "0;0;0"
