"""SmolVLA from a checkpoint to robot units, against lerobot's own chunks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from policy_checkpoints import observation, random_smolvla, reference, scaled_error
from safetensors.numpy import load_file, save_file

from edgellm_ros.action import denoiser, policy_engines
from edgellm_ros.action.noise import noise_digest, standard_normal
from edgellm_ros.action.observation import Observation
from edgellm_ros.action.policy_manifest import ActionMeaning
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.action.solver import RealTimeChunking
from edgellm_ros.builder.action_families import smolvla
from edgellm_ros.builder.build import build_engine
from edgellm_ros.errors import CheckpointError, ChunkError, ObservationError, RequestError
from edgellm_ros.vision.pruner import PruningOutcome, PruningReport, VisualPrunerConfig

FOLDER, ARRAYS, CASES = reference("smolvla")
EXACT = {name: row for name, row in CASES.items() if name != "long"}
LOWERINGS = ("onnxruntime", "tensorrt", "tensorrt_legacy")


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    root = tmp_path_factory.mktemp("smolvla")
    return {lowering: build_engine(FOLDER, root / lowering, lowering=lowering) for lowering in LOWERINGS}


@pytest.fixture(scope="module")
def runtime(engines):
    with PolicyRuntime(engines["onnxruntime"], threads=1) as opened:
        yield opened


def compute(runtime, case, **options):
    row = CASES[case]
    options = {"noise": ARRAYS[f"{case}_noise"], "denoise_steps": row["steps"], **options}
    return runtime.compute(observation(ARRAYS, case, row["cameras"], 7), row["task"], **options)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_chunks_equal_those_of_lerobot_from_picture_to_robot_units(engines, lowering):
    with PolicyRuntime(engines[lowering], threads=1) as opened:
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
def test_a_broken_mask_position_or_time_changes_the_chunk(engines, monkeypatch, what):
    monkeypatch.setattr(*BREAKS[what])
    with PolicyRuntime(engines["onnxruntime"], threads=1) as opened:
        assert scaled_error(compute(opened, "all").normalised, ARRAYS["all_normalised"]) > 1e-3


PRUNER = VisualPrunerConfig(enabled=True, reduction_ratio=0.5, min_visual_tokens=1)
CAMERAS = ("top", "wrist", "side")


def compute_pruned(opened, **options):
    options = {"noise": ARRAYS["pruned_noise"], "visual_pruner": PRUNER, **options}
    return opened.compute(observation(ARRAYS, "pruned", CAMERAS), "touch the ring", **options)


def choose(keep):
    """Stands in for the backend's choice: these rows of the prefix stay, and all words."""
    return lambda embeddings, spans, *pivots: np.append(keep, np.arange(12, embeddings.shape[0])).astype(np.int32)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_pruned_chunk_equals_one_in_which_nobody_attends_to_what_was_dropped(engines, lowering, monkeypatch):
    with PolicyRuntime(engines[lowering], threads=1) as opened:
        keep = np.setdiff1d(np.arange(12), ARRAYS["pruned_dropped"])
        monkeypatch.setattr(opened.backend, "select_tokens", choose(keep))
        chunk = compute_pruned(opened)
        assert scaled_error(chunk.normalised, ARRAYS["pruned_normalised"]) < 1e-5
        assert scaled_error(chunk.rows, ARRAYS["pruned_actions"]) < 1e-5
        assert chunk.pruning == PruningReport(PruningOutcome.APPLIED, 12, 6)
        monkeypatch.setattr(opened.backend, "select_tokens", choose(np.arange(12)))
        assert np.array_equal(compute_pruned(opened).rows, compute_pruned(opened, visual_pruner=None).rows)


def test_a_pruned_chunk_takes_tokens_of_every_camera_and_repeats(runtime):
    whole, first, second = compute_pruned(runtime, visual_pruner=None), compute_pruned(runtime), compute_pruned(runtime)
    assert np.array_equal(first.rows, second.rows) and not np.array_equal(first.rows, whole.rows)
    assert whole.pruning.outcome is PruningOutcome.OFF and first.pruning.after == 6


@pytest.mark.parametrize("what", ["positions", "actions"])
def test_positions_that_close_up_over_dropped_tokens_change_the_chunk(engines, monkeypatch, what):
    def closed(self, engine, positions, ends):
        moved = np.arange(len(positions)) if positions[0] < 12 else positions - (6 if what == "actions" else 0)
        _PLACE(self, engine, moved if what == "positions" or positions[0] >= 12 else positions, ends)

    monkeypatch.setattr(policy_engines.PolicyEngines, "_place", closed)
    with PolicyRuntime(engines["onnxruntime"], threads=1) as opened:
        monkeypatch.setattr(
            opened.backend, "select_tokens", choose(np.setdiff1d(np.arange(12), ARRAYS["pruned_dropped"]))
        )
        assert scaled_error(compute_pruned(opened).normalised, ARRAYS["pruned_normalised"]) > 1e-3


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


