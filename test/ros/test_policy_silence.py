"""A robot that is not seen or felt any more stops at once, whatever its task waits for; and a task ends in its time."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from policy_bench import TASK, pictures, show, state

from edgellm_ros.action.chunk import NANOSECONDS, ActionChunk, ActionLimits
from edgellm_ros.action.policy_manifest import ActionMeaning
from edgellm_ros.action.timeline import ChunkTimeline, Plan
from edgellm_ros.errors import Refusal, RefusalCode
from edgellm_ros.ros.client import pairs
from edgellm_ros.ros.motion import Motion, MotionSettings

SELDOM = {"action.rate": 0.05, "generation.timeout": 0.0}  # the plan ends long before the next observation
IN_ORDER = {"action.rate": 50.0, "action.pairing": "every", "generation.timeout": 0.0}


def move(bench, robot):
    """Whatever the rate: what cannot be used is looked at again soon."""
    bench.client.ask(TASK)
    bench.wait_running()

    def moves():
        robot.observe(pictures(), state())
        return robot.trajectories and robot.trajectories[-1].points

    bench.wait(moves, "the robot moves")
    return bench.node.state.policy.motion.counts()


@pytest.mark.parametrize(
    ("silent", "task", "code"),
    [
        ("joints", SELDOM, "stale_observation"),
        ("nan", SELDOM, "bad_observation"),
        ("cameras", SELDOM, "no_images"),
        ("cameras", IN_ORDER, "no_images"),
    ],
)
def test_what_falls_silent_holds_the_robot_before_its_plan_ends(start_policy, silent, task, code):
    limits = {"joints": {"safety.max_state_age": 0.6}, "cameras": {"images.max_age": 0.6}}.get(silent, {})
    bench, robot = start_policy({**task, **limits})
    before = move(bench, robot)
    if silent == "nan":
        robot.feel(np.full(5, np.nan), robot.now())
    bench.wait(lambda: not robot.trajectories[-1].points, "the robot holds")
    counts = bench.node.state.policy.motion.counts()
    assert counts[f"fault.{code}"] == before.get(f"fault.{code}", 0) + 1 and "starved" not in counts
    assert not bench.client.reports  # the task goes on when there is something to go by


def test_nothing_is_held_for_silence_where_the_safety_rule_is_none(start_policy):
    bench, robot = start_policy({**SELDOM, "safety.max_state_age": 0.3, "safety.on_fault": "none"})
    move(bench, robot)
    bench.wait(lambda: bench.node.state.policy.motion.counts().get("starved"), "the plan ends")
    assert all(trajectory.points for trajectory in robot.trajectories)


def test_frames_that_wait_to_be_used_are_no_silence(start_policy):
    bench, robot = start_policy({**SELDOM, "images.max_age": 0.6})
    before = move(bench, robot)
    motion = bench.node.state.policy.motion

    def goes_on():
        robot.see(pictures(), robot.now())
        return motion.counts().get("starved")

    bench.wait(goes_on, "the plan ends by itself")
    assert motion.counts().get("fault.no_images") == before.get("fault.no_images")


@pytest.mark.parametrize(
    "task",
    [
        {"action.rate": 0.0, "action.pairing": "every"},
        {"action.rate": 50.0, "action.pairing": "every"},
        {"action.rate": 0.01},
    ],
)
def test_a_task_ends_in_its_time_though_nothing_comes_to_go_by(start_policy, task):
    bench, robot = start_policy({**task, "generation.timeout": 1.0})
    if task.get("action.pairing") != "every":
        show(bench, robot)
    bench.client.ask(TASK)
    bench.wait(lambda: bench.client.reports, "the task ends", 20.0)
    report = pairs(bench.client.reports[-1])
    assert report["refusal_code"] == "deadline" and "generation.timeout" in report["refusal"]


def show_past(bench, robot, seconds):
    """Observations of so long ago until now, ten a second; returns the stamp of the last."""
    now = robot.now()
    for tenth in range(10 * seconds, 0, -1):
        show(bench, robot, now - tenth * NANOSECONDS // 10)
    return show(bench, robot)


def label(stamp):
    return f"stamp={stamp // NANOSECONDS}.{stamp % NANOSECONDS:09d} "


def test_a_prompt_where_every_observation_counts_begins_with_the_newest(start_policy):
    bench, robot = start_policy({**IN_ORDER, "action.rate": 0.0, "images.max_age": 5.0})
    for _ in range(2):
        stamp = show_past(bench, robot, 8)
        (report,) = bench.ask(TASK)
        assert report["chunks"] == "1" and label(stamp).startswith(f"stamp={report['observation_stamp']} ")


def test_a_robot_does_not_go_through_what_waited_too_long(start_policy):
    bench, robot = start_policy({**IN_ORDER, "images.max_age": 0.5})
    bench.client.ask(TASK)
    bench.wait_running()
    policy, released = bench.node.state.policy, threading.Event()
    compute = policy.host.compute

    def late(*arguments, **options):
        released.wait(60.0)
        return compute(*arguments, **options)

    policy.host.compute = late
    for _ in range(40):
        show(bench, robot)
        time.sleep(0.05)
    released.set()

    def follows():
        robot.observe(pictures(), state())
        return policy.motion.moving

    bench.wait(follows, "a new one moves the robot")
    assert policy.motion.counts().get("fault.stale_observation", 0) <= 2  # of thirty that waited longer


def test_what_was_computed_of_before_the_silence_is_dropped():
    said, step, start = [], NANOSECONDS // 20, 1_000 * NANOSECONDS
    outputs = type("Outputs", (), {"publish_plan": lambda *_: said.append("plan"),
                                   "publish_hold": lambda *_: said.append("hold")})()  # fmt: skip
    motion = Motion(outputs, ActionMeaning.JOINT_POSITION, lambda refusal: None)
    epoch = motion.begin(ChunkTimeline())
    free = MotionSettings(ActionLimits())

    def of(stamp):
        return ActionChunk(np.zeros((40, 1)), stamp, step, ("pan",), ("rad",))

    motion.follow(of(start), free, start, epoch)
    gone = Refusal(RefusalCode.STALE_OBSERVATION, "Silent.")
    motion.blind(gone, start + 10 * step)
    motion.blind(gone, start + 11 * step)  # it holds already
    assert said == ["plan", "hold"]
    refusal = motion.follow(of(start + 9 * step), free, start + 12 * step, epoch)
    assert refusal.code is RefusalCode.STALE_OBSERVATION and said[-1] == "hold"
    assert isinstance(motion.follow(of(start + 10 * step), free, start + 12 * step, epoch), Plan)
    motion.blind(gone, start + 20 * step)
    motion.clock_jumped(gone)
    assert isinstance(motion.follow(of(start - 900 * NANOSECONDS), free, start - 900 * NANOSECONDS, epoch), Plan)
