"""Alpamayo-R1 from a checkpoint to a path: pictures, a history, words, waypoints; against written-out mathematics."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from policy_checkpoints import reference, scaled_error
from safetensors.numpy import load_file, save_file

from edgellm_ros.action import denoiser, policy_runtime, reasoning_engines
from edgellm_ros.action.kinematics import initial_speed, integrate_unicycle
from edgellm_ros.action.observation import Observation
from edgellm_ros.action.policy_manifest import ActionMeaning, PolicyManifest, read_policy_manifest
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.backends.base import SamplingRow
from edgellm_ros.builder.action_families import alpamayo
from edgellm_ros.builder.build import build_engine
from edgellm_ros.errors import CheckpointError, ChunkError, ObservationError, PolicyError, RequestError

FOLDER, ARRAYS, CASES = reference("alpamayo")
LOWERINGS = ("onnxruntime", "tensorrt", "tensorrt_legacy")
CAMERAS = CASES["all"]["cameras"]
ENGINES = reasoning_engines.ReasoningEngines


def observed(**changes):
    images = dict(zip(CAMERAS, ARRAYS["images"], strict=True))
    fields = {"images": images, "state": np.zeros(0), "stamp": 7, "history": ARRAYS["history"], **changes}
    return Observation(**fields)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return build_engine(FOLDER, tmp_path_factory.mktemp("alpamayo") / "engine")


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(FOLDER, tmp_path / "checkpoint")


def compute(path, case="all", *, given=None, temperature=0.0, **options):
    options = {"noise": ARRAYS[f"{case}_noise"], "denoise_steps": CASES[case]["steps"], **options}
    with PolicyRuntime(path, threads=1) as opened:
        opened.reasoning_sampling = SamplingRow(temperature)
        return opened.compute(given or observed(), "", **options)


def error(path, case="all"):
    return scaled_error(compute(path, case).normalised, ARRAYS[f"{case}_normalised"])


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_waypoints_equal_the_written_out_mathematics_from_pictures_and_history(tmp_path, lowering):
    path = build_engine(FOLDER, tmp_path / "engine", lowering=lowering)
    for case in CASES:
        assert error(path, case) < 1e-5


@pytest.mark.parametrize(("lowering", "precision"), [("onnxruntime", "fp16"), ("tensorrt", "fp16")])
def test_half_the_bits_stay_near(tmp_path, lowering, precision):
    path = build_engine(FOLDER, tmp_path / "engine", lowering=lowering, precision=precision)
    found, wanted = compute(path).normalised.ravel(), ARRAYS["all_normalised"].ravel()
    assert found @ wanted / np.linalg.norm(found) / np.linalg.norm(wanted) > 0.9999


def test_eight_bits_stay_near(tmp_path):
    assert error(build_engine(FOLDER, tmp_path / "engine", precision="int8")) < 0.1


def test_the_prompt_and_the_reasoning_are_those_of_the_reference(engine):
    with PolicyRuntime(engine, threads=1) as opened:
        engines, pieces, decoded = opened._engines, [], []
        engines.encode_images(engines.fit([image for camera in ARRAYS["images"] for image in camera]))
        ids = engines.prompt(opened.encode_task(""), ARRAYS["history"])
        assert ids == ARRAYS["prompt_ids"].tolist()
        decode = engines._executor.decode
        engines._executor.decode = lambda tokens, lengths: decoded.append((tokens, lengths)) or decode(tokens, lengths)
        opened.reasoning_sampling = SamplingRow()
        chunk = opened.compute(observed(), "", noise=ARRAYS["all_noise"], on_text=pieces.append)
        text = b"".join(opened.tokenizer.token_bytes(int(token)) for token in ARRAYS["said"])
    assert "".join(pieces) == chunk.reasoning == text.decode(errors="replace") and len(pieces) > 1
    start = len(ids)
    fed = [*ARRAYS["said"].tolist(), int(ARRAYS["marker"])]  # the marker too, so that its keys are there
    assert decoded == [([token], [start + index]) for index, token in enumerate(fed)]
    assert (engines._length, engines._next_position) == (start + len(fed), int(ARRAYS["position"]))


def test_the_path_follows_from_the_actions_and_the_history(engine):
    chunk = compute(engine)
    scale, mean = np.array([0.7, 0.026]), np.array([0.03, 0.0003])
    assert np.abs(chunk.rows - (ARRAYS["all_normalised"] * scale + mean)).max() < 1e-5
    speed = initial_speed(ARRAYS["history"])
    wanted = integrate_unicycle(chunk.rows[:, 0], chunk.rows[:, 1], speed, 0.1, ARRAYS["history"][-1, 2])
    assert np.array_equal(chunk.path.positions, wanted.positions) and len(chunk.path.headings) == 6
    assert 3 < chunk.path.speeds[0] < 7


def test_the_manifest_tells_what_the_files_say(engine):
    with PolicyRuntime(engine, threads=1) as opened:
        manifest = opened.manifest
        assert opened.reasoning_sampling == SamplingRow(0.6, top_p=0.98)
        limits = opened._engines._executor.limits  # what a prompt needs, or all that the model has
        assert (limits.max_batch_size, limits.max_input_len, limits.max_kv_cache_capacity) == (1, 512, 512)
    assert manifest.meaning is ActionMeaning.ACCELERATION_CURVATURE and manifest.horizon == 6
    assert [slot.name for slot in manifest.cameras] == CAMERAS and manifest.state.width == 0
    assert manifest.driving.history.first_token == manifest.driving.silent[0] + 40
    assert PolicyManifest.from_json(manifest.to_json()) == manifest


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d.pop("marker"), "lacks the key|bad value"),
        (lambda d: d.update(frames=0), "frames is 0"),
        (lambda d: d.update(silent=[5]), "bad value"),
        (lambda d: d.update(top_p=-1.0), "top_p is -1.0"),
        (lambda d: d["history"].update(bins=1), "history tokens have 1 bins"),
        (lambda d: d["history"].update(first_token="7"), "first_token is '7'"),
        (lambda d: d["history"].update(bins=2.5), "bins is 2.5"),
        (lambda d: d["history"].update(low=[0.0, float("nan"), 0.0]), "a limit of the history is nan"),
    ],
)
def test_a_damaged_manifest_is_refused_by_what_is_wrong(engine, change, sentence):
    content = json.loads((engine / "action" / "policy.json").read_text())
    change(content["driving"])
    with pytest.raises(PolicyError, match=sentence):
        PolicyManifest.from_json(content)


def test_waves_of_another_network_are_refused(engine, monkeypatch):
    found = read_policy_manifest(engine / "action")
    other = replace(found, time_waves=(replace(found.time_waves[0], count=3),))
    monkeypatch.setattr(policy_runtime, "read_policy_manifest", lambda directory: other)
    with pytest.raises(PolicyError, match="time_waves give 6 numbers; the engine takes"):
        compute(engine)


@pytest.mark.parametrize("scale", [1e3, 1e200, 1e307])
def test_a_way_that_no_vehicle_drives_gives_no_path(engine, scale):
    with pytest.raises(ChunkError, match=r"say a speed of .* m/s; want 100 at most: check the odometry"):
        compute(engine, given=observed(history=ARRAYS["history"] * scale))


def test_words_are_drawn_by_the_seed_and_never_from_the_trajectories(engine):
    with PolicyRuntime(engine, threads=1) as opened:
        opened.reasoning_sampling = SamplingRow(5.0)  # nearly every token as likely as any other
        first, same, other = (
            opened.compute(observed(), "", noise_seed=seed, denoise_steps=1).reasoning for seed in (1, 1, 2)
        )
        words = opened.tokenizer.encode(first)
    start, count = opened.manifest.driving.silent
    assert first == same != other and words and not any(start <= word < start + count for word in words)


def test_a_reasoning_without_an_end_is_ended_with_the_marker_and_a_cancel_stops_it(engine, monkeypatch):
    with PolicyRuntime(engine, threads=1) as opened:
        engines = opened._engines
        monkeypatch.setattr(engines, "_ends_of_text", set())
        opened.compute(observed(), "", denoise_steps=1)
        capacity = engines._executor.limits.max_kv_cache_capacity  # which is less than the policy's own limit
        assert engines._length == capacity < len(ARRAYS["prompt_ids"]) + opened.manifest.driving.reasoning_tokens
        assert opened.compute(observed(), "", cancelled=lambda: True) is None
        assert opened.compute(observed(), "", denoise_steps=1) is not None


_PLACE, _KEEP = ENGINES._place, ENGINES._keep


def _without_the_marker(self, length, delta):
    _KEEP(self, length, delta)
    self._length -= 1


@pytest.mark.parametrize(
    ("owner", "name", "change"),
    [
        (ENGINES, "_place", lambda self, engine, positions, ends: _PLACE(self, engine, positions - 1, ends)),
        (ENGINES, "_keep", lambda self, length, delta: _KEEP(self, length, 0)),
        (ENGINES, "_keep", _without_the_marker),
        (
            ENGINES,
            "_place",
            lambda self, engine, positions, ends: _PLACE(self, engine, positions, ends - len(ends) + 1 + np.arange(6)),
        ),
        (denoiser, "sinusoids", lambda times, waves: np.zeros((len(times), 2 * waves[0].count), np.float32)),
    ],
)
def test_a_broken_position_marker_mask_or_time_changes_the_waypoints(engine, monkeypatch, owner, name, change):
    monkeypatch.setattr(owner, name, change)
    assert error(engine) > 1e-4


@pytest.mark.parametrize(("name", "change"), [("ENTRY_EPSILON", 1.0), ("NORM_EPSILON", 1.0)])
def test_norms_of_the_way_in_have_their_epsilon(tmp_path, monkeypatch, name, change):
    monkeypatch.setattr(alpamayo, name, change)
    assert error(build_engine(FOLDER, tmp_path / "engine")) > 1e-4


def test_every_moved_point_of_the_history_counts(engine):
    moved = ARRAYS["history"].copy()
    moved[3, 1] += 0.1
    chunk = compute(engine, given=observed(history=moved))
    assert scaled_error(chunk.normalised, ARRAYS["all_normalised"]) > 1e-4


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"history": None}, "give the history of its positions"),
        ({"history": np.zeros((8, 3))}, r"this policy takes \(16, 3\)"),
        (
            {"images": dict.fromkeys(CAMERAS, np.zeros((16, 24, 3), np.uint8))},
            r"want uint8 RGB \[4, height, width, 3\]",
        ),
        ({"images": {CAMERAS[0]: ARRAYS["images"][0]}}, "camera 'front_wide' is missing"),
        ({"state": np.zeros(2)}, "the state has shape"),
    ],
)
def test_observations_that_do_not_fit_are_refused(engine, changes, sentence):
    with pytest.raises(ObservationError, match=sentence):
        compute(engine, given=observed(**changes))


def test_a_prompt_beyond_the_engine_is_refused_with_the_numbers(tmp_path):
    from edgellm_ros.engine_format import BuilderLimits

    path = build_engine(FOLDER, tmp_path / "engine", limits=BuilderLimits(1, 128, 200))
    with pytest.raises(RequestError, match="the prompt has 268 tokens; the engine takes 128 and caches 200"):
        compute(path)


def edited(folder, change):
    content = json.loads((folder / "config.json").read_text())
    change(content)
    (folder / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c.update(expert_non_causal_attention=False), "waypoints see each other"),
        (lambda c: c["expert_cfg"].update(num_key_value_heads=4), "the language model's cache has 2"),
        (lambda c: c["diffusion_cfg"].update(int_method="heun"), "int_method is 'heun'"),
        (lambda c: c["traj_token_ids"].update(history=5), r"traj_token_ids.history is 5 where the tokenizer gives"),
        (lambda c: c.update(tokens_per_history_traj=64), "want x, y, z of 16 points"),
        (lambda c: c["expert_cfg"].update(hidden_size=32), r"needs the tensor 'action_in_proj.norm.weight' of shape"),
        (lambda c: c.update(vlm_name_or_path="x", vocab_size=1300), "vocab_size is 1300; the tokenizer has"),
    ],
)
def test_what_is_not_built_is_refused_by_name(copy, tmp_path, change, sentence):
    edited(copy, change)
    with pytest.raises(CheckpointError, match=sentence):
        build_engine(copy, tmp_path / "engine")


def test_a_statistic_decides_the_acceleration(copy, tmp_path):
    edited(copy, lambda config: config["action_space_cfg"].update(accel_std=1.4))
    chunk, plain = compute(build_engine(copy, tmp_path / "engine")), ARRAYS["all_normalised"][:, 0] * 0.7
    assert np.abs(chunk.rows[:, 0] - 0.03 - 2 * plain).max() < 1e-5
    edited(copy, lambda config: config["action_space_cfg"].update(accel_bounds=[-0.5, 0.5]))
    chunk = compute(build_engine(copy, tmp_path / "engine"))
    assert np.abs(chunk.rows[:, 0]).max() == 0.5


def test_fewer_expert_layers_and_another_number_of_steps_need_no_other_code(copy, tmp_path):
    edited(copy, lambda config: config["diffusion_cfg"].update(num_inference_steps=4))
    assert error(build_engine(copy, tmp_path / "engine"), "steps") < 1e-5
    weights = load_file(copy / "model.safetensors")
    del weights["expert.norm.weight"]
    save_file(weights, copy / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"needs the tensor 'expert.norm.weight'"):
        build_engine(copy, tmp_path / "other")


def test_an_expert_of_fewer_layers_reads_the_first_ones(copy, tmp_path):
    edited(copy, lambda config: config["expert_cfg"].update(num_hidden_layers=1))
    weights = load_file(copy / "model.safetensors")
    gone = ("expert.layers.1.", "expert.layers.2.")
    kept = {name: value for name, value in weights.items() if not name.startswith(gone)}
    save_file(kept, copy / "model.safetensors")
    path = build_engine(copy, tmp_path / "engine")
    moved = ARRAYS["history"].copy()
    moved[3, 1] += 0.1
    found = [compute(path, given=observed(history=history)).normalised for history in (ARRAYS["history"], moved)]
    assert scaled_error(*found) > 1e-4 and scaled_error(found[0], ARRAYS["all_normalised"]) > 1e-4


def test_a_picture_that_was_seen_before_is_not_seen_again(engine):
    """Whatever the cache of the tower holds: frames follow each other, and each has the older three again."""
    with PolicyRuntime(engine, threads=1) as opened:
        opened.reasoning_sampling = SamplingRow()
        runner = opened._engines._vision
        runner.cache.budget_bytes = 0
        options = {"noise": ARRAYS["all_noise"], "denoise_steps": CASES["all"]["steps"]}
        seen = []
        for shift in (1, 1, 0):
            images = {name: np.roll(frames, shift, axis=0) for name, frames in observed().images.items()}
            for name in images if shift else ():
                images[name][0] = 7 * seen.count(0) + 9
            chunk = opened.compute(observed(images=images), "", **options)
            seen.append(runner.metrics.encoded)
        assert seen[0] == seen[1] and seen[2] - seen[1] == len(CAMERAS)  # the last of each was not among the others
        assert scaled_error(chunk.normalised, ARRAYS["all_normalised"]) < 1e-5


def test_the_words_may_be_fewer_than_the_policy_would_say(engine):
    with PolicyRuntime(engine, threads=1) as opened:
        opened.reasoning_sampling = SamplingRow()
        lengths = []
        for opened.reasoning_tokens in (0, 2, None):
            chunk = opened.compute(observed(), "", noise=ARRAYS["all_noise"])
            lengths.append(opened.prefix_length)
            assert bool(chunk.reasoning) == (opened.reasoning_tokens != 0)
    start = len(ARRAYS["prompt_ids"]) + 1
    assert lengths == [start, start + 2, start + len(ARRAYS["said"])]


def test_the_command_prints_reasoning_and_path(engine, tmp_path):
    np.savez(tmp_path / "seen.npz", ego_history=ARRAYS["history"], **dict(zip(CAMERAS, ARRAYS["images"], strict=True)))
    np.save(tmp_path / "noise.npy", ARRAYS["all_noise"])
    options = ["--observation", tmp_path / "seen.npz", "--noise", tmp_path / "noise.npy", "--temperature", "0"]
    command = [sys.executable, "-m", "edgellm_ros.cli.main", "act", engine, *options, "--threads", "1", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert scaled_error(np.array(found["actions_normalized"]), ARRAYS["all_normalised"]) < 1e-5
    assert found["meaning"] == "acceleration_curvature" and len(found["path"]["positions"]) == 6
    assert found["reasoning"]
