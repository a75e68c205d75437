"""Flow matching: Euler in both directions, schedules, and the guidance of real-time chunking."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm_ros.action.solver import ChunkWeights, FlowDirection, FlowSchedule, Guidance, RealTimeChunking, euler
from edgellm_ros.errors import PolicyError

UP, DOWN = FlowDirection


def last(states):
    *_, state = states
    return state


@pytest.mark.parametrize("direction", FlowDirection)
@pytest.mark.parametrize("steps", [1, 2, 10, 100])
def test_a_straight_flow_ends_at_the_data_in_any_number_of_steps(direction, steps):
    rng = np.random.default_rng(1)
    noise, data = rng.standard_normal((2, 8, 3)).astype(np.float32)
    velocity = data - noise if direction is UP else noise - data
    end = last(euler(noise, lambda state, time: velocity, FlowSchedule(direction, steps)))
    assert np.abs(end - data).max() < 1e-5 and end.dtype == np.float32


@pytest.mark.parametrize("direction", FlowDirection)
def test_a_field_with_a_known_solution_converges_to_it(direction):
    # dx/ds = x from s = 0 to 1 along the flow: x(1) = e x(0)
    sign = 1.0 if direction is UP else -1.0
    noise = np.ones((1, 1), np.float32)
    errors = [
        abs(float(last(euler(noise, lambda state, time: sign * state, FlowSchedule(direction, steps)))[0, 0]) - np.e)
        for steps in (10, 20, 40)
    ]
    assert errors[0] > 1.8 * errors[1] > 3.2 * errors[2]  # first order


def test_times_run_from_noise_to_data():
    assert np.allclose(FlowSchedule(DOWN, 4).times(), [1.0, 0.75, 0.5, 0.25])
    assert np.allclose(FlowSchedule(UP, 4).times(), [0.0, 0.25, 0.5, 0.75])
    assert FlowSchedule(UP, 4, buckets=1000).network_times().tolist() == [0.0, 250.0, 500.0, 750.0]
    assert FlowSchedule(UP, 3, buckets=1000).network_times().tolist() == [0.0, 333.0, 666.0]


def test_the_network_is_asked_at_each_time_once_and_a_cancel_takes_one_step():
    asked = []

    def velocity(state, time):
        asked.append(time)
        return np.zeros_like(state)

    states = euler(np.zeros((2, 2), np.float32), velocity, FlowSchedule(DOWN, 10))
    next(states)
    next(states)
    assert np.allclose(asked, [1.0, 0.9])


@pytest.mark.parametrize("steps", [0, -1, 101, 1.5, True, None])
def test_a_number_of_steps_outside_the_range_is_refused(steps):
    with pytest.raises(PolicyError, match=r"denoise steps is .*from 1 to 100"):
        FlowSchedule(DOWN, steps)


def test_weights_hold_the_delay_and_fade_to_the_horizon():
    linear = RealTimeChunking(delay=3, horizon=8).row_weights(12)
    assert np.allclose(linear, [1, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0, 0, 0, 0], atol=1e-6)
    assert RealTimeChunking(3, 8, weights=ChunkWeights.ONES).row_weights(12).tolist() == [1] * 8 + [0] * 4
    assert RealTimeChunking(3, 8, weights=ChunkWeights.ZEROS).row_weights(12).tolist() == [1] * 3 + [0] * 9
    exponential = RealTimeChunking(3, 8, weights=ChunkWeights.EXPONENTIAL).row_weights(12)
    assert np.all(exponential[3:8] < linear[3:8]) and np.all(np.diff(exponential[2:9]) < 0)


@given(
    delay=st.integers(0, 20),
    extra=st.integers(0, 20),
    rows=st.integers(1, 30),
    weights=st.sampled_from(list(ChunkWeights)),
)
def test_weights_never_rise_and_lie_between_zero_and_one(delay, extra, rows, weights):
    values = RealTimeChunking(delay, delay + extra, weights=weights).row_weights(rows)
    assert values.shape == (rows,) and np.all(np.diff(values) <= 1e-6)
    assert np.all((values >= 0) & (values <= 1)) and np.all(values[: min(delay, rows)] == 1)


@pytest.mark.parametrize("direction", FlowDirection)
@pytest.mark.parametrize("time", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_a_chunk_that_agrees_with_what_is_committed_is_left_alone(direction, time):
    rng = np.random.default_rng(2)
    state, velocity = rng.standard_normal((2, 12, 3)).astype(np.float32)
    left = time if direction is DOWN else 1.0 - time
    agreed = state + (-1 if direction is DOWN else 1) * np.float32(left) * velocity
    guided = RealTimeChunking(3, 8).guide(velocity, state, time, agreed, direction)
    assert np.abs(guided - velocity).max() < 1e-5


@pytest.mark.parametrize("guidance", Guidance)
@pytest.mark.parametrize("direction", FlowDirection)
def test_guidance_pulls_the_first_actions_to_the_committed_ones(direction, guidance):
    rng = np.random.default_rng(3)
    noise, data, committed = rng.standard_normal((3, 12, 3)).astype(np.float32)
    chunking, schedule = RealTimeChunking(3, 8, guidance=guidance), FlowSchedule(direction, 10)
    plain = data - noise if direction is UP else noise - data

    def guided(state, time):
        return chunking.guide(plain, state, time, committed, direction)

    distance = np.abs(last(euler(noise, guided, schedule)) - committed).mean(axis=1)
    before = np.abs(data - committed).mean(axis=1)
    assert np.all(distance[:3] < 0.2 * before[:3])
    assert np.allclose(distance[8:], before[8:], atol=1e-5)
    if guidance is Guidance.STRAIGHT:
        assert np.all(distance[:3] < 1e-5)


@pytest.mark.parametrize("direction", FlowDirection)
def test_a_held_row_goes_straight_from_its_noise_to_its_target_whatever_the_network_says(direction):
    rng = np.random.default_rng(6)
    noise, committed = rng.standard_normal((2, 6, 2)).astype(np.float32)
    chunking, schedule = RealTimeChunking(2, 4), FlowSchedule(direction, 8)

    def guided(state, time):
        wild = rng.standard_normal(state.shape).astype(np.float32)
        return chunking.guide(wild, state, time, committed, direction)

    for done, state in enumerate(euler(noise, guided, schedule), 1):
        share = done / 8
        assert np.allclose(state[:2], (1 - share) * noise[:2] + share * committed[:2], atol=1e-5)


def test_guidance_has_the_closed_form_of_lerobot():
    rng = np.random.default_rng(4)
    state, velocity, committed = rng.standard_normal((3, 6, 2)).astype(np.float32)
    for time in (1.0, 0.7, 0.3):
        tau = 1.0 - time
        gain = 10.0 if tau == 0 else min((1 - tau) / tau * ((1 - tau) ** 2 + tau**2) / (1 - tau) ** 2, 10.0)
        chunking = RealTimeChunking(2, 4, guidance=Guidance.LEROBOT)
        weights = chunking.row_weights(6)[:, None]
        wanted = velocity - gain * (committed - (state - time * velocity)) * weights
        assert np.allclose(chunking.guide(velocity, state, time, committed), wanted, atol=1e-5)


def test_actions_behind_a_short_rest_of_the_old_chunk_are_left_alone():
    rng = np.random.default_rng(5)
    state, velocity = rng.standard_normal((2, 6, 2)).astype(np.float32)
    guided = RealTimeChunking(2, 6).guide(velocity, state, 0.5, np.ones((3, 2), np.float32))
    assert np.array_equal(guided[3:], velocity[3:]) and not np.isclose(guided[:3], velocity[:3]).any()


@pytest.mark.parametrize(
    ("seconds", "committed", "wanted"),
    [(0.15, 10, (3, 6)), (0.2, 10, (3, 6)), (0.0, 10, (0, 3)), (1.0, 4, (4, 4)), (-0.1, 10, (0, 3))],
)
def test_an_expected_delay_is_whole_actions_within_what_is_left(seconds, committed, wanted):
    chunking = RealTimeChunking.expecting(seconds, 1 / 15, 3, committed)
    assert (chunking.delay, chunking.horizon) == wanted


@pytest.mark.parametrize(("delay", "horizon"), [(-1, 4), (5, 4)])
def test_a_delay_outside_the_horizon_is_refused(delay, horizon):
    with pytest.raises(PolicyError, match="delay"):
        RealTimeChunking(delay, horizon)
