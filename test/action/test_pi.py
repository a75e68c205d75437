"""pi0 and pi0.5 from a checkpoint to robot units, against lerobot's own chunks."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from policy_checkpoints import observation, reference, scaled_error
from safetensors.numpy import load_file, save_file

from edgellm_ros.action import denoiser, policy_engines, prompt
from edgellm_ros.action.policy_manifest import StateInput, SuffixMask
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.builder.build import build_engine
from edgellm_ros.errors import CheckpointError, ObservationError, RequestError

FAMILIES = ("pi0", "pi05")
LOWERINGS = ("onnxruntime", "tensorrt", "tensorrt_legacy")
SETTINGS = "optional_cameras: [wrist]\n"


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    root = tmp_path_factory.mktemp("pi")
    (root / "robot.yaml").write_text(SETTINGS)
    return {
        (family, lowering): build_engine(
            reference(family)[0], root / f"{family}_{lowering}", lowering=lowering, policy_settings=root / "robot.yaml"
        )
        for family in FAMILIES
        for lowering in LOWERINGS
    }


def compute(runtime, family, case, **options):
    _, arrays, cases = reference(family)
    row = cases[case]
    options = {"noise": arrays[f"{case}_noise"], "denoise_steps": row["steps"], **options}
    return runtime.compute(observation(arrays, case, row["cameras"], 7), row["task"], **options)


def error(path, family, case="all", what="actions"):
    with PolicyRuntime(path, threads=1) as opened:
        chunk = compute(opened, family, case)
    found = chunk.rows if what == "actions" else chunk.normalised
    return scaled_error(found, reference(family)[1][f"{case}_{what}"])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_chunks_equal_those_of_lerobot_from_picture_to_robot_units(engines, family, lowering):
    for case in reference(family)[2]:
        for what in ("normalised", "actions"):
            assert error(engines[family, lowering], family, case, what) < 1e-5, (case, what)


def test_which_of_the_two_it_is_the_tensors_say(engines, tmp_path):
    with PolicyRuntime(engines["pi0", "onnxruntime"], threads=1) as opened:
        assert opened.manifest.state_input is StateInput.SUFFIX_TOKEN
        assert opened.manifest.suffix_mask is SuffixMask.STATE_BLIND
    with PolicyRuntime(engines["pi05", "onnxruntime"], threads=1) as opened:
        assert opened.manifest.state_input is StateInput.PROMPT_BINS and opened.manifest.suffix_mask is SuffixMask.FULL
    folder = shutil.copytree(reference("pi0")[0], tmp_path / "checkpoint")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "type": "pi05"}))
    with pytest.raises(CheckpointError, match="says that the policy is 'pi05'; its tensors are those of 'pi0'"):
        build_engine(folder, tmp_path / "engine")


@pytest.mark.parametrize("extra", ["time_mlp_in.weight", None])
def test_tensors_of_both_kinds_or_of_neither_are_refused(tmp_path, extra):
    folder = shutil.copytree(reference("pi0")[0], tmp_path / "checkpoint")
    weights = load_file(folder / "model.safetensors")
    if extra is None:
        del weights["model.state_proj.weight"]
    else:
        weights[f"model.{extra}"] = np.zeros((24, 24), np.float32)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="both time_mlp_in and state_proj" if extra else "neither"):
        build_engine(folder, tmp_path / "engine")


@pytest.mark.parametrize("family", FAMILIES)
def test_names_without_the_common_prefix_and_a_table_under_its_own_name_are_read(tmp_path, family):
    folder = shutil.copytree(reference(family)[0], tmp_path / "checkpoint")
    weights = {name.removeprefix("model."): value for name, value in load_file(folder / "model.safetensors").items()}
    table = weights.pop("paligemma_with_expert.paligemma.lm_head.weight")
    weights["paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"] = table
    weights["paligemma_with_expert.gemma_expert.lm_head.weight"] = np.zeros((3, 24), np.float32)  # never used
    save_file(weights, folder / "model.safetensors")
    assert error(build_engine(folder, tmp_path / "engine"), family) < 1e-5


_PLACE = policy_engines.PolicyEngines._place


def _one_position_early(self, engine, positions, ends):
    _PLACE(self, engine, positions - bool(positions[0]), ends)


def _causal(self, engine, positions, ends):
    _PLACE(self, engine, positions, positions + 1 if positions[0] else ends)


def _state_sees_actions(self, engine, positions, ends):
    _PLACE(self, engine, positions, np.full_like(ends, ends.max()))


def _bins_one_up(state):
    return _BINS(state) + 1


_BINS = prompt.state_bins


@pytest.mark.parametrize(
    ("family", "owner", "name", "change"),
    [
        ("pi0", policy_engines.PolicyEngines, "_place", _one_position_early),
        ("pi0", policy_engines.PolicyEngines, "_place", _causal),
        ("pi0", policy_engines.PolicyEngines, "_place", _state_sees_actions),
        ("pi05", policy_engines.PolicyEngines, "_place", _one_position_early),
        ("pi05", policy_engines.PolicyEngines, "_place", _causal),
        ("pi05", prompt, "state_bins", _bins_one_up),
        (
            "pi05",
            denoiser,
            "sinusoids",
            lambda times, waves: np.zeros((len(times), 2 * waves[0].count), np.float32),
        ),
    ],
)
def test_a_broken_mask_position_bin_or_time_changes_the_chunk(engines, monkeypatch, family, owner, name, change):
    monkeypatch.setattr(owner, name, change)
    assert error(engines[family, "onnxruntime"], family) > 1e-3


@pytest.mark.parametrize("site", ["layers.0.input_layernorm", "layers.2.post_attention_layernorm", "norm"])
@pytest.mark.parametrize("part", ["scale", "shift", "gate"])
def test_every_part_of_every_adaptive_norm_counts(tmp_path, site, part):
    folder = shutil.copytree(reference("pi05")[0], tmp_path / "checkpoint")
    weights = load_file(folder / "model.safetensors")
    bias = weights[f"model.paligemma_with_expert.gemma_expert.model.{site}.dense.bias"]
    start = 24 * ["scale", "shift", "gate"].index(part)
    bias[start : start + 24] += 0.5
    save_file(weights, folder / "model.safetensors")
    changed = error(build_engine(folder, tmp_path / "engine"), "pi05") > 1e-3
    assert changed == (not (site == "norm" and part == "gate"))  # nothing is added after the last norm


def test_the_state_is_read_in_bins_of_which_the_lowest_lies_below_the_range():
    assert prompt.state_bins(np.array([-1.5, -1.0, -0.9999, 0.0, 0.9999, 1.0, 7.0])).tolist() == [
        -1, 0, 0, 128, 255, 255, 255
    ]  # fmt: skip


def test_a_long_prompt_is_refused_with_the_counts(engines):
    with (
        PolicyRuntime(engines["pi05", "onnxruntime"], threads=1) as opened,
        pytest.raises(RequestError, match=r"the task has \d+ tokens; the policy takes 60"),
    ):
        opened.encode_task("open the drawer " * 20, np.zeros(4))


def test_cameras_are_required_unless_the_settings_say_otherwise(engines, tmp_path):
    path = build_engine(reference("pi0")[0], tmp_path / "strict")
    with PolicyRuntime(path, threads=1) as opened, pytest.raises(ObservationError, match="camera 'wrist' is missing"):
        compute(opened, "pi0", "missing")
    (tmp_path / "robot.yaml").write_text("optional_cameras: [rear]\n")
    with pytest.raises(CheckpointError, match="optional camera 'rear'; the policy's cameras are base, wrist"):
        build_engine(reference("pi0")[0], tmp_path / "other", policy_settings=tmp_path / "robot.yaml")


def test_a_published_configuration_without_statistics_is_refused_by_name(tmp_path):
    folder = shutil.copytree(reference("pi05")[0], tmp_path / "checkpoint")
    steps = json.loads((folder / "policy_preprocessor.json").read_text())
    for step in steps["steps"]:
        step.pop("state_file", None)
    (folder / "policy_preprocessor.json").write_text(json.dumps(steps))
    with pytest.raises(CheckpointError, match="names no file of statistics; take a checkpoint that was trained"):
        build_engine(folder, tmp_path / "engine")


def test_steps_that_depend_on_time_alone_are_computed_once(engines, monkeypatch):
    with PolicyRuntime(engines["pi05", "onnxruntime"], threads=1) as opened:
        made = []
        original = opened._engines.time_tensor
        monkeypatch.setattr(opened._engines, "time_tensor", lambda row: made.append(1) or original(row))
        for _ in range(3):
            compute(opened, "pi05", "all")
        assert len(made) == 5
