"""Joint states by name, whatever order and company they come in."""

from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm_ros.errors import ObservationError, RefusalCode
from edgellm_ros.ros.joint_states import NANOSECONDS, JointEvent, JointTracker

NOW = 1_000 * NANOSECONDS
NAMES = ("pan", "lift", "grip")


def tracker():
    return JointTracker(NAMES)


@given(order=st.permutations([*NAMES, "wheel", "tail"]))
def test_every_message_is_mapped_by_name(order):
    joints = tracker()
    values = {"pan": 1.0, "lift": 2.0, "grip": 3.0, "wheel": math.nan, "tail": 9.0}
    assert joints.add(order, [values[name] for name in order], NOW, NOW) is JointEvent.TAKEN
    positions, stamp = joints.state(NOW, 0.2)
    assert positions.tolist() == [1.0, 2.0, 3.0] and stamp == NOW


@pytest.mark.parametrize(
    ("names", "positions", "event", "sentence"),
    [
        (("pan", "lift"), (1, 2), JointEvent.MISSING_JOINT, "lack 'grip'"),
        ((), (), JointEvent.MISSING_JOINT, "lack 'pan'"),
        (("pan", "lift", "grip", "pan"), (1, 2, 3, 4), JointEvent.DUPLICATE_JOINT, "name 'pan' twice"),
        (("pan", "lift", "grip"), (1, 2), JointEvent.SHORT_POSITION, "name 3 joints and hold 2 positions"),
        (("pan", "lift", "grip"), (1, math.nan, 3), JointEvent.NOT_FINITE, "'lift' is nan"),
        (("pan", "lift", "grip"), (1, 2, -math.inf), JointEvent.NOT_FINITE, "'grip' is -inf"),
    ],
)
def test_a_message_that_cannot_be_used_is_turned_away_and_said_why(names, positions, event, sentence):
    joints = tracker()
    assert joints.add(names, positions, NOW, NOW) is event
    with pytest.raises(ObservationError, match=sentence):
        joints.state(NOW, 0.2)
    assert joints.events() == {event.value: 1}


def test_other_joints_may_be_there_twice():
    assert tracker().add(("a", "a", *NAMES), (9, 9, 1, 2, 3), NOW, NOW) is JointEvent.TAKEN


@pytest.mark.parametrize("age", [0.0, 0.19, 0.21, 60.0])
def test_positions_age(age):
    joints = tracker()
    joints.add(NAMES, (1, 2, 3), NOW, NOW)
    later = NOW + round(age * NANOSECONDS)
    if age <= 0.2:
        assert joints.state(later, 0.2)[0].tolist() == [1, 2, 3]
    else:
        with pytest.raises(ObservationError, match=f"{age:.2f} s old; safety.max_state_age allows 0.2 s") as error:
            joints.state(later, 0.2)
        assert error.value.code is RefusalCode.STALE_OBSERVATION
        assert joints.state(later, 0.0)[0].tolist() == [1, 2, 3]


def test_a_message_of_other_joints_ages_the_last_good_one_and_names_the_reason():
    joints = tracker()
    joints.add(NAMES, (1, 2, 3), NOW, NOW)
    joints.add(NAMES[:2], (1, 2), NOW + 1, NOW + 1)  # of a driver for some of the joints
    assert joints.state(NOW + 1, 0.2)[0].tolist() == [1, 2, 3]
    with pytest.raises(ObservationError, match="lack 'grip'"):
        joints.state(NOW + NANOSECONDS, 0.2)


@pytest.mark.parametrize("max_age", [0.0, 0.2])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_joint_that_is_nowhere_counts_at_once_until_it_is_somewhere_again(bad, max_age):
    joints = tracker()
    joints.add(NAMES, (1, 2, 3), NOW, NOW)
    joints.add(NAMES, (1, bad, 3), NOW + 1, NOW + 1)
    joints.add(NAMES, (1, 2, 3), NOW, NOW + 1)  # a late one says nothing about now
    with pytest.raises(ObservationError, match=f"'lift' is {bad}"):
        joints.state(NOW + 1, max_age)
    joints.add(NAMES, (4, 5, 6), NOW + 2, NOW + 2)
    assert joints.state(NOW + 2, max_age)[0].tolist() == [4, 5, 6]


