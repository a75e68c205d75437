"""Writes recordings of rosbag2 and plays them with the command."""

from __future__ import annotations

import os
import subprocess
import sys

from rclpy.serialization import serialize_message
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore
from std_msgs.msg import String

BEGIN = 1_700_000_000_000_000_000
DEADLINE = 120.0


def write_bag(path, messages, storage=StoragePlugin.MCAP, serialisation="cdr"):
    """``messages``: seconds from the beginning, topic and message."""
    store = get_typestore(Stores.ROS2_JAZZY)
    with Writer(path, version=9, storage_plugin=storage) as writer:
        connections = {}
        for seconds, topic, message in messages:
            if topic not in connections:
                package, _, name = type(message).__module__.partition(".msg.")
                kind = f"{package}/msg/{type(message).__name__}"
                connections[topic] = writer.add_connection(
                    topic, kind, typestore=store, serialization_format=serialisation
                )
                assert name
            writer.write(connections[topic], BEGIN + round(seconds * 1e9), serialize_message(message))
    return path


def prompts(*texts, step=0.4):
    return [(0.1 + step * index, "/prompt", String(data=text)) for index, text in enumerate(texts)]


def replay(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "edgellm_ros.cli.main", "replay", "--domain", os.environ["ROS_DOMAIN_ID"]]
        + [str(argument) for argument in arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
