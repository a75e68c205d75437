"""Driving policies: paths from accelerations and curvatures, speed from history, history as tokens."""

from __future__ import annotations

import numpy as np
import pytest

from edgellm_ros.action.kinematics import HistoryTokens, UnicycleScaling, initial_speed, integrate_unicycle
from edgellm_ros.errors import ObservationError, PolicyError

STEP = 0.1


def drive(acceleration, curvature, speed, finer=200):
    """The same path by many small steps of the exact equations."""
    x = y = heading = 0.0
    positions = []
    small = STEP / finer
    for a, kappa in zip(acceleration, curvature, strict=True):
        for _ in range(finer):
            middle = speed + a * small / 2
            turn = kappa * middle * small
            x += middle * np.cos(heading + turn / 2) * small
            y += middle * np.sin(heading + turn / 2) * small
            heading += turn
            speed += a * small
        positions.append((x, y))
    return np.array(positions), heading, speed


def test_no_curvature_is_a_straight_line_with_the_known_distance():
    path = integrate_unicycle(np.full(64, 0.5), np.zeros(64), speed=3.0, height=1.2)
    time = STEP * np.arange(1, 65)
    assert np.allclose(path.positions[:, 0], 3.0 * time + 0.25 * time**2)
    assert np.all(path.positions[:, 1] == 0) and np.all(path.positions[:, 2] == 1.2) and np.all(path.headings == 0)
    assert np.allclose(path.speeds, 3.0 + 0.5 * time)


@pytest.mark.parametrize("curvature", [0.05, -0.1, 0.33])
def test_constant_curvature_is_an_arc_of_that_radius(curvature):
    path = integrate_unicycle(np.zeros(64), np.full(64, curvature), speed=4.0)
    centre = np.array([0.0, 1 / curvature])
    radius = np.linalg.norm(path.positions[:, :2] - centre, axis=1)
    assert np.allclose(radius, abs(1 / curvature), rtol=0.02)
    assert np.allclose(path.headings, curvature * 4.0 * STEP * np.arange(1, 65))


@pytest.mark.parametrize("seed", range(5))
def test_paths_agree_with_fine_numerical_integration(seed):
    rng = np.random.default_rng(seed)
    acceleration, curvature = rng.uniform(-2, 2, 64), rng.uniform(-0.1, 0.1, 64)
    path = integrate_unicycle(acceleration, curvature, speed=12.0)
    positions, heading, speed = drive(acceleration, curvature, 12.0)
    assert np.abs(path.positions[:, :2] - positions).max() < 0.05  # m, after about 75 m
    assert abs(path.headings[-1] - heading) < 1e-9 and abs(path.speeds[-1] - speed) < 1e-9


def test_normalised_pairs_become_units_within_physical_limits():
    scaled = UnicycleScaling().to_units(np.array([[0.0, 0.0], [1.0, -1.0], [100.0, -100.0]], np.float32))
    assert np.allclose(scaled[0], [0.02902694707, 0.00026921680])
    assert np.allclose(scaled[1], [0.71006961707, -0.02587906320])
    assert scaled[2].tolist() == [9.8, -0.33]


@pytest.mark.parametrize("speed", [0.0, 0.5, 8.0, 30.0, -2.0])
def test_constant_speed_is_found_in_the_history(speed):
    along = speed * STEP * (np.arange(16) - 15)
    history = np.stack([along, np.zeros(16), np.zeros(16)], axis=1)
    assert abs(initial_speed(history, np.zeros(16)) - speed) < 0.01 * max(1, abs(speed)) * 0.1 + 1e-6


def test_speed_is_found_on_a_curve_while_braking():
    curve = integrate_unicycle(np.full(15, -1.0), np.full(15, 0.05), speed=10.0)
    positions = np.concatenate([np.zeros((1, 3)), curve.positions])
    headings = np.concatenate([[0.0], curve.headings])
    assert abs(initial_speed(positions, headings) - curve.speeds[-1]) < 0.02
    assert abs(initial_speed(positions) - curve.speeds[-1]) < 0.15  # headings from the motion itself


@pytest.mark.parametrize("history", [np.zeros((1, 3)), np.zeros((16, 4)), np.zeros(16), np.full((16, 3), np.nan)])
def test_a_history_that_says_nothing_is_refused(history):
    with pytest.raises(ObservationError, match="ego history"):
        initial_speed(history)


def test_history_bins_cover_the_range_and_clamp_beyond_it():
    tokens = HistoryTokens(first_token=1000, points=5)
    moves = np.array([[-4.0, 0.0, 0.0], [4.0, 0.0, 10.0], [0.0, -99.0, 0.0], [0.0, 99.0, -99.0], [0.0, 0.0, 0.0]])
    ids = tokens.encode(np.cumsum(moves, axis=0)).reshape(5, 3) - 1000
    assert ids[:, 0].tolist() == [0, 999, 500, 500, 500]
    assert ids[:, 1].tolist() == [500, 500, 0, 999, 500]
    assert ids[:, 2].tolist() == [500, 999, 500, 0, 500]


def test_the_first_move_counts_from_the_origin():
    history = np.zeros((16, 3))
    history[:, 0] = -2.0
    ids = HistoryTokens(first_token=0).encode(history).reshape(16, 3)
    assert ids[0, 0] == round(2 / 8 * 999) and np.all(ids[1:] == 500)


@pytest.mark.parametrize("points", [15, 17])
def test_another_number_of_points_is_refused_with_the_counts(points):
    with pytest.raises(ObservationError, match=rf"shape \({points}, 3\).*takes \(16, 3\)"):
        HistoryTokens(first_token=0).encode(np.zeros((points, 3)))


@pytest.mark.parametrize("fields", [{"bins": 1}, {"points": 0}, {"low": (4.0, -4.0, -4.0)}])
def test_token_layouts_that_encode_nothing_are_refused(fields):
    with pytest.raises(PolicyError, match="history tokens"):
        HistoryTokens(first_token=0, **fields)