def test_the_same_seed_gives_the_same_bytes_in_any_order(runtime):
    def bytes_of(seed, case):
        return compute(runtime, case, noise=None, noise_seed=seed).rows.tobytes()

    first = [bytes_of(seed, case) for seed in (5, -1) for case in ("all", "steps")]
    again = [bytes_of(seed, case) for seed in (-1, 5) for case in ("steps", "all")]
    assert first == again[::-1] and len(set(first)) == 4


def test_the_seed_of_the_runtime_is_used_until_another_is_set(engines):
    with PolicyRuntime(engines["onnxruntime"], threads=1) as opened:
        shape = (opened.manifest.horizon, opened.manifest.action.padded)
        chunk = compute(opened, "all", noise=None)
        assert chunk.seed == 5 and chunk.noise_digest == noise_digest(standard_normal(5, shape))
        opened.set_action_noise_seed(-7)
        assert compute(opened, "all", noise=None).noise_digest == noise_digest(standard_normal(-7, shape))
        with pytest.raises(RequestError, match="noise seed is 2147483648"):
            opened.set_action_noise_seed(2**31)
        assert opened.noise_seed == -7


def test_a_cancel_takes_one_step_and_leaves_the_next_chunk_alone(runtime):
    asked = []

    def cancelled():
        asked.append(1)
        return len(asked) == 3

    assert compute(runtime, "all", cancelled=cancelled) is None and len(asked) == 3
    assert scaled_error(compute(runtime, "all").normalised, ARRAYS["all_normalised"]) < 1e-5


def test_guidance_holds_the_first_actions_to_what_is_committed(runtime):
    free = compute(runtime, "all", denoise_steps=10)
    committed = free.rows[2:] + 0.3
    guided = compute(runtime, "all", denoise_steps=10, chunking=RealTimeChunking(2, 4), committed=committed)
    assert np.abs(guided.rows[:2] - committed[:2]).max() < 0.3 * np.abs(free.rows[:2] - committed[:2]).max()
    agreed = compute(runtime, "all", denoise_steps=10, chunking=RealTimeChunking(2, 4), committed=free.rows)
    assert np.abs(agreed.rows[:2] - free.rows[:2]).max() < 0.2 * np.abs(free.rows).max()


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (("top",), "camera 'wrist' is missing"),
        ((), "is missing .*given: none"),
        (("top", "wrist", "side", "rear"), "no camera 'rear'; its cameras are top, wrist, side"),
    ],
)
def test_cameras_that_the_policy_cannot_do_without_are_refused(runtime, images, sentence):
    picture = np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(ObservationError, match=sentence):
        runtime.compute(Observation(dict.fromkeys(images, picture), np.zeros(5)), "touch")


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (np.zeros(4), r"shape \(4,\); the policy takes \(5,\)"),
        (np.array([0, 0, np.nan, 0, 0]), "the state of state_2 is nan"),
        (np.array([0, 0, 0, 0, -np.inf]), "the state of state_4 is -inf"),
        (np.array([0, 1e308, 0, 0, 0]), r"the state of state_1 is 1e\+308, beyond any number"),
    ],
)
def test_a_state_that_says_nothing_is_refused(runtime, state, sentence):
    with pytest.raises(ObservationError, match=sentence):
        runtime.compute(
            Observation({name: ARRAYS[f"image_{name}"] for name in CASES["all"]["cameras"]}, state), "touch"
        )


@pytest.mark.parametrize(
    "picture",
    [
        np.zeros((8, 8), np.uint8),
        np.zeros((8, 8, 4), np.uint8),
        np.zeros((8, 8, 3), np.float32),
        None,
        np.zeros((0, 8, 3), np.uint8),
        np.zeros((1, 201, 3), np.uint8),
        np.broadcast_to(np.uint8(0), (1 << 40, 1, 3)),
    ],
    ids=lambda picture: str(getattr(picture, "shape", picture)),
)
def test_a_picture_of_another_kind_is_refused(runtime, picture):
    with pytest.raises(ObservationError, match=r"picture of camera 'top' (is|has)"):
        runtime.compute(Observation({"top": picture, "wrist": picture, "side": picture}, np.zeros(5)), "touch")


@pytest.mark.parametrize(
    ("task", "sentence"),
    [("", "task is empty"), (" \n", "task is empty"), (CASES["long"]["task"], "38 tokens; the policy takes 24")],
)
def test_a_task_is_never_cut(runtime, task, sentence):
    with pytest.raises(RequestError, match=sentence):
        compute(runtime, "long") if task == CASES["long"]["task"] else runtime.encode_task(task)


@pytest.mark.parametrize("steps", [-1, 101])
def test_steps_beyond_the_policy_are_refused(runtime, steps):
    with pytest.raises(RequestError, match="denoise_steps is"):
        compute(runtime, "all", denoise_steps=steps)


