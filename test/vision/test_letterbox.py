"""The image step of robot policies against the same computed by torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pictures import picture
from processor_cases import LETTERBOXES, SAMPLES

from edgellm_ros.errors import EngineDirectoryError
from edgellm_ros.vision.processor import open_processor

pytest.importorskip("cv2")


@pytest.mark.parametrize(("name", "config", "size", "centred", "sizes"), LETTERBOXES, ids=lambda value: str(value)[:8])
def test_pixels_equal_the_reference(name, config, size, centred, sizes, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    pixels = open_processor(tmp_path).process([picture(*one) for one in sizes]).inputs["pixel_values"]
    assert pixels.shape == (len(sizes), 3, *size)
    places = np.random.Generator(np.random.PCG64(len(name))).integers(0, pixels.size, SAMPLES)
    with np.load(Path(__file__).resolve().parent / "processors.npz") as stored:
        assert np.abs(pixels.reshape(-1)[places] - stored[name]).max() < 0.02 / 255


@pytest.mark.parametrize(("config", "counts"), [
    ({"type": "smolvla", "resize_imgs_with_padding": [512, 512]}, (64, 64)),
    ({"type": "pi05", "image_resolution": [224, 224]}, (256, 256)),
    ({"type": "smolvla", "resize_imgs_with_padding": [64, 64], "scale_factor": 2, "vision_config": {"patch_size": 8}},
     (16, 16)),
])  # fmt: skip
def test_tokens_of_each_camera_follow_from_the_encoder(config, counts, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    done = open_processor(tmp_path).process([picture(48, 64), picture(64, 48)])
    assert done.token_counts == counts


def test_padding_is_black_where_each_policy_has_it(tmp_path):
    white = np.full((100, 50, 3), 255, np.uint8)
    found = {}
    for name, config in (("left", LETTERBOXES[0][1]), ("both", LETTERBOXES[1][1])):
        (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
        columns = open_processor(tmp_path).process([white]).inputs["pixel_values"][0, 0].mean(axis=0)
        found[name] = (columns[0], columns[len(columns) // 2], columns[-1])
    assert np.allclose(found["left"], (-1, -1, 1))
    assert np.allclose(found["both"], (-1, 1, -1))


@pytest.mark.parametrize("value", [None, [512], [0, 512], "512"], ids=str)
def test_a_size_that_is_none_is_refused_by_name(value, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"type": "smolvla", "resize_imgs_with_padding": value}), "utf-8")
    with pytest.raises(EngineDirectoryError, match="resize_imgs_with_padding"):
        open_processor(tmp_path)
