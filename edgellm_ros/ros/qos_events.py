"""Quality of service that does not fit: told by topic and policy, in the log and in diagnostics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.qos import QoSPolicyKind, qos_policy_name_from_kind
from rclpy.qos_overriding_options import QoSOverridingOptions

try:
    from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import PublisherEventCallbacks, SubscriptionEventCallbacks


class QosWatch:
    """Makes the event callbacks of publishers and subscriptions; belongs to the executor's thread."""

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        """``warn(topic, sentence)`` is called for each incompatibility."""
        self._warn = warn
        self._found: dict[str, str] = {}

    @property
    def found(self) -> dict[str, str]:
        """The latest incompatibility of each topic, in one sentence."""
        return dict(self._found)

    @staticmethod
    def overridable() -> QoSOverridingOptions:
        """Policies that ``qos_overrides`` parameters may change."""
        return QoSOverridingOptions(
            (QoSPolicyKind.HISTORY, QoSPolicyKind.DEPTH, QoSPolicyKind.RELIABILITY, QoSPolicyKind.DURABILITY)
        )

    def publisher_callbacks(self, topic: str) -> PublisherEventCallbacks:
        """Callbacks for a publisher on the resolved name ``topic``."""
        return PublisherEventCallbacks(incompatible_qos=lambda event: self._incompatible(topic, "subscription", event))

    def subscription_callbacks(self, topic: str) -> SubscriptionEventCallbacks:
        """Callbacks for a subscription on the resolved name ``topic``."""
        return SubscriptionEventCallbacks(incompatible_qos=lambda event: self._incompatible(topic, "publisher", event))

    def _incompatible(self, topic: str, other: str, event: Any) -> None:
        policy = qos_policy_name_from_kind(event.last_policy_kind).lower()
        sentence = (
            f"A {other} on {topic} asks for a {policy} that does not fit, so no messages pass between it and this "
            f"node; change it there or with qos_overrides.{topic}."
        )
        self._found[topic] = sentence
        self._warn(topic, sentence)
