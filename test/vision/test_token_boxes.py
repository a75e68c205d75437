"""Where the tokens of an image look, for every family."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pictures import picture
from processor_cases import CASES

from edgellm_ros.vision.processor import open_processor
from edgellm_ros.vision.token_boxes import grid_boxes, tile_boxes, token_boxes

pytest.importorskip("cv2")


@pytest.mark.parametrize(
    "name", ["smolvlm-small", "smolvlm-one-tile", "qwen3-vl-small", "internvl3-small", "paligemma"]
)
@pytest.mark.parametrize("size", [(30, 40), (97, 31), (64, 64)], ids=str)
def test_every_token_has_a_box_and_they_cover_the_image(name, size, tmp_path):
    case = next(case for case in CASES if case.name == name)
    (tmp_path / "config.json").write_text(json.dumps(case.config), "utf-8")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(case.image), "utf-8")
    (tmp_path / "processor_config.json").write_text(json.dumps(case.processor), "utf-8")
    processor = open_processor(tmp_path)
    boxes = token_boxes(processor, *size)
    assert len(boxes) == processor.process([picture(*size)]).token_counts[0]
    assert boxes.min() >= 0 and boxes.max() <= 1 + 1e-9
    areas = ((boxes[:, 2:] - boxes[:, :2]).prod(axis=1)).sum()
    assert areas == pytest.approx(round(areas))  # once, or once more for a view of the whole


def test_tiles_lie_row_by_row_and_the_whole_comes_last():
    boxes = tile_boxes(1, 2, 4, whole=True)
    assert boxes[0].tolist() == [0, 0, 0.5, 0.25]
    assert boxes[4].tolist() == [0, 0.5, 0.5, 0.75]
    assert np.array_equal(boxes[8:], grid_boxes(2, 2))
