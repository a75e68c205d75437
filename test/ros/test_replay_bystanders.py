"""A recording moves nothing: what would act on it, or publish beside it, keeps it from being played."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("rosbags")
pytest.importorskip("rclpy")

from replay_bench import prompts, replay, write_bag
from rosgraph_msgs.msg import Clock

from edgellm_ros.backends.fake import FakeMode, FakeScript, write_fake_engine_directory
from edgellm_ros.ros.graph import UNKNOWN, Endpoint, Graph, looking_node
from edgellm_ros.ros.replay_bystanders import bystanders

SERVER, PLAYER = "/left/edgellm", "/left/edgellm_replay"
PLAYED = ("/clock", "/left/joint_states", "/left/top/image_raw", "/left/prompt")
ACTIONS = {
    "/left/action_trajectory": "trajectory_msgs/msg/JointTrajectory",
    "/left/action_chunk": "std_msgs/msg/Float64MultiArray",
    "/left/action_path": "nav_msgs/msg/Path",
}
CLOCK, JOINTS, IMAGE = "rosgraph_msgs/msg/Clock", "sensor_msgs/msg/JointState", "sensor_msgs/msg/Image"


def told(publisher: Endpoint | None = None, subscription: Endpoint | None = None) -> str:
    """What speaks against playing to a node that acts, with this beside the two."""
    publishers = [Endpoint(topic, kind, SERVER) for topic, kind in ACTIONS.items()] + [
        Endpoint("/clock", CLOCK, PLAYER)
    ]
    subscriptions = [Endpoint("/left/action_chunk", ACTIONS["/left/action_chunk"], PLAYER)]
    graph = Graph((*publishers, *filter(None, [publisher])), (*subscriptions, *filter(None, [subscription])))
    return bystanders(graph, SERVER, PLAYER, PLAYED)


def test_the_player_and_the_node_are_nobody_else() -> None:
    assert told() == ""


@pytest.mark.parametrize(("topic", "kind"), ACTIONS.items())
@pytest.mark.parametrize("name", ["/controller", "/rviz2/controller", PLAYER, UNKNOWN])
def test_what_listens_to_actions_keeps_a_recording_from_being_played(topic: str, kind: str, name: str) -> None:
    """A second player has the name of the first."""
    reason = told(subscription=Endpoint(topic, kind, name))
    if name == PLAYER and topic != "/left/action_chunk":
        assert reason == ""
    else:
        assert reason.startswith(f"{name} listens to {topic} and would move on what the node makes")


@pytest.mark.parametrize("name", ["/rviz2", "/_ros2cli_77", "/left/rosbag2_recorder"])
def test_what_only_looks_may(name: str) -> None:
    assert [told(subscription=Endpoint(topic, kind, name)) for topic, kind in ACTIONS.items()] == ["", "", ""]


@pytest.mark.parametrize(
    ("beside", "sentence"),
    [
        (Endpoint("/clock", CLOCK, "/robot/driver"), "/robot/driver publishes /clock too"),
        (Endpoint("/clock", CLOCK, PLAYER), f"{PLAYER} publishes /clock too"),
        (Endpoint("/clock", CLOCK, UNKNOWN), f"{UNKNOWN} publishes /clock too"),
        (Endpoint("/left/joint_states", JOINTS, "/robot/driver"), "/robot/driver publishes /left/joint_states too"),
        (Endpoint("/left/top/image_raw", IMAGE, "/robot/driver"), "/robot/driver publishes /left/top/image_raw too"),
        (Endpoint("/right/joint_states", JOINTS, "/robot/driver"), ""),
        (Endpoint("/left/prompt", "std_msgs/msg/String", "/robot/driver"), ""),
    ],
    ids=str,
)
def test_what_publishes_beside_the_recording_keeps_it_from_being_played(beside: Endpoint, sentence: str) -> None:
    reason = told(publisher=beside)
    assert reason.startswith(sentence) and bool(reason) is bool(sentence)


@pytest.mark.timeout(200)
def test_the_command_refuses_and_plays_nothing(tmp_path) -> None:
    engine = write_fake_engine_directory(tmp_path / "engine", FakeScript(mode=FakeMode.ECHO))
    bag = write_bag(tmp_path / "bag", prompts("one"))
    with looking_node("simulator") as simulator:
        simulator.create_publisher(Clock, "/clock", 1)
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
