"""Numbers of a robot against those of its policy: ALOHA's joints and grippers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm_ros.action.robot_adapter import ADAPTERS

ALOHA = ADAPTERS["aloha"]
SIGNS = np.array([1, -1, -1, 1, 1, 1, 1, 1, -1, -1, 1, 1, 1, 1])
GRIPPERS = [6, 13]
JOINTS = [place for place in range(14) if place not in GRIPPERS]
shares = st.floats(-0.02, 1.0)
angles = st.lists(st.floats(-3.2, 3.2), min_size=14, max_size=14).map(np.array)


def angle_of(share):
    """The angle of the motor where the fingers have this share of their opening, from the triangle of its lengths."""
    opening = 0.01844 + share * (0.05800 - 0.01844)
    return math.asin((0.022**2 + opening**2 - 0.036**2) / (2 * 0.022 * opening))


def test_numbers_that_were_computed_by_hand():
    # opening 0.03822 m: sine (0.000484 + 0.0014607684 - 0.001296) / 0.00168168 = 0.3857859; 0.3960595 rad
    state = ALOHA.state_to_policy(np.full(14, 0.5))
    assert state[GRIPPERS] == pytest.approx([(0.3960595 - 0.5476) / 1.082] * 2, abs=1e-6)
    assert state[JOINTS].tolist() == (0.5 * SIGNS[JOINTS]).tolist()
    # action 0.5 is 1.0476 rad, of the commanded range from -0.6213 to 1.4910 the share 1.6689 / 2.1123
    action = ALOHA.actions_to_robot(np.full((3, 14), 0.5))
    assert action[:, GRIPPERS] == pytest.approx(np.full((3, 2), 0.790087), abs=1e-6)
    assert (action[:, JOINTS] == 0.5 * SIGNS[JOINTS]).all()


@given(shares)
def test_a_gripper_goes_by_the_triangle_of_horn_and_arm(share):
    state = np.zeros(14)
    state[GRIPPERS] = share
    wanted = (angle_of(share) - 0.5476) / (1.6296 - 0.5476)
    assert ALOHA.state_to_policy(state)[GRIPPERS] == pytest.approx([wanted] * 2, abs=1e-9)


@given(angles, shares, shares)
def test_a_state_there_and_back_is_the_same(state, left, right):
    state[GRIPPERS] = left, right
    assert ALOHA.state_to_robot(ALOHA.state_to_policy(state)) == pytest.approx(state, abs=1e-7)


@given(st.lists(angles, min_size=1, max_size=4).map(np.stack))
def test_actions_there_and_back_are_the_same(rows):
    assert ALOHA.actions_to_robot(ALOHA.actions_to_policy(rows)) == pytest.approx(rows, abs=1e-9)
    assert ALOHA.actions_to_policy(ALOHA.actions_to_robot(rows)) == pytest.approx(rows, abs=1e-9)


@given(st.floats(-1e6, 1e6))
def test_a_gripper_beyond_what_can_be_still_gives_a_number(share):
    assert np.isfinite(ALOHA.state_to_policy(np.full(14, share))).all()


def test_what_is_given_stays_as_it_was():
    state = np.ones(14)
    ALOHA.state_to_policy(state)
    ALOHA.actions_to_robot(state)
    assert (state == 1).all()


@pytest.mark.parametrize("width", [0, 3, 14])
def test_without_an_adapter_nothing_changes(width):
    values = np.arange(float(width))
    for turn in ("state_to_policy", "state_to_robot", "actions_to_robot", "actions_to_policy"):
        assert (getattr(ADAPTERS[""], turn)(values) == values).all()
