"""What a robot publishes now, compared with what the node would subscribe to; nothing is published here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rclpy.qos import (
    DurabilityPolicy,
    QoSCompatibility,
    QoSProfile,
    ReliabilityPolicy,
    qos_check_compatible,
    qos_profile_sensor_data,
)

from ..errors import EdgeLLMError, RefusalCode
from ..json_values import shown
from .graph import looking_node

_POLL = 0.05  # s
_LISTEN = 1.0  # s


@dataclass(frozen=True)
class WantedTopic:
    """A subscription of the node: its whole name, and the type as ``ros2 topic info`` names it."""

    topic: str
    message_type: str


class LiveTopics:
    """A node that looks; it belongs to the thread that made it."""

    def __init__(self, node: Any, executor: Any, seconds: float, overrides: Mapping[str, Any]) -> None:
        self._node, self._executor, self._overrides = node, executor, overrides
        self._end = time.monotonic() + seconds

    def trouble(self, wanted: WantedTopic) -> str:
        """Why nothing of a topic would arrive, once it has had its time to be found; empty where something does."""
        fits = self._wait(lambda: self._publishers(wanted), self._end)
        others = sorted(
            {info.topic_type for info in self._node.get_publishers_info_by_topic(wanted.topic)} - {wanted.message_type}
        )
        if not fits and others:
            return (
                f"{wanted.topic} is published as {', '.join(others)}; want {wanted.message_type}: remap the topic of "
                "that type, or set images.transport."
            )
        if not fits:
            return f"Nobody publishes {wanted.topic} ({wanted.message_type}); start what does, or remap the topic."
        profile = self._profile(wanted.topic)
        for info in fits:
            verdict, reason = qos_check_compatible(info.qos_profile, profile)
            if verdict == QoSCompatibility.ERROR:
                return (
                    f"{wanted.topic} comes from {info.node_name} with a quality of service that does not fit "
                    f"({reason.strip().rstrip('.;')}); change it there or with qos_overrides.{wanted.topic}."
                )
        return ""

    def subscribers(self, topic: str) -> int:
        """How many nodes listen to a topic."""
        return int(self._wait(lambda: self._node.count_subscribers(topic), self._end))

    def joint_names(self, topic: str) -> tuple[str, ...] | None:
        """All names in the ``sensor_msgs/msg/JointState`` messages of a second; None where none came."""
        from sensor_msgs.msg import JointState

        found: dict[str, None] = {}
        came: list[int] = []

        def take(message: JointState) -> None:
            came.append(1)
            found.update(dict.fromkeys(message.name))

        subscription = self._node.create_subscription(JointState, topic, take, qos_profile_sensor_data)
        try:
            self._wait(lambda: False, time.monotonic() + _LISTEN)
        finally:
            self._node.destroy_subscription(subscription)
        return tuple(found) if came else None

    def _publishers(self, wanted: WantedTopic) -> list[Any]:
        infos = self._node.get_publishers_info_by_topic(wanted.topic)
        return [info for info in infos if info.topic_type == wanted.message_type]

    def _profile(self, topic: str) -> QoSProfile:
        """That of the node's subscription, with what ``qos_overrides`` say."""
        sensor = qos_profile_sensor_data
        kinds = {"reliability": ReliabilityPolicy, "durability": DurabilityPolicy}
        prefix = f"qos_overrides.{topic}.subscription."
        changes = {
            name: _policy(kind, prefix + name, self._overrides[prefix + name])
            for name, kind in kinds.items()
            if prefix + name in self._overrides
        }
        return QoSProfile(
            **{
                "history": sensor.history,
                "depth": sensor.depth,
                "reliability": sensor.reliability,
                "durability": sensor.durability,
                **changes,
            }
        )

    def _wait(self, found: Callable[[], Any], end: float) -> Any:
        while not (value := found()) and time.monotonic() < end:
            self._executor.spin_once(timeout_sec=_POLL)
        return value


def _policy(kind: Any, name: str, value: Any) -> Any:
    """:raises EdgeLLMError: it is none of this kind."""
    if value not in kind.short_keys():
        raise EdgeLLMError(
            f"{name} is {shown(value)}; want one of {', '.join(kind.short_keys())}.", RefusalCode.BAD_PARAMETER
        )
    return kind.get_from_short_key(value)


@contextmanager
def live_topics(seconds: float, overrides: Mapping[str, Any]) -> Iterator[LiveTopics]:
    """Join the ROS domain of the environment; what is not found after ``seconds`` is not there.

    ``overrides`` are ``qos_overrides.*`` of the node, by whole names.

    :raises EdgeLLMError: ROS does not let it in.
    """
    from rclpy.executors import SingleThreadedExecutor

    with looking_node("edgellm_check") as node:
        executor = SingleThreadedExecutor(context=node.context)
        executor.add_node(node)
        yield LiveTopics(node, executor, seconds, overrides)
