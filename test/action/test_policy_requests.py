"""What is asked of a policy: seeds, noise, cancelling and guidance; and what no policy takes is refused."""

from __future__ import annotations

import numpy as np
import pytest
from policy_checkpoints import scaled_error
from smolvla_reference import ARRAYS, CASES, compute

from edgellm_ros.action.noise import noise_digest, standard_normal
from edgellm_ros.action.observation import Observation
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.action.solver import RealTimeChunking
from edgellm_ros.errors import ChunkError, ObservationError, RequestError


def test_the_same_seed_gives_the_same_bytes_in_any_order(smolvla_runtime):
    def bytes_of(seed, case):
        return compute(smolvla_runtime, case, noise=None, noise_seed=seed).rows.tobytes()

    first = [bytes_of(seed, case) for seed in (5, -1) for case in ("all", "steps")]
    again = [bytes_of(seed, case) for seed in (-1, 5) for case in ("steps", "all")]
    assert first == again[::-1] and len(set(first)) == 4


def test_the_seed_of_the_runtime_is_used_until_another_is_set(smolvla_engines):
    with PolicyRuntime(smolvla_engines["onnxruntime"], threads=1) as opened:
        shape = (opened.manifest.horizon, opened.manifest.action.padded)
        chunk = compute(opened, "all", noise=None)
        assert chunk.seed == 5 and chunk.noise_digest == noise_digest(standard_normal(5, shape))
        opened.set_action_noise_seed(-7)
        assert compute(opened, "all", noise=None).noise_digest == noise_digest(standard_normal(-7, shape))
        with pytest.raises(RequestError, match="noise seed is 2147483648"):
            opened.set_action_noise_seed(2**31)
        assert opened.noise_seed == -7


def test_a_cancel_takes_one_step_and_leaves_the_next_chunk_alone(smolvla_runtime):
    asked = []

    def cancelled():
        asked.append(1)
        return len(asked) == 3

    assert compute(smolvla_runtime, "all", cancelled=cancelled) is None and len(asked) == 3
    assert scaled_error(compute(smolvla_runtime, "all").normalised, ARRAYS["all_normalised"]) < 1e-5


def test_guidance_holds_the_first_actions_to_what_is_committed(smolvla_runtime):
    free = compute(smolvla_runtime, "all", denoise_steps=10)
    committed = free.rows[2:] + 0.3
    guided = compute(smolvla_runtime, "all", denoise_steps=10, chunking=RealTimeChunking(2, 4), committed=committed)
    assert np.abs(guided.rows[:2] - committed[:2]).max() < 0.3 * np.abs(free.rows[:2] - committed[:2]).max()
    agreed = compute(smolvla_runtime, "all", denoise_steps=10, chunking=RealTimeChunking(2, 4), committed=free.rows)
    assert np.abs(agreed.rows[:2] - free.rows[:2]).max() < 0.2 * np.abs(free.rows).max()


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (("top",), "camera 'wrist' is missing"),
        ((), "is missing .*given: none"),
        (("top", "wrist", "side", "rear"), "no camera 'rear'; its cameras are top, wrist, side"),
    ],
)
def test_cameras_that_the_policy_cannot_do_without_are_refused(smolvla_runtime, images, sentence):
    picture = np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(ObservationError, match=sentence):
        smolvla_runtime.compute(Observation(dict.fromkeys(images, picture), np.zeros(5)), "touch")


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (np.zeros(4), r"shape \(4,\); the policy takes \(5,\)"),
        (np.array([0, 0, np.nan, 0, 0]), "the state of state_2 is nan"),
        (np.array([0, 0, 0, 0, -np.inf]), "the state of state_4 is -inf"),
        (np.array([0, 1e308, 0, 0, 0]), r"the state of state_1 is 1e\+308, beyond any number"),
    ],
)
def test_a_state_that_says_nothing_is_refused(smolvla_runtime, state, sentence):
    with pytest.raises(ObservationError, match=sentence):
        smolvla_runtime.compute(
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
def test_a_picture_of_another_kind_is_refused(smolvla_runtime, picture):
    with pytest.raises(ObservationError, match=r"picture of camera 'top' (is|has)"):
        smolvla_runtime.compute(Observation({"top": picture, "wrist": picture, "side": picture}, np.zeros(5)), "touch")


@pytest.mark.parametrize(
    ("task", "sentence"),
    [("", "task is empty"), (" \n", "task is empty"), (CASES["long"]["task"], "38 tokens; the policy takes 24")],
)
def test_a_task_is_never_cut(smolvla_runtime, task, sentence):
    with pytest.raises(RequestError, match=sentence):
        compute(smolvla_runtime, "long") if task == CASES["long"]["task"] else smolvla_runtime.encode_task(task)


@pytest.mark.parametrize("steps", [-1, 101])
def test_steps_beyond_the_policy_are_refused(smolvla_runtime, steps):
    with pytest.raises(RequestError, match="denoise_steps is"):
        compute(smolvla_runtime, "all", denoise_steps=steps)


@pytest.mark.parametrize("noise", [np.zeros((7, 4)), np.full((7, 8), np.nan)])
def test_noise_of_another_shape_or_without_numbers_is_refused(smolvla_runtime, noise):
    with pytest.raises(ObservationError, match="noise has shape"):
        compute(smolvla_runtime, "all", noise=noise)


def test_an_engine_that_gives_no_numbers_moves_nothing(smolvla_runtime, monkeypatch):
    noise = np.full((7, 8), 3e38, np.float32)
    with pytest.raises(ChunkError, match="finite"):
        compute(smolvla_runtime, "all", noise=noise)
    assert scaled_error(compute(smolvla_runtime, "all").normalised, ARRAYS["all_normalised"]) < 1e-5
