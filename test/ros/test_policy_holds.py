"""Where a task ends or an observation is missing the robot holds, and a task that goes on uses the newest."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from policy_bench import JOINTS, TASK, end, pictures, show, state

from edgellm_ros.action.chunk import NANOSECONDS
from edgellm_ros.ros.client import pairs


@pytest.mark.parametrize(
    ("break_it", "code", "sentence"),
    [
        ("nothing shown", "no_images", "No image has come"),
        ("no joints", "bad_observation", "No joint states have come yet"),
        ("a joint is missing", "bad_observation", "lack 'wrist'"),
        ("a joint is not finite", "bad_observation", "'lift' is nan"),
        ("old joints", "stale_observation", "joint states are"),
    ],
)
def test_without_a_valid_observation_nothing_moves(start_policy, break_it, code, sentence):
    bench, robot = start_policy({"safety.max_state_age": 0.5})
    policy = bench.node.state.policy
    if break_it != "nothing shown":
        stamp = robot.now()
        values = np.array(state())
        names = JOINTS
        if break_it == "a joint is missing":
            names, values = JOINTS[:4], values[:4]
        elif break_it == "a joint is not finite":
            values[1] = np.nan
        elif break_it == "old joints":
            robot.feel(values, stamp - NANOSECONDS)
        _show_parts(robot, names, values, stamp, break_it)
        bench.wait(lambda: policy.cameras.frames.next_after(stamp - 1, slop=0.0) is not None, "the images arrive")
        if break_it != "no joints":
            bench.wait(lambda: policy.joints.events(), "the joints arrive")
    (report,) = bench.ask(TASK)
    assert report["refusal_code"] == code and sentence in report["refusal"]
    assert not robot.trajectories and not robot.chunks


def _show_parts(robot, names, values, stamp, break_it):
    robot.see(pictures(), stamp)
    if break_it not in ("no joints", "old joints"):
        robot.feel(values, stamp, names)


@pytest.mark.parametrize("way", ["cancel", "disable", "deactivate", "reset"])
def test_whatever_ends_a_task_holds_the_robot_at_once(start_policy, way):
    bench, robot = start_policy({"action.rate": 5.0, "generation.timeout": 0.0})
    show(bench, robot)
    bench.client.ask(TASK)
    bench.wait(lambda: robot.trajectories, "the robot moves")
    end(bench, way)
    bench.wait(lambda: bench.client.reports, "the task ends")
    bench.wait(lambda: not robot.trajectories[-1].points, "the robot holds")
    count = len(robot.trajectories)
    assert pairs(bench.client.reports[-1])["refusal_code"] in ("cancelled", "disabled", "not_active")
    assert not bench.node.state.policy.motion.moving
    show(bench, robot)
    assert len(robot.trajectories) == count


def test_a_running_task_takes_new_observations_and_live_settings(start_policy):
    bench, robot = start_policy({"action.rate": 20.0, "generation.timeout": 0.0, "action.noise_mode": "fixed"})
    show(bench, robot)
    bench.client.ask(TASK)
    bench.wait(lambda: len(robot.chunks) >= 2, "chunks come")
    assert bench.set(action__noise_seed=11) == [""]
    bench.wait(lambda: " seed=11 " in robot.chunks[-1].layout.dim[0].label, "the new seed is used")
    stamp = show(bench, robot)
    label = f"stamp={stamp // NANOSECONDS}.{stamp % NANOSECONDS:09d}"
    bench.wait(lambda: label in robot.chunks[-1].layout.dim[0].label, "the new observation is used")


@pytest.mark.parametrize("on_missing", ["reject", "wait"])
def test_a_camera_that_stops_holds_the_robot_until_it_is_back(start_policy, on_missing):
    given = {"action.rate": 20.0, "generation.timeout": 0.0, "images.max_age": 0.5, "images.on_missing": on_missing}
    bench, robot = start_policy(given)
    show(bench, robot)
    bench.client.ask(TASK)
    bench.wait(lambda: robot.trajectories, "the robot moves")
    bench.wait(lambda: not robot.trajectories[-1].points, "the robot holds")
    counts = bench.node.state.policy.motion.counts()
    assert counts["fault.no_images"] and "starved" not in counts  # at once, not at the end of its plan
    show(bench, robot)
    bench.wait(lambda: robot.trajectories[-1].points, "the robot moves again")
    assert not bench.client.reports  # the task was never ended


@pytest.mark.parametrize("way", ["cancel", "disable", "deactivate"])
def test_a_stop_waits_for_no_computation_and_what_comes_of_it_moves_nothing(start_policy, way):
    bench, robot = start_policy({"action.rate": 5.0, "generation.timeout": 0.0, "action.splice": "blend"})
    show(bench, robot)
    bench.client.ask(TASK)
    bench.wait(lambda: robot.trajectories, "the robot moves")
    policy, computing, released = bench.node.state.policy, threading.Event(), threading.Event()
    compute = policy.host.compute

    def late(*arguments, cancelled, **options):
        computing.set()
        released.wait(30.0)
        return compute(*arguments, cancelled=lambda: False, **options)  # as where a device replays the whole loop

    policy.host.compute = late
    bench.wait(computing.is_set, "a chunk is computed")
    end(bench, way)
    bench.wait(lambda: not robot.trajectories[-1].points, "the robot holds")
    assert not policy.motion.moving and not released.is_set()
    released.set()
    bench.wait(lambda: policy.motion.counts().get("dropped.cancelled"), "the chunk is dropped")
    assert not robot.trajectories[-1].points and not policy.motion.moving
