"""GR00T N1.7 from a checkpoint to robot units, against lerobot's own chunks."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from policy_checkpoints import observation, reference, scaled_error
from safetensors.numpy import load_file, save_file

from edgellm_ros.action import context_engines, denoiser
from edgellm_ros.action.normalization import EpsilonRule
from edgellm_ros.action.observation import Observation
from edgellm_ros.action.policy_manifest import Handoff, ImageFit
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.builder.action_families import groot
from edgellm_ros.builder.build import build_engine
from edgellm_ros.errors import CheckpointError, ChunkError, RequestError

FOLDER, ARRAYS, CASES = reference("groot")
LOWERINGS = ("onnxruntime", "tensorrt", "tensorrt_legacy")
HEAD = "model-00002-of-00002.safetensors"


def build(folder, root, embodiment="libero_sim", **options):
    (root / f"{embodiment}.yaml").write_text(f"embodiment: {embodiment}\n")
    return build_engine(folder, root / f"engine_{embodiment}", policy_settings=root / f"{embodiment}.yaml", **options)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return build(FOLDER, tmp_path_factory.mktemp("groot"))


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(FOLDER, tmp_path / "checkpoint")


def compute(path, case="all", **options):
    row = CASES[case]
    options = {"noise": ARRAYS[f"{case}_noise"], "denoise_steps": row["steps"], **options}
    with PolicyRuntime(path, threads=1) as opened:
        return opened.compute(observation(ARRAYS, case, row["cameras"], 7), row["task"], **options)


def error(path, case="all"):
    return scaled_error(compute(path, case).normalised, ARRAYS[f"{case}_normalised"])


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("embodiment", ["libero_sim", "other_arm"])
def test_chunks_equal_those_of_lerobot_from_picture_to_robot_units(tmp_path, embodiment, lowering):
    path = build(FOLDER, tmp_path, embodiment, lowering=lowering)
    for case, row in CASES.items():
        if row["embodiment"] == embodiment:
            chunk = compute(path, case)
            assert scaled_error(chunk.normalised, ARRAYS[f"{case}_normalised"]) < 1e-5
            assert scaled_error(chunk.rows, ARRAYS[f"{case}_actions"]) < 1e-5


@pytest.mark.parametrize(("lowering", "precision"), [("onnxruntime", "fp16"), ("tensorrt", "fp16")])
def test_half_the_bits_stay_near(tmp_path, lowering, precision):
    found = compute(build(FOLDER, tmp_path, lowering=lowering, precision=precision)).normalised.ravel()
    wanted = ARRAYS["all_normalised"].ravel()
    assert found @ wanted / np.linalg.norm(found) / np.linalg.norm(wanted) > 0.9999


def test_eight_bits_stay_near(tmp_path):
    assert error(build(FOLDER, tmp_path, precision="int8")) < 0.1


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_number_that_is_not_finite_is_not_held_within_the_range(engine, monkeypatch, bad):
    def step(self):
        self.velocity.write(np.full(self.velocity.shape, bad, np.float32))

    monkeypatch.setattr(context_engines.ContextEngines, "run_step", step)
    with pytest.raises(ChunkError, match=r"numbers are not finite\); it is dropped"):
        compute(engine)


def test_the_manifest_tells_what_the_files_say(engine):
    with PolicyRuntime(engine, threads=1) as opened:
        manifest = opened.manifest
    assert (manifest.handoff, manifest.image_fit) == (Handoff.CONTEXT, ImageFit.PROCESSOR)
    assert (manifest.horizon, manifest.rows, manifest.denoise_steps, manifest.time_buckets) == (5, 7, 4, 1000)
    assert manifest.state.names == ("x", "yaw", "gripper_0", "gripper_1") and manifest.embodiment == "libero_sim"
    assert [slot.name for slot in manifest.cameras] == ["head", "wrist"] and manifest.image_crop == 0.9
    assert manifest.action.normalization.clip and manifest.action.normalization.rule is EpsilonRule.MIDDLE


def test_the_task_stands_between_its_marks_and_cannot_write_any(engine):
    with PolicyRuntime(engine, threads=1) as opened:
        assert opened.encode_task("<|im_end|>") == opened.encode_task("im_end")
        with pytest.raises(RequestError, match=r"the task has \d+ tokens; the policy takes 256"):
            opened.encode_task("open the drawer " * 100)


def test_cameras_of_other_sizes_and_longer_tasks_find_room(engine):
    noise = ARRAYS["all_noise"]
    with PolicyRuntime(engine, threads=1) as opened:
        for height, task in ((40, "go"), (90, "open the drawer of the cabinet"), (40, "go")):
            images = {"head": np.zeros((height, 50, 3), np.uint8), "wrist": np.full((36, 36, 3), 90, np.uint8)}
            chunk = opened.compute(Observation(images, ARRAYS["all_state"]), task, noise=noise)
            if height == 40:
                first = chunk if task == "go" and "first" not in locals() else first  # noqa: F821
        assert np.array_equal(first.rows, chunk.rows)  # what was longer in between left nothing behind


_ROTATE, _WAVES = context_engines.ContextEngines._rotate, denoiser.sinusoids


def _columns_as_rows(self, positions):
    _ROTATE(self, positions[[0, 2, 1]])


def _one_axis(self, positions):
    _ROTATE(self, np.broadcast_to(np.arange(positions.shape[1], dtype=np.int32), positions.shape))


def _all_seen(self, length):
    return np.full((1, length), length, np.int32)


def _sines_of_the_transformer_first(times, waves):
    return _WAVES(times, (waves[0], type(waves[1])(waves[1].count, waves[1].first, waves[1].last)))


def _one_step_late(times, waves):
    return _WAVES(times + 250.0, waves)


ENGINES = context_engines.ContextEngines


@pytest.mark.parametrize(
    ("owner", "name", "change"),
    [
        (ENGINES, "_rotate", _columns_as_rows),
        (ENGINES, "_rotate", _one_axis),
        (ENGINES, "_ends", _all_seen),
        (context_engines, "cropped", lambda image, edge, share: context_engines._shortest(image, edge)),
        (denoiser, "sinusoids", _sines_of_the_transformer_first),
        (denoiser, "sinusoids", _one_step_late),
    ],
)
def test_a_broken_position_mask_crop_or_time_changes_the_chunk(engine, monkeypatch, owner, name, change):
    monkeypatch.setattr(owner, name, change)
    assert error(engine) > 1e-4  # what is right lies within 2e-6


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("looks_back", lambda self, layer: None if layer % 2 else ("image" if layer % 4 == 0 else "text")),
        ("EPSILON", 1e-1),
        ("LAST_EPSILON", 1.0),
    ],
)
def test_layers_look_at_words_and_pictures_in_turn_and_norms_have_their_epsilon(tmp_path, monkeypatch, name, change):
    monkeypatch.setattr(groot.GrootConfig if callable(change) else groot, name, change)
    assert error(build(FOLDER, tmp_path)) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "action_head.vlln.bias",
        "action_head.position_embedding.weight",
        "action_head.state_encoder.layer1.b",
        "action_head.action_encoder.W2.b",
        "action_head.action_decoder.layer2.W",
        "action_head.model.proj_out_1.bias",
        "action_head.model.transformer_blocks.5.norm1.linear.bias",
        "action_head.vl_self_attention.transformer_blocks.1.norm3.bias",
    ],
)
def test_every_kind_of_weight_counts_and_only_those_of_the_robot(copy, tmp_path, name):
    weights = load_file(copy / HEAD)
    stacked = name.endswith((".W", ".b"))
    for index in (1, 2) if stacked else (0,):
        changed = {key: value.copy() for key, value in weights.items()}
        place = changed[name][index] if stacked else changed[name]
        place += np.asarray(0.25 * np.cos(np.arange(place.size)).reshape(place.shape), place.dtype)
        save_file(changed, copy / HEAD)
        assert (error(build(copy, tmp_path)) > 1e-4) == (not stacked or index == 2)


def edited(folder, file, change):
    content = json.loads((folder / file).read_text())
    change(content)
    (folder / file).write_text(json.dumps(content))


def test_a_statistic_decides_where_the_robot_goes(copy, tmp_path):
    edited(copy, "statistics.json", lambda all_of_them: all_of_them["libero_sim"]["action"]["x"].update(q99=[9.0]))
    chunk = compute(build(copy, tmp_path))
    assert scaled_error(chunk.rows, ARRAYS["all_actions"]) > 1e-3
    edited(copy, "statistics.json", lambda all_of_them: all_of_them["libero_sim"]["state"]["x"].update(q99=[9.0]))
    assert error(build(copy, tmp_path)) > 1e-4


def test_relative_actions_are_added_to_the_state_of_their_place(copy, tmp_path):
    def change(content):
        robot = content["processor_kwargs"]["modality_configs"]["libero_sim"]
        robot["action"]["action_configs"][0] = {"rep": "RELATIVE", "type": "NON_EEF", "format": "DEFAULT"}

    edited(copy, "processor_config.json", change)
    with pytest.raises(CheckpointError, match="lacks min and max of relative_action 'x'"):
        build(copy, tmp_path)
    edited(
        copy,
        "statistics.json",
        lambda rows: rows["libero_sim"].update(relative_action={"x": {"min": [-1.0], "max": [1.0]}}),
    )
    chunk = compute(build(copy, tmp_path))
    wanted = np.clip(ARRAYS["all_normalised"][:, 0], -1, 1) + ARRAYS["all_state"][0]
    assert np.abs(chunk.rows[:, 0] - wanted).max() < 1e-5


def _robot(key, value, part=None):
    def change(content):
        kwargs = content["processor_kwargs"]
        (kwargs if part is None else kwargs["modality_configs"]["libero_sim"][part])[key] = value

    return "processor_config.json", change


REFUSED = {
    "a pose": (
        _robot("action_configs", [{"rep": "RELATIVE", "type": "EEF", "format": "XYZ_ROT6D"}] * 3, "action"),
        "the action 'x' of libero_sim is a pose relative to the hand's",
    ),
    "sines of the state": (_robot("sin_cos_embedding_keys", ["yaw"], "state"), "sin_cos_embedding_keys for"),
    "several frames": (_robot("delta_indices", [-1, 0], "video"), "reads video at several times"),
    "too far": (_robot("delta_indices", list(range(8)), "action"), "has 8 actions for libero_sim; the network gives 7"),
    "mean and deviation": (_robot("use_mean_std", True), "use_mean_std is True; want False"),
    "another resize": (_robot("use_albumentations", False), "use_albumentations is False; want True"),
    "no statistics": (("statistics.json", lambda rows: rows.pop("libero_sim")), "has no statistics of libero_sim"),
    "statistics of steps": (
        ("statistics.json", lambda rows: rows["libero_sim"]["action"]["x"].update(q01=[[0.0]])),
        "statistics of every step are not built",
    ),
    "a robot beyond the table": (
        ("embodiment_id.json", lambda ids: ids.update(libero_sim=4)),
        "libero_sim is 4; want a whole number from 0 to 3",
    ),
    "a plain transformer": (
        ("config.json", lambda config: config.update(use_alternate_vl_dit=False)),
        "use_alternate_vl_dit is False",
    ),
    "another width": (
        ("config.json", lambda config: config.update(backbone_embedding_dim=64)),
        "backbone_embedding_dim is 64; its neighbours want 32",
    ),
    "layers beyond the backbone": (("config.json", lambda config: config.update(select_layer=5)), "select_layer is 5"),
    "one layer more than is stored": (
        ("config.json", lambda config: config.update(select_layer=4)),
        "lacks",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_built_is_refused_by_name(copy, tmp_path, what):
    (file, change), sentence = REFUSED[what]
    edited(copy, file, change)
    with pytest.raises(CheckpointError, match=sentence):
        build(copy, tmp_path)


def test_one_robot_of_several_must_be_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"for 2 robots .* want one of libero_sim, other_arm"):
        build_engine(FOLDER, tmp_path / "engine")


def test_a_checkpoint_of_other_sizes_needs_no_other_code(copy, tmp_path):
    """Layers that are not stored are not needed where fewer are kept: another cut of the same file."""
    edited(copy, "config.json", lambda config: config.update(select_layer=2, num_inference_timesteps=2))
    path = build(copy, tmp_path)
    with PolicyRuntime(path, threads=1) as opened:
        assert opened.manifest.denoise_steps == 2
    assert error(path) > 1e-3
