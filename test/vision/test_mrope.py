"""Three-axis positions against transformers, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from mrope_cases import CASES, IMAGE, LONG_CASES, TOKENS_PER_SECOND, VIDEO, prompt

from edgellm_ros.errors import RequestError
from edgellm_ros.vision.mrope import MropeRule, mrope_positions

REFERENCE = json.loads((Path(__file__).resolve().parent / "mrope.json").read_text("utf-8"))
RULES = {
    "qwen2_vl": MropeRule(IMAGE, VIDEO),
    "qwen2_5_vl": MropeRule(IMAGE, VIDEO, tokens_per_second=TOKENS_PER_SECOND),
    "qwen3_vl": MropeRule(IMAGE, VIDEO, frames_apart=True),
}


@pytest.mark.parametrize("name", [*CASES, *LONG_CASES])
def test_positions_and_delta_equal_the_reference(name):
    family, parts, seconds = {**CASES, **LONG_CASES}[name]
    ids, images, videos = prompt(family, parts)
    found = mrope_positions(ids, RULES[family], images, videos, seconds)
    assert found.positions.dtype == np.int32
    assert found.positions.tolist() == REFERENCE[name]["positions"]
    assert found.delta == REFERENCE[name]["delta"]


def test_images_that_touch_keep_their_own_grids():
    ids = np.array([5, *[IMAGE] * 4, *[IMAGE] * 6, 7])
    found = mrope_positions(ids, MropeRule(IMAGE), np.array([[1, 4, 4], [1, 4, 6]]))
    assert found.positions[:, 5].tolist() == [3, 3, 3]
    assert found.positions[:, 10].tolist() == [3, 4, 5]
    assert found.positions[:, 11].tolist() == [6, 6, 6]
    assert found.delta == 7 - 12


@pytest.mark.parametrize(("ids", "images", "sentence"), [
    ([1, IMAGE, IMAGE, 2], [[1, 4, 4]], "fewer than 4 image tokens from place 1"),
    ([1, IMAGE, IMAGE, IMAGE, IMAGE, IMAGE], [[1, 4, 4]], "more image tokens than its images make"),
    ([1, 2], [[1, 4, 4]], "1 grids of the images have no tokens"),
    ([1, IMAGE], None, "more image tokens"),
    ([1, VIDEO], None, "more video tokens"),
])  # fmt: skip
def test_counts_that_do_not_fit_are_refused(ids, images, sentence):
    grids = None if images is None else np.array(images)
    with pytest.raises(RequestError) as refusal:
        mrope_positions(np.array(ids), MropeRule(IMAGE, VIDEO), grids)
    assert sentence in str(refusal.value)


def test_a_rule_that_counts_seconds_asks_for_them():
    ids = np.array([VIDEO, VIDEO])
    with pytest.raises(RequestError, match="1 videos came with 0 times"):
        mrope_positions(ids, RULES["qwen2_5_vl"], None, np.array([[2, 2, 2]]))


def test_positions_beyond_what_tables_tell_apart_are_refused():
    ids = np.array([7, *[9] * 8, 7])
    rule = MropeRule(8, 9, merge=2, tokens_per_second=4.0)
    grid = np.array([[2, 4, 4]])
    assert mrope_positions(ids, rule, None, grid, [86400.0]).delta > 300_000
    with pytest.raises(RequestError, match=r"positions of the prompt reach \d+; want at most 16777215"):
        mrope_positions(ids, rule, None, grid, [1e8])
