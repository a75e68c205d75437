"""A recording whose messages are stamped by another clock than the one that recorded them is told so."""

from __future__ import annotations

import pytest

pytest.importorskip("rosbags")
pytest.importorskip("rclpy")

from replay_bench import BEGIN, prompts, write_bag
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header

from edgellm_ros.ros.action_messages import time_message
from edgellm_ros.ros.bag import Bag
from edgellm_ros.ros.replay_stamps import strange_stamps


def stamped(seconds, topic, kind, stamp):
    return seconds, topic, kind(header=Header(stamp=time_message(stamp)))


@pytest.mark.parametrize(
    ("stamp", "said"),
    [
        (BEGIN + 50_000_000, ""),
        (BEGIN + 900_000_000, ""),
        (0, ""),
        (2_000_000_000, "The stamps of /top lie 1699999998.10 s before the time of their recording"),
        (BEGIN + 5_100_000_000, "The stamps of /top lie 5.00 s behind the time of their recording"),
    ],
)
def test_stamps_of_another_clock_are_told_with_what_to_do(tmp_path, stamp, said):
    messages = [
        *prompts("one"),
        stamped(0.1, "/joints", JointState, BEGIN + 100_000_000),
        stamped(0.1, "/top", Image, stamp),
    ]
    with Bag(write_bag(tmp_path / "bag", messages)) as bag:
        found = strange_stamps(bag, ["/prompt", "/joints", "/top"])
        assert found.startswith(said) and bool(found) == bool(said)
        assert not said or found.endswith("'ros2 bag record --use-sim-time', and a robot whose clocks agree.")
        assert strange_stamps(bag, ["/prompt", "/joints"]) == ""


@pytest.mark.parametrize(("seconds", "told"), [(9.0, True), (11.0, False)])
def test_a_topic_that_is_silent_for_long_is_not_waited_for(tmp_path, seconds, told):
    messages = [stamped(0.0, "/joints", JointState, BEGIN), stamped(seconds, "/top", Image, 1_000_000_000)]
    with Bag(write_bag(tmp_path / "bag", messages)) as bag:
        assert bool(strange_stamps(bag, bag.topics)) == told
