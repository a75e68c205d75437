"""The way that a vehicle drove: resampled at even times, in the vehicle's own frame."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm_ros.errors import ObservationError
from edgellm_ros.ros.joint_states import NANOSECONDS
from edgellm_ros.ros.odometry import OdometryEvent, OdometryTracker

START = 1_000 * NANOSECONDS


def turned(yaw):
    return 0.0, 0.0, math.sin(yaw / 2), math.cos(yaw / 2)


def driven(rate, way, seconds=2.0, lag=0.0):
    """A tracker that saw ``way(t) -> (x, y, z, yaw)`` for t up to 0, and the moment of t = 0."""
    tracker = OdometryTracker()
    moment = START + int(seconds * NANOSECONDS)
    for index in range(int(seconds * rate) + 2):
        t = index / rate - seconds + lag
        x, y, z, yaw = way(t)
        stamp = moment + int(t * NANOSECONDS)
        assert tracker.add((x, y, z), turned(yaw), stamp, stamp) is OdometryEvent.TAKEN
    return tracker, moment


@pytest.mark.parametrize("rate", [17, 50, 333])
@pytest.mark.parametrize("yaw", [0.0, 0.7, -3.0])
def test_a_straight_way_lies_behind_the_vehicle_whatever_its_heading(rate, yaw):
    tracker, moment = driven(rate, lambda t: (4 + 5 * t * math.cos(yaw), -2 + 5 * t * math.sin(yaw), 0.1 * t, yaw))
    history = tracker.history(moment, 16, 0.1, 0.0)
    wanted = np.stack([5 * (np.arange(16) - 15) * 0.1, np.zeros(16), 0.1 * (np.arange(16) - 15) * 0.1], axis=1)
    assert np.abs(history - wanted).max() < 1e-7 and not history[-1].any()


def test_a_curve_is_followed_within_the_chord_of_two_messages():
    radius, speed = 20.0, 6.0
    tracker, moment = driven(
        50, lambda t: (radius * math.sin(speed * t / radius), radius - radius * math.cos(speed * t / radius), 0.0,
                       speed * t / radius), lag=0.003)  # fmt: skip
    angles = speed * (np.arange(16) - 15) * 0.1 / radius
    wanted = np.stack([radius * np.sin(angles), radius - radius * np.cos(angles), np.zeros(16)], axis=1)
    assert np.abs(tracker.history(moment, 16, 0.1, 0.0) - wanted).max() < 2e-3


def test_half_a_turn_of_sign_between_two_quaternions_changes_nothing():
    tracker = OdometryTracker()
    for index in range(30):
        x, y, z, w = turned(0.3)
        sign = -1 if index % 2 else 1
        stamp = START + index * NANOSECONDS // 10
        tracker.add((index, 0, 0), (sign * x, sign * y, sign * z, sign * w), stamp, stamp)
    history = tracker.history(START + 2_950_000_000 - 100_000_000, 16, 0.1, 0.0)
    assert np.abs(history[-2] - [-math.cos(0.3), math.sin(0.3), 0]).max() < 1e-9


@pytest.mark.parametrize(
    ("position", "orientation", "stamp", "event"),
    [
        ((0, 0, 0), turned(0), 0, "zero_stamp"),
        ((0, 0, 0), turned(0), START + NANOSECONDS, "future_stamp"),
        ((0, math.nan, 0), turned(0), START, "not_finite"),
        ((0, 0, 0), (0, 0, 0, 0), START, "no_orientation"),
        ((0, 0, 0), (0, 0, 1e300, 1e300), START, "no_orientation"),
        ((0, 0, -1e9), turned(0), START, "not_finite"),
        ((0, 0, 0), turned(0), -START, "zero_stamp"),
    ],
)
def test_messages_that_say_nothing_are_turned_away_and_counted(position, orientation, stamp, event):
    tracker = OdometryTracker()
    assert tracker.add(position, orientation, stamp, START).value == event
    assert tracker.events() == {event: 1}
    with pytest.raises(ObservationError, match=r"No odometry belongs to the images \(none has come\)"):
        tracker.history(START, 16, 0.1, 0.0)


NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 1.0, -1.0, 1e8, 1e308, -1e308])


STAMPS = st.integers(0, 20).map(lambda tenths: START + tenths * NANOSECONDS // 10)


@given(
    messages=st.lists(
        st.tuples(
            st.tuples(*[NUMBERS] * 3), st.tuples(*[NUMBERS] * 4), STAMPS | st.sampled_from([0, -1, -START, 2**62])
        ),
        max_size=40,
    ),
    moment=STAMPS,
)
def test_whatever_comes_the_way_is_finite_or_refused(messages, moment):
    tracker = OdometryTracker()
    for tenth in range(0, 16, 2):  # so that there is a way in between
        tracker.add((tenth, 0, 0), turned(0), START + tenth * NANOSECONDS // 10, moment)
    for position, orientation, stamp in messages:
        tracker.add(position, orientation, stamp, START + 2 * NANOSECONDS)
    try:
        history = tracker.history(moment, 16, 0.1, 0.0)
    except ObservationError as error:
        assert "\n" not in str(error)
    else:
        assert history.shape == (16, 3) and np.isfinite(history).all()


def test_late_messages_change_nothing_and_a_source_that_begins_again_forgets():
    tracker, moment = driven(50, lambda t: (t, 0, 0, 0))
    assert tracker.add((9, 9, 9), turned(0), moment - 10, moment) is OdometryEvent.OUT_OF_ORDER
    assert tracker.history(moment, 16, 0.1, 0.0)[0, 0] == pytest.approx(-1.5)
    assert tracker.add((0, 0, 0), turned(0), moment - 60 * NANOSECONDS, moment) is OdometryEvent.TAKEN
    with pytest.raises(ObservationError, match=r"60\.00 s older"):
        tracker.history(moment, 16, 0.1, 0.0)


def test_a_way_that_is_not_known_is_refused_with_the_numbers():
    tracker, moment = driven(50, lambda t: (t, 0, 0, 0), seconds=1.0)
    with pytest.raises(ObservationError, match=r"known for 1.00 s before the images; the policy needs 1.50 s"):
        tracker.history(moment, 16, 0.1, 0.0)
    tracker, moment = driven(1.5, lambda t: (t, 0, 0, 0), seconds=4.0)
    with pytest.raises(ObservationError, match=r"silent for 0.67 s within the history"):
        tracker.history(moment, 16, 0.1, 0.0)


def test_positions_age():
    tracker = OdometryTracker()
    with pytest.raises(ObservationError, match=r"no odometry has come; want 0\.5 s at most"):
        tracker.check_age(START)
    tracker.add((0, 0, 0), turned(0), START, START)
    tracker.check_age(START + NANOSECONDS // 2)
    with pytest.raises(ObservationError, match=r"the newest odometry is 0\.60 s old"):
        tracker.check_age(START + 6 * NANOSECONDS // 10)


@given(
    turn=st.tuples(*[st.floats(-1.0, 1.0)] * 4).filter(lambda q: np.linalg.norm(q) > 0.6),
    move=st.tuples(*[st.floats(-3.0, 3.0)] * 3),
)
def test_a_vehicle_on_any_slope_has_its_way_in_its_own_frame(turn, move):
    axis, w = np.array(turn[:3]) / np.linalg.norm(turn), turn[3] / np.linalg.norm(turn)
    body = np.array(move)
    world = body + 2 * w * np.cross(axis, body) + 2 * np.cross(axis, np.cross(axis, body))  # turned by the quaternion
    tracker = OdometryTracker()
    for tenth in range(-16, 1):
        stamp = START + tenth * NANOSECONDS // 10
        tracker.add(tuple(world * tenth + 7.0), turn, stamp, stamp)
    history = tracker.history(START, 16, 0.1, 0.0)
    assert np.abs(history - body * np.arange(-15, 1)[:, None]).max() < 1e-6


def test_clocks_may_differ_a_little_and_a_way_waits_for_the_message_that_ends_it():
    tracker, moment = driven(50, lambda t: (5 * t, 0, 0, 0), lag=-0.04)
    last = (tracker.add, (0.2, 0, 0), turned(0), moment + NANOSECONDS // 25, moment)  # 40 ms ahead of the clock
    later = threading.Timer(0.2, last[0], last[1:])
    later.start()
    history = tracker.history(moment, 16, 0.1, 30.0)
    later.join()
    assert history[0, 0] == pytest.approx(-7.5) and tracker.events()["taken"] == 103
