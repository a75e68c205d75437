"""Who else would take part in a replay: what moves on the node's actions, and what publishes beside the recording."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_MOVING = {"trajectory_msgs/msg/JointTrajectory", "std_msgs/msg/Float64MultiArray", "nav_msgs/msg/Path"}
_SEEN = {
    "rosgraph_msgs/msg/Clock", "sensor_msgs/msg/JointState", "nav_msgs/msg/Odometry", "sensor_msgs/msg/Image",
    "sensor_msgs/msg/CompressedImage",
}  # fmt: skip
_WATCHERS = ("_ros2cli", "rviz", "rqt", "rosbag2", "foxglove", "plotjuggler")  # how names begin of what only looks


def bystanders(node: Any, server: str, topics: Iterable[str]) -> str:
    """Why ``node`` may play nothing to the node ``server`` of its namespace; empty where nothing speaks against it.

    ``topics`` are those that it would publish.
    """
    own = {(name, node.get_namespace()) for name in (node.get_name(), server)}
    for topic, kinds in node.get_publisher_names_and_types_by_node(server, node.get_namespace()):
        listeners = _others(node.get_subscriptions_info_by_topic(topic), own) if _MOVING & {*kinds} else []
        moved = [name for name in listeners if not name.lstrip("/").split("/")[-1].startswith(_WATCHERS)]
        if moved:
            return (
                f"{', '.join(moved)} listens to {topic} and would move on what the node makes of the recording; stop "
                "it, or replay in a ROS_DOMAIN_ID of its own."
            )
    for topic in topics:
        infos = [info for info in node.get_publishers_info_by_topic(topic) if info.topic_type in _SEEN]
        if sources := _others(infos, own):
            return (
                f"{', '.join(sources)} publishes {topic} too, which would mix with the recording; stop it, or replay "
                "in a ROS_DOMAIN_ID of its own."
            )
    return ""


def _others(infos: Iterable[Any], own: set[tuple[str, str]]) -> list[str]:
    """Whole names of nodes that are not our own."""
    found = {(info.node_name, info.node_namespace) for info in infos} - own
    return sorted(f"{namespace.rstrip('/')}/{name}" for name, namespace in found)
