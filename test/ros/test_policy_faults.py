"""What goes wrong while a policy moves a robot: clocks, parameters, time limits, failures, hostile messages."""

from __future__ import annotations

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from lifecycle_msgs.msg import Transition
from policy_bench import CAMERAS, JOINTS, TASK, end, pictures, show, state
from rosgraph_msgs.msg import Clock

from edgellm_ros.action.chunk import NANOSECONDS, ActionChunk, ActionLimits
from edgellm_ros.action.timeline import ChunkTimeline
from edgellm_ros.ros.action_messages import time_message
from edgellm_ros.ros.client import pairs
from edgellm_ros.ros.motion import MotionSettings

MOVING = {"action.rate": 10.0, "generation.timeout": 0.0}


def move(bench, robot):
    """A task that runs."""
    show(bench, robot)
    bench.client.ask(TASK)
    bench.wait(lambda: robot.trajectories and robot.trajectories[-1].points, "the robot moves")


def wait_hold(bench, robot):
    bench.wait(lambda: robot.trajectories and not robot.trajectories[-1].points, "the robot holds")
    assert not bench.node.state.policy.motion.moving


@pytest.mark.parametrize("way", ["cancel", "disable", "deactivate", "shut down"])
def test_who_stops_the_robot_stops_it_even_where_faults_hold_nothing(start_policy, way):
    bench, robot = start_policy({**MOVING, "safety.on_fault": "none"})
    move(bench, robot)
    end(bench, way)
    if way == "shut down":
        bench.wait(lambda: not robot.trajectories[-1].points, "the robot holds though the topic is gone")
        return
    wait_hold(bench, robot)


@pytest.mark.parametrize(
    ("prompt", "settings", "code"),
    [
        ("what is that?", {"action__on_prompt": "answer"}, "unsupported"),
        ("move " * 100, {}, "input_too_long"),
    ],
)
@pytest.mark.parametrize("rate", [10.0, 0.0])
def test_a_task_that_is_replaced_by_none_holds_but_a_single_chunk_goes_on(start_policy, prompt, settings, code, rate):
    bench, robot = start_policy({**MOVING, "action.rate": rate, "prompt.on_busy": "replace"})
    move(bench, robot)
    assert set(bench.set(**settings)) <= {""}
    bench.client.ask(prompt)
    bench.wait(
        lambda: bench.client.reports and pairs(bench.client.reports[-1])["refusal_code"] == code, "it is refused"
    )
    if rate:
        wait_hold(bench, robot)
    else:
        assert bench.node.state.policy.motion.moving and robot.trajectories[-1].points


def test_a_hold_that_cannot_be_published_keeps_nothing_else_from_its_end(start_policy):
    bench, robot = start_policy(MOVING)
    move(bench, robot)

    def refuse(message):
        raise RuntimeError("of a context that is gone")

    bench.node.state.policy.outputs.trajectory.publish = refuse
    assert bench.change(Transition.TRANSITION_DEACTIVATE)
    bench.wait(lambda: bench.client.reports, "the task ends")
    assert bench.lifecycle == "inactive" and not bench.node.state.policy.motion.moving


