"""A node with a policy among hostile publishers: nothing ends it, nothing bad comes out, and afterwards it works."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from policy_bench import CAMERAS, JOINTS, TASK, pictures, seconds, show, state
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image, JointState

from edgellm_ros.action.chunk import NANOSECONDS
from edgellm_ros.ros.parameter_schema import ParameterDefinition, ParameterEffect, ParameterType, schema
from edgellm_ros.vision.decode import ENCODINGS

MOVING = {"action.rate": 50.0, "generation.timeout": 0.0, "images.max_age": 5.0, "safety.max_state_age": 5.0}
ODD = [0.0, -1.0, 1e-300, 1e38, 1e308, -1e308, math.nan, math.inf, -math.inf]


def check_output(robot, caplog_text):
    """What came out is finite, in rising time, of the right joints, and nothing was printed as a traceback."""
    for trajectory in robot.trajectories:
        times = [seconds(point.time_from_start) for point in trajectory.points]
        assert list(trajectory.joint_names) == list(JOINTS[:4])
        assert all(later > earlier for earlier, later in itertools.pairwise([0.0, *times]))
        assert all(np.isfinite(point.positions).all() for point in trajectory.points)
    assert all(np.isfinite(chunk.data).all() for chunk in robot.chunks)
    assert "Traceback" not in caplog_text and "Warning" not in caplog_text


def odd_stamp(rng, now):
    """Zero, negative, old, of the future, beyond any clock, or right."""
    if rng.random() < 0.5:
        return Time(sec=now // NANOSECONDS, nanosec=now % NANOSECONDS)
    return Time(
        sec=rng.choice([0, 1, -1, -(2**31), 2**31 - 1, now // NANOSECONDS - 60, now // NANOSECONDS + 60]),
        nanosec=rng.choice([0, 1, 999_999_999, 2**32 - 1]),
    )


def odd_image(rng, now):
    message = Image(
        height=rng.choice([0, 1, 2, 3, 8, 16, 2**16, 2**31, 2**32 - 1]),
        width=rng.choice([0, 1, 2, 3, 8, 16, 2**16, 2**31, 2**32 - 1]),
        encoding=rng.choice([*ENCODINGS, "", "RGB8", "jpeg", "64FC1", "x" * 10_000, "\x1b[31m", "ü"]),
        is_bigendian=rng.choice([0, 1, 255]),
        step=rng.choice([0, 1, 24, 48, 2**31, 2**32 - 1]),
        data=bytes(rng.choice([0, 1, 47, 48, 768, 5000])),
    )
    message.header.stamp = odd_stamp(rng, now)
    message.header.frame_id = rng.choice(["", "x" * 1000, "ü\n\x1b"])
    whole = serialize_message(message)
    return whole[: rng.randrange(len(whole))] if rng.random() < 0.2 else whole


def odd_joints(rng, now):
    names = [rng.choice([*JOINTS, "", "ü", "x" * 500]) for _ in range(rng.choice([0, 1, 4, 5, 6, 200]))]
    if rng.random() < 0.6:
        names = rng.sample(JOINTS, len(JOINTS))
    count = max(0, len(names) + rng.choice([0, 0, 0, -1, 1]))
    positions = [rng.choice(ODD) if rng.random() < 0.3 else rng.gauss(0, 1) for _ in range(count)]
    message = JointState(name=names, position=positions, velocity=[math.nan] * rng.randrange(3))
    message.header.stamp = odd_stamp(rng, now)
    return serialize_message(message)


@pytest.mark.parametrize("seed", range(2))
def test_hostile_pictures_and_joints_end_nothing_and_let_nothing_bad_out(start_policy, capfd, seed):
    """IMG-5, IMG-6, ACT-1, ACT-2, ACT-3, SYN-2, with every kind of them at once."""
    rng = random.Random(seed)
    bench, robot = start_policy(MOVING)
    show(bench, robot)
    bench.client.ask(TASK)
    bench.wait(lambda: robot.chunks, "the robot moves")
    policy = bench.node.state.policy

    def heard():
        counts = [policy.joints.events(), *(policy.cameras.frames.events(name) for name in CAMERAS)]
        return sum(sum(count.values()) for count in counts)

    for number in range(300):
        told = heard()
        if number % 10 == 0:
            robot.observe(pictures(), state())
        elif rng.random() < 0.5:
            rng.choice(list(robot.images.values())).publish(odd_image(rng, robot.now()))
        else:
            robot.states.publish(odd_joints(rng, robot.now()))
        bench.wait(lambda told=told: heard() > told, "the node hears it")
    before = policy.motion.counts().get("followed", 0)

    def works():
        robot.observe(pictures(), state())
        return policy.motion.counts().get("followed", 0) > before

    bench.wait(works, "it works on", 30.0)
    bench.client.cancel()
    bench.wait(lambda: bench.client.reports and not robot.trajectories[-1].points, "the robot holds")
    assert bench.lifecycle == "active"
    check_output(robot, capfd.readouterr().err)


def odd_value(rng, definition: ParameterDefinition):
    """Of the right type mostly; within the limits or just beyond them."""
    if rng.random() < 0.05:
        return rng.choice([True, 7, 1.5, "text", ["text"]])
    if definition.type is ParameterType.BOOL:
        return rng.random() < 0.5
    if definition.choices:
        return rng.choice([*definition.choices, "nothing"])
    if definition.type in (ParameterType.INT, ParameterType.DOUBLE):
        low, high = definition.minimum or 0, definition.maximum or 1
        value = rng.choice([low, high, low - 1, high + 1, rng.uniform(low, min(high, low + 4))])
        return int(value) if definition.type is ParameterType.INT else rng.choice([float(value), math.nan])
    if definition.type is ParameterType.DOUBLE_ARRAY:
        return [rng.choice([*ODD, 10.0, -10.0, 10.0]) for _ in range(rng.choice([1, 4, 4, 5, 129]))]
    if definition.type is ParameterType.STRING_ARRAY:
        return rng.choice([["a"], [""], ["x"] * 20])
    return rng.choice(["", "text", "x" * 200_000])


def test_parameters_that_change_at_random_in_a_running_task_end_nothing(start_policy, capfd):
    """PAR-1 to PAR-4 while a policy runs: each is taken or refused with a sentence."""
    rng = random.Random(3)
    bench, robot = start_policy(MOVING)
    live = [row for row in schema().definitions if row.effect is ParameterEffect.REQUEST]
    live = [row for row in live if row.name not in ("generation.timeout", "images.max_age", "safety.max_state_age")]
    show(bench, robot)
    bench.client.ask(TASK)
    bench.wait(lambda: robot.chunks, "the robot moves")
    for round_ in range(60):
        rows = rng.sample(live, 3)
        changes = {row.name.replace(".", "__"): odd_value(rng, row) for row in rows}
        reasons = bench.set(**changes)
        assert all("Traceback" not in reason and reason.count("\n") == 0 for reason in reasons)
        robot.observe(pictures(), state())
        if round_ % 20 == 10:
            bench.trigger(rng.choice(["cancel", "reset"]))
            bench.client.ask(TASK)
    back = {row.name.replace(".", "__"): row.default for row in live if row.type is not ParameterType.DOUBLE_ARRAY}
    assert set(bench.set(**back)) == {""}
    assert set(bench.set(safety__lower=[], safety__upper=[], safety__max_step=[], action__rate=20.0)) == {""}
    bench.trigger("reset")
    told = len(robot.chunks)

    def works():
        robot.observe(pictures(), state())
        return len(robot.chunks) > told

    bench.client.ask(TASK)
    bench.wait(works, "it works on", 30.0)
    assert bench.lifecycle == "active"
    check_output(robot, capfd.readouterr().err)
