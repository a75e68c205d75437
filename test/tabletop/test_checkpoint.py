"""The shipped checkpoint: lerobot's layout, within its size, and readable by this package's own parts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edgellm_ros.builder.safetensors_file import SafetensorsFile
from edgellm_ros.runtime.tokenizer import Tokenizer
from edgellm_ros.tabletop.checkpoint_files import checkpoint_directory
from edgellm_ros.tabletop.geometry import JOINT_LOWER, JOINT_UPPER

FOLDER = checkpoint_directory()


def test_the_weights_are_small_and_have_lerobots_names():
    file = SafetensorsFile(FOLDER / "model.safetensors")
    shapes = {name: entry.shape for name, entry in file.entries.items()}
    assert sum(int(np.prod(shape)) for shape in shapes.values()) <= 12_000_000
    assert (FOLDER / "model.safetensors").stat().st_size <= 25_000_000
    for name in (
        "model.state_proj.weight",
        "model.action_in_proj.weight",
        "model.action_time_mlp_out.bias",
        "model.vlm_with_expert.vlm.model.vision_model.embeddings.patch_embedding.weight",
        "model.vlm_with_expert.vlm.model.connector.modality_projection.proj.weight",
        "model.vlm_with_expert.vlm.model.text_model.layers.0.self_attn.q_proj.weight",
        "model.vlm_with_expert.vlm.lm_head.weight",
        "model.vlm_with_expert.lm_expert.layers.0.mlp.gate_proj.weight",
    ):
        assert name in shapes


def test_the_configuration_names_cameras_and_joints():
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["type"] == "smolvla"
    assert set(config["input_features"]) == {
        "observation.state",
        "observation.images.top",
        "observation.images.angled",
    }
    assert config["output_features"]["action"]["shape"] == [4]


@pytest.mark.parametrize("name", ["policy_preprocessor.json", "policy_postprocessor.json"])
def test_statistics_lie_where_the_processors_say(name):
    steps = json.loads((FOLDER / name).read_text())["steps"]
    files = [step["state_file"] for step in steps if "state_file" in step]
    assert len(files) == 1
    file = SafetensorsFile(FOLDER / files[0])
    assert set(file.entries) == {"observation.state.mean", "observation.state.std", "action.mean", "action.std"}
    mean = file.read_rows("action.mean", 0, 4)
    assert (mean > JOINT_LOWER).all() and (mean < JOINT_UPPER).all()


def test_the_tokenizer_knows_the_tabletops_words():
    tokenizer = Tokenizer.from_directory(FOLDER / "vlm")
    ids = tokenizer.encode("pick up the purple ring and put it on the orange disc\n")
    assert len(ids) == 13
