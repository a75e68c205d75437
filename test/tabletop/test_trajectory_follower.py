"""The trajectory follower against what a joint trajectory controller does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from edgellm_ros.errors import RequestError
from edgellm_ros.tabletop.trajectory_follower import NANOSECONDS, TrajectoryFollower, TrajectoryPoint

NAMES = ("shoulder", "elbow")
START = 5 * NANOSECONDS


def seconds(value: float) -> int:
    return round(value * NANOSECONDS)


def points(*rows: tuple[float, float, float]) -> list[TrajectoryPoint]:
    return [TrajectoryPoint(seconds(after), row) for after, *row in rows]


@pytest.fixture
def follower() -> TrajectoryFollower:
    return TrajectoryFollower(NAMES, np.array([0.0, 1.0]))


def test_it_holds_until_told_and_after_the_last_point(follower):
    assert follower.sample(START) == pytest.approx([0.0, 1.0])
    follower.accept(NAMES, points((1.0, 1.0, 2.0)), 0, START)
    assert follower.sample(START + seconds(9.0)) == pytest.approx([1.0, 2.0])


def test_it_moves_in_straight_lines_between_points(follower):
    follower.accept(NAMES, points((1.0, 1.0, 1.0), (2.0, 1.0, 3.0)), 0, START)
    assert follower.sample(START + seconds(0.25)) == pytest.approx([0.25, 1.0])
    assert follower.sample(START + seconds(1.0)) == pytest.approx([1.0, 1.0])
    assert follower.sample(START + seconds(1.5)) == pytest.approx([1.0, 2.0])


def test_joints_may_come_in_another_order(follower):
    follower.accept(("elbow", "shoulder"), points((1.0, 7.0, 8.0)), 0, START)
    assert follower.sample(START + seconds(1.0)) == pytest.approx([8.0, 7.0])


def test_points_of_the_past_are_skipped_and_the_rest_is_on_time(follower):
    stamp = START - seconds(1.5)
    past = follower.accept(NAMES, points((1.0, 9.0, 9.0), (2.0, 1.0, 2.0), (3.0, 2.0, 3.0)), stamp, START)
    assert past == 1
    assert follower.sample(START + seconds(0.25)) == pytest.approx([0.5, 1.5])  # half way to the point of 2.0 s
    assert follower.sample(START + seconds(0.5)) == pytest.approx([1.0, 2.0])


def test_a_new_trajectory_takes_over_from_where_the_command_is(follower):
    follower.accept(NAMES, points((2.0, 2.0, 1.0)), 0, START)
    now = START + seconds(1.0)
    follower.accept(NAMES, points((1.0, 1.0, 5.0)), 0, now)
    assert follower.sample(now) == pytest.approx([1.0, 1.0])
    assert follower.sample(now + seconds(0.5)) == pytest.approx([1.0, 3.0])


def test_a_stamp_in_the_future_delays_the_points(follower):
    follower.accept(NAMES, points((0.5, 1.0, 1.0)), START + seconds(0.5), START)
    assert follower.sample(START + seconds(1.0)) == pytest.approx([1.0, 1.0])


def test_a_trajectory_without_points_holds_at_once(follower):
    follower.accept(NAMES, points((2.0, 2.0, 1.0)), 0, START)
    follower.accept(NAMES, [], 0, START + seconds(1.0))
    assert follower.sample(START + seconds(5.0)) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(
    ("names", "rows", "stamp", "said"),
    [
        (("shoulder",), [(1.0, 1.0)], 0, "want shoulder, elbow"),
        (("shoulder", "shoulder"), [(1.0, 1.0, 1.0)], 0, "each once"),
        (("shoulder", "hip"), [(1.0, 1.0, 1.0)], 0, "hip"),
        (NAMES, [(1.0, 1.0)], 0, "1 positions; want 2"),
        (NAMES, [(1.0, 1.0, 1.0), (1.0, 1.0, 1.0)], 0, "not rising"),
        (NAMES, [(-1.0, 1.0, 1.0)], 0, "not rising"),
        (NAMES, [(1.0, float("nan"), 1.0)], 0, "not finite"),
        (NAMES, [(1.0, float("inf"), 1.0)], 0, "not finite"),
        (NAMES, [(1.0, 1.0, 1.0)], START - seconds(3.0), "past, the last by 2.000 s"),
        (NAMES, [(0.0, 1.0, 1.0)], 0, "give each a time_from_start above 0"),
        (NAMES, [(1.0, 1e308, 1.0), (2.0, -1e308, 1.0)], 0, r"a position is 1e\+308; want at most 1e\+06"),
        (("x" * 10_000,) * 3, [(1.0, 1.0)], 0, r"its joints are 'x{40,}\.\.\.; want shoulder"),
    ],
    ids=[
        "missing", "twice", "unknown", "short", "same time", "negative time", "nan", "infinite", "all past", "no time",
        "nowhere", "names",
    ],
)  # fmt: skip
def test_malformed_trajectories_are_refused_and_the_last_one_goes_on(follower, names, rows, stamp, said):
    follower.accept(NAMES, points((1.0, 1.0, 2.0)), 0, START)  # which goes on, whatever comes
    with pytest.raises(RequestError, match=said):
        follower.accept(names, points(*rows), stamp, START)
    assert follower.sample(START + seconds(1.0)) == pytest.approx([1.0, 2.0])


NUMBERS = some.sampled_from([0.0, 1.0, -1.0, 1e6, 1e-300, 1e38, 1e308, -1e308, float("nan"), float("inf")])
TIMES = some.sampled_from([0, 1, seconds(0.1), seconds(1.0), -1, -(2**31) * NANOSECONDS, (2**31 - 1) * NANOSECONDS])


@given(
    trajectories=some.lists(
        some.tuples(
            some.lists(some.sampled_from(["shoulder", "elbow", "hip", ""]), max_size=3),
            some.lists(some.tuples(TIMES, some.lists(NUMBERS, max_size=3)), max_size=4),
            some.sampled_from([0, START, START - 1, -(2**31) * NANOSECONDS, (2**31 - 1) * NANOSECONDS]),
        ),
        max_size=4,
    ),
    after=some.sampled_from([0, 1, seconds(0.05), seconds(7.0), 2**40]),
)
def test_whatever_is_sent_the_command_is_a_number_and_a_refusal_a_sentence(trajectories, after):
    follower = TrajectoryFollower(NAMES, np.array([0.0, 1.0]))
    now = START
    for names, sent, stamp in trajectories:
        try:
            follower.accept(names, [TrajectoryPoint(*point) for point in sent], stamp, now)
        except RequestError as error:
            assert str(error).startswith("The trajectory is not followed: ")
        assert np.isfinite(follower.sample(now)).all() and np.isfinite(follower.sample(now + after)).all()
        now += after
