"""SmolVLA from a checkpoint to robot units, against lerobot's own chunks; and checkpoints that are none of it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from policy_checkpoints import random_smolvla, scaled_error
from safetensors.numpy import load_file, save_file
from smolvla_reference import ARRAYS, CASES, FOLDER, LOWERINGS, compute

from edgellm_ros.action import denoiser, policy_engines
from edgellm_ros.action.noise import noise_digest
from edgellm_ros.action.observation import Observation
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.builder.action_families import smolvla
from edgellm_ros.builder.build import build_engine
from edgellm_ros.errors import CheckpointError

EXACT = {name: row for name, row in CASES.items() if name != "long"}


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_chunks_equal_those_of_lerobot_from_picture_to_robot_units(smolvla_engines, lowering):
    with PolicyRuntime(smolvla_engines[lowering], threads=1) as opened:
        for case in EXACT:
            chunk = compute(opened, case)
            assert scaled_error(chunk.normalised, ARRAYS[f"{case}_normalised"]) < 1e-5, case
            assert scaled_error(chunk.rows, ARRAYS[f"{case}_actions"]) < 1e-5, case
            assert chunk.stamp == 7 and chunk.noise_digest == noise_digest(ARRAYS[f"{case}_noise"])


def test_eight_bits_stay_near(tmp_path):
    with PolicyRuntime(build_engine(FOLDER, tmp_path / "int8", precision="int8"), threads=1) as opened:
        for case in EXACT:
            assert scaled_error(compute(opened, case).normalised, ARRAYS[f"{case}_normalised"]) < 0.1, case


_PLACE, _SINUSOIDS = policy_engines.PolicyEngines._place, denoiser.sinusoids


def _one_position_early(self, engine, positions, ends):
    _PLACE(self, engine, positions - bool(positions[0]), ends)


def _actions_see_later_ones(self, engine, positions, ends):
    _PLACE(self, engine, positions, np.full_like(ends, ends.max()))


def _pictures_see_the_state(self, engine, positions, ends):
    _PLACE(self, engine, positions, ends if positions[0] else np.full_like(ends, len(ends)))


def _cosines_first(times, waves):
    return np.roll(_SINUSOIDS(times, waves), waves[0].count, axis=1)


BREAKS = {
    "position of the actions": (policy_engines.PolicyEngines, "_place", _one_position_early),
    "actions see later ones": (policy_engines.PolicyEngines, "_place", _actions_see_later_ones),
    "pictures see the state": (policy_engines.PolicyEngines, "_place", _pictures_see_the_state),
    "cosines before sines": (denoiser, "sinusoids", _cosines_first),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_broken_mask_position_or_time_changes_the_chunk(smolvla_engines, monkeypatch, what):
    monkeypatch.setattr(*BREAKS[what])
    with PolicyRuntime(smolvla_engines["onnxruntime"], threads=1) as opened:
        assert scaled_error(compute(opened, "all").normalised, ARRAYS["all_normalised"]) > 1e-3


@pytest.mark.parametrize("what", ["positions of crossing layers", "theta", "deviation"])
def test_a_broken_layer_rotation_or_statistic_changes_the_chunk(tmp_path, monkeypatch, what):
    folder = shutil.copytree(FOLDER, tmp_path / "checkpoint")
    if what.startswith("positions"):
        monkeypatch.setattr(smolvla, "rope_constants", _shifted)
    elif what == "theta":
        monkeypatch.setattr(smolvla, "ROPE_THETA", 9_000.0)
    else:
        file = folder / "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
        statistics = load_file(file)
        save_file({**statistics, "action.std": 1.01 * statistics["action.std"]}, file)
    with PolicyRuntime(build_engine(folder, tmp_path / "engine"), threads=1) as opened:
        assert scaled_error(compute(opened, "all").rows, ARRAYS["all_actions"]) > 1e-3


_CONSTANTS = smolvla.rope_constants


def _shifted(graph, size, positions, theta):
    return _CONSTANTS(graph, size, positions + 1, theta)


def test_a_checkpoint_of_another_size_gives_the_same_under_every_lowering(tmp_path):
    folder = random_smolvla(tmp_path / "checkpoint")
    rng = np.random.default_rng(1)
    images = {name: rng.integers(0, 255, (24, 30, 3), dtype=np.uint8) for name in ("left", "right")}
    chunks = []
    for lowering in LOWERINGS:
        with PolicyRuntime(build_engine(folder, tmp_path / lowering, lowering=lowering), threads=1) as opened:
            assert opened.manifest.horizon == 5 and opened.manifest.action.width == 6
            chunks.append(opened.compute(Observation(images, np.zeros(3)), "touch the ring").rows)
    assert scaled_error(chunks[1], chunks[0]) < 1e-4 and scaled_error(chunks[2], chunks[0]) < 1e-4


STATISTICS = "policy_preprocessor_step_5_normalizer_processor.safetensors"
FIVE = {"action": {"type": "ACTION", "shape": [5]}}


def _edit(folder, name, **changes):
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**content, **changes}))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda f: (f / "vlm" / "config.json").unlink(), "does not have the dimensions of its language model 'tiny'"),
        (lambda f: (f / "vlm" / "tokenizer.json").unlink(), "has no tokenizer"),
        (lambda f: (f / STATISTICS).unlink(), "normalizer_processor"),
        (lambda f: _edit(f, "policy_preprocessor.json", steps=[]), "0 steps that normalise"),
        (lambda f: (f / "policy_preprocessor.json").unlink(), "no statistics"),
        (lambda f: _edit(f, "config.json", type="act"), "policies of type 'act' are not built"),
        (lambda f: _edit(f, "config.json", chunk_size=0), "chunk_size is 0"),
        (lambda f: _edit(f, "config.json", n_action_steps=9), "execute_steps is 9"),
        (lambda f: _edit(f, "config.json", adapt_to_pi_aloha=True), "adapt_to_pi_aloha is True"),
        (lambda f: _edit(f, "config.json", add_image_special_tokens=True), "add_image_special_tokens is True"),
        (lambda f: _edit(f, "config.json", num_expert_layers=2), "num_expert_layers is 2"),
        (lambda f: _edit(f, "config.json", max_action_dim=9), "action_in_proj"),
        (lambda f: _edit(f, "config.json", num_vlm_layers=3), "does not use"),
        (lambda f: _edit(f, "config.json", output_features=FIVE), r"shape \(4,\)"),
        (lambda f: _edit(f, "config.json", output_features={}), "'action' with shape None"),
        (lambda f: _edit(f, "config.json", expert_width_multiplier=0.5), "shape"),
    ],
)  # fmt: skip
def test_files_that_disagree_are_refused_and_nothing_is_left(tmp_path, change, sentence):
    folder = shutil.copytree(FOLDER, tmp_path / "checkpoint")
    change(folder)
    with pytest.raises(CheckpointError, match=sentence):
        build_engine(folder, tmp_path / "engine")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
