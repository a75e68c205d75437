"""Who else would take part in a replay: what moves on the node's actions, and what publishes beside the recording."""

from __future__ import annotations

from collections.abc import Iterable

from .graph import Endpoint, Graph

_MOVING = {"trajectory_msgs/msg/JointTrajectory", "std_msgs/msg/Float64MultiArray", "nav_msgs/msg/Path"}
_SEEN = {
    "rosgraph_msgs/msg/Clock", "sensor_msgs/msg/JointState", "nav_msgs/msg/Odometry", "sensor_msgs/msg/Image",
    "sensor_msgs/msg/CompressedImage",
}  # fmt: skip
_WATCHERS = ("_ros2cli", "rviz", "rqt", "rosbag2", "foxglove", "plotjuggler")  # how names begin of what only looks


def bystanders(graph: Graph, server: str, player: str, topics: Iterable[str]) -> str:
    """Why ``player`` may play nothing to ``server``, both whole names; empty where nothing speaks against it.

    ``topics`` are those that it would publish.
    """
    for topic in sorted(
        {endpoint.topic for endpoint in graph.publishers_of(server) if endpoint.message_type in _MOVING}
    ):
        listeners = _others((one for one in graph.subscriptions if one.topic == topic), server, player)
        moved = [name for name in listeners if not name.split("/")[-1].startswith(_WATCHERS)]
        if moved:
            return (
                f"{', '.join(moved)} listens to {topic} and would move on what the node makes of the recording; stop "
                "it, or replay in a ROS_DOMAIN_ID of its own."
            )
    for topic in topics:
        beside = (one for one in graph.publishers if one.topic == topic and one.message_type in _SEEN)
        if sources := _others(beside, server, player):
            return (
                f"{', '.join(sources)} publishes {topic} too, which would mix with the recording; stop it, or replay "
                "in a ROS_DOMAIN_ID of its own."
            )
    return ""


def _others(endpoints: Iterable[Endpoint], server: str, player: str) -> list[str]:
    """Nodes that are neither; ``player`` has one endpoint of a topic, and a second is that of another player."""
    names = [endpoint.node for endpoint in endpoints if endpoint.node != server]
    if player in names:
        names.remove(player)
    return sorted(set(names))
