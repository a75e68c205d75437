"""A recording moves nothing: what would act on it, or publish beside it, keeps it from being played."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("rosbags")
pytest.importorskip("rclpy")

import rclpy
from nav_msgs.msg import Path
from rclpy.context import Context
from rclpy.node import Node
from replay_bench import prompts, replay, write_bag
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray, String
from trajectory_msgs.msg import JointTrajectory

from edgellm_ros.backends.fake import FakeMode, FakeScript, write_fake_engine_directory
from edgellm_ros.ros.replay_bystanders import bystanders

MakeNode = Callable[..., Node]
PLAYED = ("/clock", "/left/joint_states", "/left/top/image_raw", "/left/prompt")
ACTIONS = {"action_trajectory": JointTrajectory, "action_chunk": Float64MultiArray, "action_path": Path}


@pytest.fixture
def make_node() -> Iterator[MakeNode]:
    context, nodes = Context(), []
    rclpy.init(args=[], context=context)

    def make(name: str, namespace: str = "/") -> Node:
        nodes.append(rclpy.create_node(name, namespace=namespace, context=context))  # one that nobody holds goes away
        return nodes[-1]

    yield make
    rclpy.try_shutdown(context=context)


@pytest.fixture
def player(make_node: MakeNode) -> Node:
    """The one that plays, to a node that acts."""
    server, player = make_node("edgellm", "/left"), make_node("edgellm_replay", "/left")
    for topic, kind in ACTIONS.items():
        server.create_publisher(kind, topic, 1)
    server.create_subscription(JointState, "joint_states", lambda _: None, 1)
    player.create_publisher(Clock, "/clock", 1)
    player.create_publisher(JointState, "joint_states", 1)
    player.create_subscription(Float64MultiArray, "action_chunk", lambda _: None, 1)
    return player


def found(player: Node, ready: Callable[[], object]) -> str:
    end = time.monotonic() + 20.0
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.02)
    return bystanders(player, "edgellm", PLAYED)


def acts(player: Node) -> bool:
    return all(player.count_publishers(f"/left/{topic}") for topic in ACTIONS)


def test_the_player_and_the_node_are_nobody_else(player: Node) -> None:
    assert found(player, lambda: acts(player)) == ""


@pytest.mark.parametrize("topic", ACTIONS)
def test_what_listens_to_actions_keeps_a_recording_from_being_played(
    player: Node, make_node: MakeNode, topic: str
) -> None:
    make_node("controller").create_subscription(ACTIONS[topic], f"/left/{topic}", lambda _: None, 1)
    wanted = 1 + (topic == "action_chunk")
    told = found(player, lambda: acts(player) and player.count_subscribers(f"/left/{topic}") == wanted)
    assert told.startswith(f"/controller listens to /left/{topic} and would move on what the node makes")


@pytest.mark.parametrize("name", ["rviz2", "_ros2cli_77", "rosbag2_recorder"])
def test_what_only_looks_may(player: Node, make_node: MakeNode, name: str) -> None:
    watcher: Any = make_node(name)
    for topic, kind in ACTIONS.items():
        watcher.create_subscription(kind, f"/left/{topic}", lambda _: None, 1)
    assert found(player, lambda: acts(player) and player.count_subscribers("/left/action_path")) == ""


@pytest.mark.parametrize(
    ("kind", "topic", "told"),
    [
        (Clock, "/clock", "/robot/driver publishes /clock too"),
        (JointState, "/left/joint_states", "/robot/driver publishes /left/joint_states too"),
        (Image, "/left/top/image_raw", "/robot/driver publishes /left/top/image_raw too"),
        (JointState, "/right/joint_states", ""),
        (String, "/left/prompt", ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_publishes_beside_the_recording_keeps_it_from_being_played(
    player: Node, make_node: MakeNode, kind: type, topic: str, told: str
) -> None:
    robot = make_node("driver", "/robot")
    robot.create_publisher(kind, topic, 1)
    seen = lambda: [info for info in player.get_publishers_info_by_topic(topic) if info.node_name == "driver"]  # noqa: E731
    reason = found(player, lambda: acts(player) and seen())
    assert reason.startswith(told) and bool(reason) is bool(told)


@pytest.mark.timeout(200)
def test_the_command_refuses_and_plays_nothing(tmp_path, make_node: MakeNode) -> None:
    engine = write_fake_engine_directory(tmp_path / "engine", FakeScript(mode=FakeMode.ECHO))
    make_node("simulator").create_publisher(Clock, "/clock", 1)
    bag = write_bag(tmp_path / "bag", prompts("one"))
    result = replay(bag, "--engine-dir", engine, "--set", "engine.backend=fake")
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Playing" not in result.stdout
    assert "/simulator publishes /clock too, which would mix with the recording; stop it" in result.stderr


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("ROS_DOMAIN_ID", "left", "ROS_DOMAIN_ID is 'left'; want a whole number from 0 to 101"),
        ("RMW_IMPLEMENTATION", "rmw_of_nobody", "RMW_IMPLEMENTATION names (rmw_of_nobody), or unset it"),
    ],
)
def test_an_environment_that_ros_does_not_take_is_a_sentence(
    tmp_path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, sentence: str
) -> None:
    bag = write_bag(tmp_path / "bag", prompts("one"))
    monkeypatch.setenv(variable, value)
    told = subprocess.run(
        [sys.executable, "-m", "edgellm_ros.cli.main", "replay", str(bag), "--node", "/edgellm"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.returncode == 2 and sentence in told.stderr and "Traceback" not in told.stderr