@pytest.mark.parametrize("noise", [np.zeros((7, 4)), np.full((7, 8), np.nan)])
def test_noise_of_another_shape_or_without_numbers_is_refused(runtime, noise):
    with pytest.raises(ObservationError, match="noise has shape"):
        compute(runtime, "all", noise=noise)


def test_an_engine_that_gives_no_numbers_moves_nothing(runtime, monkeypatch):
    noise = np.full((7, 8), 3e38, np.float32)
    with pytest.raises(ChunkError, match="finite"):
        compute(runtime, "all", noise=noise)
    assert scaled_error(compute(runtime, "all").normalised, ARRAYS["all_normalised"]) < 1e-5


def test_settings_name_the_numbers_and_their_meaning(tmp_path):
    settings = tmp_path / "robot.yaml"
    settings.write_text(
        "meaning: joint_position\nstep_time: 0.05\n"
        "action: {names: [pan, lift, elbow, grip], units: [rad, rad, rad, m]}\n"
    )
    path = build_engine(FOLDER, tmp_path / "engine", policy_settings=settings)
    with PolicyRuntime(path, threads=1) as opened:
        assert opened.manifest.meaning is ActionMeaning.JOINT_POSITION and opened.manifest.step_time == 0.05
        chunk = compute(opened, "all")
        assert chunk.names == ("pan", "lift", "elbow", "grip") and chunk.units[-1] == "m" and chunk.step == 50_000_000


def test_settings_beside_the_checkpoint_are_read_where_no_others_are_named(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "policy")
    (tmp_path / "policy" / "policy_settings.yaml").write_text("meaning: joint_position\n")
    (tmp_path / "robot.yaml").write_text("meaning: twist\n")
    for given, meaning in ((None, ActionMeaning.JOINT_POSITION), (tmp_path / "robot.yaml", ActionMeaning.TWIST)):
        path = build_engine(tmp_path / "policy", tmp_path / meaning.value, policy_settings=given)
        with PolicyRuntime(path, threads=1) as opened:
            assert opened.manifest.meaning is meaning


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("meaning: flight\n", "'flight' is not a valid ActionMeaning"),
        ("action: {names: [a, b]}\n", "2 action names; the checkpoint has 4"),
        ("speed: 3\n", "want the keys meaning, step_time"),
        ("step_time: .nan\n", "step_time is nan"),
        ("state: [1]\n", "state is"),
        ("a: [\n", "cannot be read as YAML"),
        pytest.param("[" * 10000, "cannot be read as YAML", id="deep"),
        ("state: &all {names: [a]}\naction: *all\n", "repeats a part by an alias"),
        pytest.param("#" * (2 << 20), "bytes; want at most", id="long"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, text, sentence):
    (tmp_path / "robot.yaml").write_text(text)
    with pytest.raises(CheckpointError, match=sentence):
        build_engine(FOLDER, tmp_path / "engine", policy_settings=tmp_path / "robot.yaml")


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


@pytest.mark.parametrize("stored", ["all", "missing"])
def test_the_command_prints_the_chunk(engines, tmp_path, stored):
    row = CASES[stored]
    images = {f"observation.images.{name}": ARRAYS[f"image_{name}"] for name in row["cameras"]}
    np.savez(tmp_path / "obs.npz", state=ARRAYS[f"{stored}_state"], **images)
    np.save(tmp_path / "x0.npy", ARRAYS[f"{stored}_noise"])
    command = [
        sys.executable,
        "-m",
        "edgellm_ros.cli.main",
        "act",
        str(engines["onnxruntime"]),
        "--json",
        "--threads",
        "1",
    ]
    command += ["--observation", str(tmp_path / "obs.npz"), "--task", row["task"], "--noise", str(tmp_path / "x0.npy")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)
    assert scaled_error(np.array(printed["actions"]), ARRAYS[f"{stored}_actions"]) < 1e-5
    assert scaled_error(np.array(printed["actions_normalized"]), ARRAYS[f"{stored}_normalised"]) < 1e-5
    assert printed["x0_digest"] == noise_digest(ARRAYS[f"{stored}_noise"]) and printed["timings"]["total_ms"] > 0


def test_the_command_refuses_bad_files_in_one_sentence(engines, tmp_path, capsys):
    from edgellm_ros.cli.main import main

    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "empty.npz", other=np.zeros(3))
    np.savez(tmp_path / "words.npz", state=np.array(["a"] * 5))
    np.savez(tmp_path / "objects.npz", state=np.array([{}], dtype=object))
    for name in ("text", "empty", "words", "objects", "missing"):
        path = tmp_path / f"{name}.npz"
        assert main(["act", str(engines["onnxruntime"]), "--observation", str(path), "--task", "touch"]) == 2, name
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "pickle" not in said, said
    assert main(["act", str(tmp_path), "--observation", str(tmp_path / "empty.npz")]) == 2