@pytest.mark.parametrize("max_age", [0.0, 0.2])
def test_positions_of_before_the_clock_went_back_are_of_no_known_age(max_age):
    joints = tracker()
    joints.add(NAMES, (1, 2, 3), NOW, NOW)
    assert joints.state(NOW - NANOSECONDS // 20, max_age)[0].tolist() == [1, 2, 3]  # clocks of a robot may differ
    with pytest.raises(ObservationError, match=r"60\.00 s ahead of this node's clock") as error:
        joints.state(NOW - 60 * NANOSECONDS, max_age)
    assert error.value.code is RefusalCode.STALE_OBSERVATION


def test_a_late_message_clears_nothing_and_a_clock_that_began_again_starts_anew():
    joints = tracker()
    joints.add(NAMES, (1, 2, 3), NOW, NOW)
    assert joints.add(NAMES, (7, 7, 7), NOW - 1_000_000, NOW) is JointEvent.OUT_OF_ORDER
    assert joints.state(NOW, 0.2)[0].tolist() == [1, 2, 3]
    back = NOW - 60 * NANOSECONDS
    assert joints.add(NAMES, (4, 5, 6), back, back) is JointEvent.TAKEN
    assert joints.state(back, 0.2)[0].tolist() == [4, 5, 6]


@pytest.mark.parametrize(
    ("moment", "found"),
    [(NOW + 5, 1.0), (NOW + 10, None), (NOW + 15, None), (NOW + 20, 4.0), (NOW + 25, 4.0)],
)
def test_positions_of_a_moment_do_not_reach_over_a_joint_that_was_nowhere(moment, found):
    joints = tracker()
    for stamp, pan in ((NOW, 1.0), (NOW + 10, math.nan), (NOW + 20, 4.0), (NOW + 30, 5.0)):
        joints.add(NAMES, (pan, 2, 3), stamp, NOW + 30)
    state = joints.at(moment, 0.0)
    assert (None if state is None else state[0][0]) == found
    joints.clear()
    for stamp in (NOW, NOW + 30):
        joints.add(NAMES, (1, 2, 3), stamp, NOW + 30)
    assert joints.at(moment, 0.0) is not None


def test_what_the_robot_did_not_know_before_its_clock_began_again_is_forgotten():
    joints = tracker()
    for seconds, pan in ((10, 1.0), (15, math.nan), (20, 2.0), (5, 3.0), (30, 4.0)):
        joints.add(NAMES, (pan, 2, 3), seconds * NANOSECONDS, NOW)
    assert joints.at(25 * NANOSECONDS, 0.0)[0][0] == 3.0
    joints.clear()
    with pytest.raises(ObservationError, match="No joint states have come yet"):
        joints.state(NOW, 0.2)


def test_positions_of_a_moment_wait_for_the_message_that_settles_them():
    joints = tracker()
    joints.add(NAMES, (1, 2, 3), NOW, NOW)
    later = threading.Timer(0.2, lambda: joints.add(NAMES, (4, 5, 6), NOW + 20, NOW))
    later.start()
    positions, stamp = joints.at(NOW + 10, 30.0)
    later.join()
    assert positions[0] == 1.0 and stamp == NOW


@pytest.mark.parametrize(
    ("stamp", "event"),
    [(0, JointEvent.ZERO_STAMP), (-1, JointEvent.ZERO_STAMP), (NOW + NANOSECONDS, JointEvent.FUTURE_STAMP)],
)
def test_stamps_that_say_nothing_are_turned_away(stamp, event):
    assert tracker().add(NAMES, (1, 2, 3), stamp, NOW) is event


def test_nothing_yet_is_said():
    with pytest.raises(ObservationError, match="No joint states have come yet"):
        tracker().state(NOW, 0.2)