@pytest.mark.parametrize("way", ["cancel", "reset", "disable", "deactivate"])
def test_a_chunk_that_gets_out_while_everything_is_ended_is_followed_by_a_hold(start_policy, way):
    bench, robot = start_policy(MOVING)
    show(bench, robot)
    policy, ends = bench.node.state.policy, bench.node.bridge.cancel_all

    def moves_meanwhile(refusal):
        now = policy.now()
        epoch = policy.motion.begin(ChunkTimeline(), now)  # as a task that starts at this very moment
        made = ActionChunk(np.zeros((7, 4)), now, NANOSECONDS // 5, JOINTS[:4], ("rad",) * 4)
        policy.motion.follow(made, MotionSettings(ActionLimits()), now, epoch)
        return ends(refusal)

    bench.node.bridge.cancel_all = moves_meanwhile
    end(bench, way)
    bench.wait(lambda: robot.chunks, "the chunk gets out")
    wait_hold(bench, robot)


def test_a_running_task_is_watched_whatever_its_rate_has_become(start_policy):
    bench, robot = start_policy(MOVING)
    move(bench, robot)
    assert bench.set(action__rate=0.0) == [""]
    bench.node.state.policy.host.compute = lambda *arguments, **options: None  # no chunk comes any more
    wait_hold(bench, robot)
    assert bench.node.state.policy.motion.counts()["starved"] == 1 and not bench.client.reports


def test_an_old_observation_that_waits_in_order_moves_nothing(start_policy):
    bench, robot = start_policy({**MOVING, "action.rate": 50.0, "action.pairing": "every", "images.max_age": 2.0})
    show(bench, robot, robot.now() - 20 * NANOSECONDS)
    bench.client.ask(TASK)
    motion = bench.node.state.policy.motion
    bench.wait(lambda: motion.counts().get("fault.stale_observation"), "it is refused")
    assert not robot.chunks and not motion.moving

    def moves():
        robot.observe(pictures(), state())
        return robot.chunks

    bench.wait(moves, "a new one moves the robot", 30.0)


@pytest.mark.parametrize(
    ("cameras", "sentence"), [(["top"], "camera 'wrist' is missing"), ([*CAMERAS, "rear"], "no camera 'rear'")]
)
def test_cameras_that_are_not_the_policys_stop_the_configuration(start_node, policy_engine, cameras, sentence):
    given = {"engine.backend": "auto", "engine.directory": str(policy_engine), "cameras": cameras}
    bench = start_node(given, active=False)
    assert not bench.change(Transition.TRANSITION_CONFIGURE)
    assert sentence in bench.node.state.failure and bench.node.state.policy is bench.node.state.cameras is None


def test_parameters_of_actions_show_where_nothing_acts(start_node):
    bench = start_node()
    bench.wait(lambda: bench.diagnostics, "the statuses")
    assert "policy" not in bench.diagnostics
    assert bench.set(action__noise_seed=7, safety__max_state_age=1.0) == ["", ""]
    bench.wait(lambda: "policy" in bench.diagnostics, "the status")
    status = bench.diagnostics["policy"]
    assert status.level == DiagnosticStatus.WARN and "holds no policy" in status.message
    assert "action.noise_seed, safety.max_state_age" in status.message


def test_a_task_that_is_out_of_its_time_holds(start_policy):
    bench, robot = start_policy({**MOVING, "generation.timeout": 1.0})
    move(bench, robot)
    bench.wait(lambda: bench.client.reports, "the task ends")
    assert pairs(bench.client.reports[-1])["refusal_code"] == "deadline"
    wait_hold(bench, robot)


def test_a_prompt_that_waits_for_pictures_in_vain_ends_in_its_time(start_policy):
    bench, _robot = start_policy({"images.on_missing": "wait", "generation.timeout": 0.5})
    (report,) = bench.ask(TASK)
    assert report["refusal_code"] == "deadline" and "waited for it in vain" in report["refusal"]


def test_a_failure_nobody_foresaw_holds_the_robot_and_ends_the_task_with_a_sentence(start_policy):
    bench, robot = start_policy(MOVING)
    move(bench, robot)

    def fail(*arguments, **options):
        raise ZeroDivisionError("of a test")

    bench.node.state.policy.host.runtime.compute = fail
    bench.wait(lambda: bench.client.reports, "the task ends")
    report = pairs(bench.client.reports[-1])
    assert report["refusal_code"] == "engine_failed" and "ZeroDivisionError: of a test" in report["refusal"]
    wait_hold(bench, robot)


def test_a_clock_that_goes_back_holds_until_there_are_observations_of_the_new_time(start_policy):
    bench, robot = start_policy({**MOVING, "use_sim_time": True, "images.max_age": 0.5, "safety.max_state_age": 0.5})
    clock = bench.client.create_publisher(Clock, "/clock", 10)
    bench.wait(lambda: clock.get_subscription_count(), "the node hears the clock")

    def tick(seconds):
        moment = round(seconds * NANOSECONDS)
        clock.publish(Clock(clock=time_message(moment)))
        bench.wait(lambda: bench.node.get_clock().now().nanoseconds == moment, "the node has the time")
        return moment

    show(bench, robot, tick(100.0))
    bench.client.ask(TASK)
    bench.wait(lambda: robot.trajectories and robot.trajectories[-1].points, "the robot moves")
    moment = tick(40.0)
    wait_hold(bench, robot)
    held = len(robot.trajectories)
    policy = bench.node.state.policy
    bench.wait(lambda: policy.motion.counts().get("fault.no_images"), "it says what is missing")
    assert len(robot.trajectories) == held
    show(bench, robot, moment)
    bench.wait(lambda: robot.trajectories[-1].points, "the robot moves again")
    assert robot.trajectories[-1].header.stamp.sec == 40
    tick(200.0)  # and what is old in a time that jumped ahead stops it again
    wait_hold(bench, robot)
    assert not bench.client.reports
