"""The one place that lets actions out, and that stops them."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm_ros.action.chunk import NANOSECONDS, ActionChunk, ActionLimits
from edgellm_ros.action.kinematics import DrivingPath
from edgellm_ros.action.policy_manifest import ActionMeaning
from edgellm_ros.action.timeline import ChunkTimeline, Plan, Splice
from edgellm_ros.errors import Refusal, RefusalCode
from edgellm_ros.ros.action_messages import chunk_array, hold_trajectory, joint_trajectory, path_message
from edgellm_ros.ros.motion import Motion, MotionSettings

START = 1_000 * NANOSECONDS
STEP = NANOSECONDS // 20
NAMES = ("pan", "lift")
FREE = MotionSettings(ActionLimits())
PAUSE = Refusal(RefusalCode.DISABLED, "Paused.")


class Recorder:
    def __init__(self):
        self.said = []

    def publish_plan(self, chunk, plan):
        self.said.append(plan)

    def publish_hold(self):
        self.said.append("hold")


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def stops():
    return []


@pytest.fixture
def motion(recorder, stops):
    made = Motion(recorder, ActionMeaning.JOINT_POSITION, stops.append)
    made.begin(ChunkTimeline(Splice.REPLACE))
    return made


def chunk(stamp=START, rows=10, value=None):
    values = np.arange(rows)[:, None] * np.array([0.01, 0.02]) if value is None else np.full((rows, 2), value)
    return ActionChunk(values, stamp, STEP, NAMES, ("rad", "rad"), seed=7, noise_digest="ab")


def test_a_chunk_is_followed_and_its_points_rise_in_time(motion, recorder):
    plan = motion.follow(chunk(), FREE, START, motion.epoch)
    assert isinstance(plan, Plan) and recorder.said == [plan] and motion.moving
    message = joint_trajectory(plan, NAMES, stamp=START, origin=START)
    times = [point.time_from_start.sec * NANOSECONDS + point.time_from_start.nanosec for point in message.points]
    assert times == [STEP * (k + 1) for k in range(10)] and list(message.joint_names) == list(NAMES)
    assert all(not len(point.effort) and not len(point.velocities) for point in message.points)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_that_is_not_finite_stops_the_robot(motion, recorder, stops, bad):
    motion.follow(chunk(), FREE, START, motion.epoch)
    later = chunk(START + 2 * STEP)
    later.rows[3, 1] = bad
    refusal = motion.follow(later, FREE, START + 3 * STEP, motion.epoch)
    assert refusal.code is RefusalCode.NOT_FINITE and "lift in row 3" in refusal.message
    assert recorder.said[-1] == "hold" and not motion.moving and stops == [refusal]


def test_nothing_is_held_where_the_safety_rule_is_none(motion, recorder):
    motion.follow(chunk(), FREE, START, motion.epoch)
    motion.follow(chunk(value=np.nan), MotionSettings(ActionLimits(), hold_on_fault=False), START, motion.epoch)
    assert "hold" not in recorder.said


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        (ActionLimits(upper=(9.0, 0.1)), "above its upper limit"),
        (ActionLimits(lower=(0.001, -1.0)), "below its lower limit"),
        (ActionLimits(max_step=(1.0, 0.01)), "a step larger than its limit"),
    ],
)
def test_a_chunk_beyond_a_limit_moves_nothing(motion, recorder, limits, word):
    refusal = motion.follow(chunk(), MotionSettings(limits), START, motion.epoch)
    assert word in refusal.message and recorder.said == ["hold"] and not motion.moving


def test_the_first_step_counts_from_where_the_robot_is(motion):
    limits = MotionSettings(ActionLimits(max_step=(0.5, 0.5)))
    refusal = motion.follow(chunk(), limits, START, motion.epoch, position=np.array([2.0, 0.0]))
    assert "row 0 of the chunk takes pan to 2" in refusal.message
    assert isinstance(motion.follow(chunk(), limits, START, motion.epoch, position=np.array([0.2, 0.0])), Plan)


def test_a_late_chunk_is_dropped_and_the_plan_goes_on(motion, recorder, stops):
    motion.follow(chunk(rows=40), FREE, START, motion.epoch)
    refusal = motion.follow(chunk(START + STEP, rows=2), FREE, START + 9 * STEP, motion.epoch)
    assert refusal.code is RefusalCode.LATE_CHUNK and "0.300 s ago" in refusal.message
    assert "hold" not in recorder.said and motion.moving and stops == [refusal]


def test_stopping_holds_at_once_and_drops_what_was_on_its_way(motion, recorder, stops):
    epoch = motion.epoch
    motion.follow(chunk(), FREE, START, epoch)
    motion.stop(PAUSE)
    assert recorder.said[-1] == "hold" and stops == [PAUSE] and not motion.moving
    refusal = motion.follow(chunk(START + STEP), FREE, START + STEP, epoch)
    assert refusal.code is RefusalCode.CANCELLED and recorder.said[-1] == "hold" and len(recorder.said) == 2
    motion.stop(PAUSE)
    assert len(recorder.said) == 2  # a robot that holds is told once


def test_after_a_stop_the_next_chunk_is_a_first_one(motion):
    motion.follow(chunk(), FREE, START, motion.epoch)
    motion.stop(PAUSE)
    plan = motion.follow(chunk(START + STEP), FREE, START + 50 * STEP, motion.epoch)
    assert plan.skipped == 0


def test_a_robot_without_a_fresh_chunk_holds_once_and_says_why(motion, recorder, stops):
    motion.follow(chunk(), FREE, START, motion.epoch)
    assert not motion.watch(START + 9 * STEP, hold=True)
    assert motion.watch(START + 14 * STEP, hold=True)
    assert not motion.watch(START + 15 * STEP, hold=True)
    assert recorder.said.count("hold") == 1 and "due 0.200 s ago" in stops[-1].message
    refusal = motion.follow(chunk(START + STEP), FREE, START + 20 * STEP, motion.epoch)
    assert refusal.code is RefusalCode.LATE_CHUNK  # the same epoch: what is past stays past
    assert isinstance(motion.follow(chunk(START + 18 * STEP), FREE, START + 20 * STEP, motion.epoch), Plan)


def test_an_observation_that_cannot_be_used_holds_in_the_same_epoch(motion, recorder, stops):
    epoch = motion.epoch
    motion.follow(chunk(), FREE, START, epoch)
    motion.fault(Refusal(RefusalCode.STALE_OBSERVATION, "Old."), hold=True)
    assert recorder.said[-1] == "hold" and motion.epoch == epoch and stops[-1].message == "Old."
    assert isinstance(motion.follow(chunk(START + 2 * STEP), FREE, START + 3 * STEP, epoch), Plan)


def test_clocks_of_a_robot_may_differ_a_little(motion):
    assert isinstance(motion.follow(chunk(START + NANOSECONDS // 20), FREE, START, motion.epoch), Plan)


def test_after_a_hold_what_was_seen_at_rest_is_followed_from_its_first_row_and_nothing_of_the_old_plan(recorder):
    motion = Motion(recorder, ActionMeaning.JOINT_POSITION, lambda refusal: None)
    motion.begin(ChunkTimeline(Splice.BLEND))
    motion.follow(chunk(rows=200, value=9.0), FREE, START, motion.epoch)
    motion.fault(PAUSE, START + 10 * STEP, hold=True)
    in_motion = motion.follow(chunk(START + 9 * STEP), FREE, START + 13 * STEP, motion.epoch)
    assert in_motion.skipped == 4 and np.allclose(in_motion.rows[0], chunk().rows[4])  # by time, and not blended
    motion.fault(PAUSE, START + 14 * STEP, hold=True)
    at_rest = motion.follow(chunk(START + 20 * STEP), FREE, START + 25 * STEP, motion.epoch)
    assert at_rest.skipped == 0 and np.allclose(at_rest.rows, chunk().rows)


@pytest.mark.parametrize("splice", list(Splice))
def test_a_task_that_replaces_one_joins_what_is_still_followed(motion, recorder, splice):
    motion.follow(chunk(rows=40), FREE, START, motion.epoch)
    motion.begin(ChunkTimeline(splice), START + 2 * STEP)
    plan = motion.follow(chunk(START + 2 * STEP, rows=40), FREE, START + 7 * STEP, motion.epoch)
    assert plan.skipped == 5 and "hold" not in recorder.said  # no step back by the time that it took
    motion.begin(ChunkTimeline(splice), START + 90 * STEP)  # the robot came to its end meanwhile
    assert motion.follow(chunk(START + 90 * STEP), FREE, START + 95 * STEP, motion.epoch).skipped == 0


def test_a_jump_from_one_plan_into_the_next_is_a_step_too(motion, recorder):
    limits = MotionSettings(ActionLimits(max_step=(0.5, 0.5)))
    motion.follow(chunk(rows=40, value=0.0), limits, START, motion.epoch)
    refusal = motion.follow(chunk(START + STEP, rows=40, value=1.0), limits, START + 3 * STEP, motion.epoch)
    assert "row 0 of what would be followed of the chunk takes pan to 1, a step larger" in refusal.message
    assert recorder.said[-1] == "hold" and not motion.moving


def test_a_robot_at_rest_does_not_jump_to_where_a_late_chunk_would_be(motion):
    limits = MotionSettings(ActionLimits(max_step=(0.05, 0.05)))
    motion.fault(PAUSE, START + 5 * STEP, hold=True)
    motion.timeline.clear(START + 5 * STEP)
    refusal = motion.follow(chunk(START), limits, START + 8 * STEP, motion.epoch, position=np.zeros(2))
    assert "a step larger than its limit" in refusal.message
    assert isinstance(motion.follow(chunk(START + 9 * STEP), limits, START + 12 * STEP, motion.epoch), Plan)


def test_a_chunk_that_is_dropped_without_a_hold_leaves_the_plan_as_it_was(motion, recorder):
    limits = MotionSettings(ActionLimits(max_step=(0.5, 0.5)), hold_on_fault=False)
    plan = motion.follow(chunk(rows=40, value=0.0), limits, START, motion.epoch)
    motion.follow(chunk(START + STEP, rows=40, value=1.0), limits, START + 3 * STEP, motion.epoch)
    assert motion.timeline.plan is plan and motion.moving and recorder.said == [plan]


def test_a_clock_that_went_back_holds_and_what_was_computed_before_is_dropped(motion, recorder, stops):
    motion.follow(chunk(rows=40), FREE, START, motion.epoch)
    back = START - 60 * NANOSECONDS
    motion.clock_jumped(PAUSE)
    assert recorder.said[-1] == "hold" and not motion.moving and stops == [PAUSE]
    refusal = motion.follow(chunk(START + STEP), FREE, back, motion.epoch)
    assert refusal.code is RefusalCode.STALE_OBSERVATION and "60.050 s ahead of the clock" in refusal.message
    plan = motion.follow(chunk(back), FREE, back + STEP, motion.epoch)  # the task goes on in the new time
    assert plan.skipped == 0 and plan.due[0] == back + 2 * STEP


def driven(stamp=START, rows=10, place=0.0):
    """A chunk of a policy that drives, with its path."""
    made = chunk(stamp, rows)
    positions = np.column_stack([np.arange(rows), np.full(rows, place), np.zeros(rows)]).astype(float)
    return replace(made, path=DrivingPath(positions, np.zeros(rows), np.ones(rows), STEP / NANOSECONDS))


def test_poses_of_a_path_have_their_places_headings_and_times():
    positions, headings = np.arange(9.0).reshape(3, 3), np.array([0.5, -1.0, 3.0])
    message = path_message(DrivingPath(positions, headings, np.ones(3), 0.05), START, START + 3 * STEP)
    for index, pose in enumerate(message.poses):
        place, turn = pose.pose.position, pose.pose.orientation
        assert [place.x, place.y, place.z] == positions[index].tolist() and turn.x == turn.y == 0.0
        assert 2 * math.atan2(turn.z, turn.w) == pytest.approx(headings[index])
        stamp = pose.header.stamp
        assert stamp.sec * NANOSECONDS + stamp.nanosec == START + (index + 1) * STEP
    assert len(message.poses) == 3


@pytest.mark.parametrize("place", [np.nan, np.inf])
def test_a_path_that_is_not_finite_stops_the_robot_though_its_actions_are(motion, recorder, place):
    motion.follow(driven(), FREE, START, motion.epoch)
    refusal = motion.follow(driven(START + STEP, place=place), FREE, START + 2 * STEP, motion.epoch)
    assert refusal.code is RefusalCode.NOT_FINITE and recorder.said[-1] == "hold" and not motion.moving


def test_a_path_is_due_from_its_observation_on_even_where_it_is_the_first(motion, recorder):
    plan = motion.follow(driven(), FREE, START + 4 * STEP, motion.epoch)
    assert plan.skipped == 4 and plan.due[0] == START + 5 * STEP
    motion.stop(PAUSE)
    refusal = motion.follow(driven(), FREE, START + 12 * STEP, motion.epoch)
    assert refusal.code is RefusalCode.LATE_CHUNK and "0.100 s ago" in refusal.message
    assert recorder.said == [plan, "hold"]


@pytest.mark.parametrize(("execute", "poses"), [(0, 10), (3, 3), (99, 10)])
def test_a_path_ends_where_its_plan_does(motion, execute, poses):
    motion.begin(ChunkTimeline(execute_steps=execute))
    made = driven()
    plan = motion.follow(made, FREE, START, motion.epoch)
    message = path_message(made.path, made.stamp, int(plan.due[-1]))
    assert len(message.poses) == poses and message.poses[-1].pose.position.x == poses - 1


def test_a_robot_that_starved_without_a_hold_is_still_told_to_stop(motion, recorder, stops):
    motion.follow(chunk(), FREE, START, motion.epoch)
    assert motion.watch(START + 20 * STEP, hold=False) and not motion.watch(START + 21 * STEP, hold=False)
    assert "hold" not in recorder.said and len(stops) == 1
    motion.stop(PAUSE)
    assert recorder.said[-1] == "hold" and not motion.moving


def test_a_limit_counts_for_actions_that_would_not_be_followed_too(motion, recorder):
    motion.begin(ChunkTimeline(execute_steps=3))
    refusal = motion.follow(chunk(), MotionSettings(ActionLimits(upper=(0.085, 9.0))), START, motion.epoch)
    assert "row 9 of the chunk takes pan to 0.09, above its upper limit" in refusal.message
    assert recorder.said == ["hold"]


def test_a_clock_that_went_back_under_a_robot_that_holds_begins_anew_as_well(motion):
    motion.follow(chunk(), FREE, START, motion.epoch)
    motion.fault(PAUSE, START + STEP, hold=True)
    motion.clock_jumped(PAUSE)
    back = START - 60 * NANOSECONDS
    assert motion.follow(chunk(back), FREE, back + 4 * STEP, motion.epoch).skipped == 0


def test_a_task_that_begins_when_the_last_plan_has_ended_does_not_starve_before_its_first_chunk(
    motion, recorder, stops
):
    motion.follow(chunk(), FREE, START, motion.epoch)
    motion.begin(ChunkTimeline(), START + 90 * STEP)
    assert not motion.watch(START + 92 * STEP, hold=True) and not stops
    plan = motion.follow(chunk(START + 91 * STEP), FREE, START + 95 * STEP, motion.epoch)
    assert plan.skipped == 0 and "hold" not in recorder.said
    assert motion.watch(START + 200 * STEP, hold=True)
    motion.begin(ChunkTimeline(), START + 300 * STEP)
    motion.stop(PAUSE)
    assert recorder.said.count("hold") == 1  # it holds already


def test_a_fixed_delay_makes_the_plan_independent_of_the_clock(motion):
    fixed = MotionSettings(ActionLimits(), fixed_delay=0.1)
    motion.follow(chunk(), fixed, START + 99 * STEP, motion.epoch)
    plan = motion.follow(chunk(START + 4 * STEP), fixed, START + 77 * STEP, motion.epoch)
    assert plan.skipped == 2 and plan.due[0] == START + 7 * STEP


@given(order=st.lists(st.sampled_from(["chunk", "stop", "watch", "fault"]), min_size=1, max_size=30))
def test_after_every_stop_the_last_word_is_hold(order):
    recorder = Recorder()
    motion = Motion(recorder, ActionMeaning.JOINT_POSITION, lambda refusal: None)
    motion.begin(ChunkTimeline())
    now = START
    for what in order:
        now += 5 * STEP
        if what == "chunk":
            motion.follow(chunk(now - STEP), FREE, now, motion.epoch)
        elif what == "stop":
            motion.stop(PAUSE)
        elif what == "watch":
            motion.watch(now, hold=True)
        else:
            motion.fault(PAUSE, hold=True)
        if what in ("stop", "fault"):
            assert not recorder.said or recorder.said[-1] == "hold"
            assert not motion.moving
    assert all(
        first != "hold" or second != "hold" for first, second in zip(recorder.said, recorder.said[1:], strict=False)
    )


def test_a_stop_from_another_thread_is_never_followed_by_a_chunk(motion, recorder):
    epoch, go = motion.epoch, threading.Event()

    def worker():
        go.wait()
        for k in range(200):
            motion.follow(chunk(START + k * STEP), FREE, START + k * STEP, epoch)

    thread = threading.Thread(target=worker)
    thread.start()
    go.set()
    motion.stop(PAUSE)
    said = len(recorder.said)
    thread.join()
    assert len(recorder.said) == said and (said == 0 or recorder.said[-1] == "hold")


def test_the_raw_chunk_says_what_its_numbers_are():
    message = chunk_array(chunk(START + 5))
    first, second = message.layout.dim
    assert (first.size, first.stride, second.size, second.stride) == (10, 20, 2, 2)
    assert first.label == "stamp=1000.000000005 step_time=0.05 seed=7 x0=ab"
    assert second.label == "pan [rad], lift [rad]" and message.data[3] == pytest.approx(0.02)
    assert hold_trajectory(NAMES).points == [] and list(hold_trajectory(NAMES).joint_names) == list(NAMES)
