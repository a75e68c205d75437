"""``edgellm check --live`` compares what a robot publishes with what the node takes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("rclpy")

import rclpy
from check_bench import Check, written
from policy_bench import CAMERAS, JOINTS
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage, Image, JointState
from trajectory_msgs.msg import JointTrajectory


@pytest.fixture
def robot() -> Iterator[Node]:
    """A node of somebody else's, spun by a thread."""
    context = Context()
    rclpy.init(args=[], context=context)
    node, executor = Node("robot", context=context), SingleThreadedExecutor(context=context)
    executor.add_node(node)

    def spin() -> None:
        with contextlib.suppress(ExternalShutdownException):
            executor.spin()

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    yield node
    rclpy.try_shutdown(context=context)
    thread.join(10.0)


def publish_joints(node: Node, names: tuple[str, ...]) -> None:
    publisher = node.create_publisher(JointState, "arm/joints", 10)
    message = JointState(name=list(names), position=[0.0] * len(names))
    node.create_timer(0.05, lambda: publisher.publish(message))


REMAP = ("--remap", "joint_states:=arm/joints")


def test_what_a_robot_publishes_is_compared_with_what_the_node_takes(
    policy_engine: Path, check: Check, robot: Node
) -> None:
    for name in CAMERAS:
        robot.create_publisher(Image, f"{name}/image_raw", qos_profile_sensor_data)
    publish_joints(robot, JOINTS)
    robot.create_subscription(JointTrajectory, "controller", lambda _: None, 1)
    found = check(policy_engine, "--live", 20, *REMAP, "--remap", "action_trajectory:=/controller")
    assert not found["problem"], found
    assert f"live: /arm/joints has every joint of the policy: {', '.join(JOINTS)}." in found["ok"]
    assert not any("Nobody listens" in sentence for sentence in found["warning"])


def test_what_a_robot_publishes_otherwise_or_not_at_all_is_a_problem(
    policy_engine: Path, check: Check, robot: Node, tmp_path: Path
) -> None:
    robot.create_publisher(CompressedImage, "top/image_raw", 1)
    robot.create_publisher(Image, "wrist/image_raw", qos_profile_sensor_data)
    publish_joints(robot, JOINTS[1:])
    file = written(tmp_path / "robot.yaml", {"qos_overrides./wrist/image_raw.subscription.reliability": "reliable"})
    found = check(policy_engine, "--live", 3, *REMAP, "--params-file", file)
    problems = {sentence.split()[1]: sentence for sentence in found["problem"]}
    assert "is published as sensor_msgs/msg/CompressedImage; want sensor_msgs/msg/Image" in problems["/top/image_raw"]
    assert "quality of service that does not fit" in problems["/wrist/image_raw"]
    assert "qos_overrides./wrist/image_raw" in problems["/wrist/image_raw"]
    assert problems["Nobody"].startswith("live: Nobody publishes /side/image_raw (sensor_msgs/msg/Image)")
    assert f"and lacks {JOINTS[0]}; name the joints in action.joint_names" in problems["/arm/joints"]
    assert len(problems) == 4
    assert any("Nobody listens to /action_trajectory" in sentence for sentence in found["warning"])
