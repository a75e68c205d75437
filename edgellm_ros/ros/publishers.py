"""From plain values to ROS messages: the publishers of the node and their quality of service.

Requests are told about through ``Publishers``, which knows the order that subscribers rely on: the pieces of one
answer come in sequence, and the whole text after them, with no other ``response`` in between.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from std_msgs.msg import String

from .counters import Counters
from .qos_events import QosWatch
from .report import Level, Report

_UNPUBLISHABLE = re.compile("[\0\ud800-\udfff]")


def publishable(text: str) -> str:
    """Text that a ROS string carries whole: NUL would end it and lone surrogates have no UTF-8."""
    return _UNPUBLISHABLE.sub("\ufffd", text) if _UNPUBLISHABLE.search(text) else text


def reliable(depth: int, *, latched: bool = False) -> QoSProfile:
    """Reliable, keep last; ``latched`` (transient local) gives late joiners the last messages."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )


def diagnostic_status(
    level: Level, name: str, message: str, hardware_id: str = "", pairs: Iterable[tuple[str, str]] = ()
) -> DiagnosticStatus:
    """A status message."""
    return DiagnosticStatus(
        level=bytes([level]),
        name=name,
        message=publishable(message),
        hardware_id=publishable(hardware_id),
        values=[KeyValue(key=publishable(key), value=publishable(value)) for key, value in pairs],
    )


class Publishers:
    """All outputs of the node.

    Any thread may publish; the lock orders ``response`` and ``response/delta`` against each other.
    """

    def __init__(self, node: LifecycleNode, counters: Counters, watch: QosWatch) -> None:
        self._node = node
        self._counters = counters
        self._lock = threading.Lock()
        self._streaming = False
        self._empty_responses = 0
        self._sequence = 0

        def publisher(kind: type, topic: str, qos: QoSProfile) -> Publisher:
            return node.create_publisher(
                kind,
                topic,
                qos,
                event_callbacks=watch.publisher_callbacks(node.resolve_topic_name(topic)),
                qos_overriding_options=watch.overridable(),
            )

        self.response = publisher(String, "response", reliable(10))
        self.delta = publisher(String, "response/delta", reliable(100))
        self.report = publisher(DiagnosticArray, "report", reliable(10, latched=True))
        self.status = publisher(DiagnosticStatus, "~/status", reliable(1, latched=True))
        self.diagnostics = publisher(DiagnosticArray, "/diagnostics", reliable(10))

    def publish_delta(self, text: str) -> int:
        """A piece of the running answer; returns its sequence number since the node started, from 0."""
        with self._lock:
            self._streaming = True
            number = self._sequence
            self._sequence += 1
            self._publish(self.delta, String(data=publishable(text)))
        self._counters.count("deltas")
        return number

    def publish_end(self, text: str, report: Report, *, running: bool, respond: bool) -> None:
        """The whole text (where ``respond``) and the report of a request that ended.

        One that never ran ends with an empty response; while another answer streams, that response waits for its
        end, so that joined pieces always equal the response which follows them. The report never waits.
        """
        with self._lock:
            if running:
                self._streaming = False
                self._publish(self.response, String(data=publishable(text)))
                for _ in range(self._empty_responses):
                    self._publish(self.response, String())
                self._empty_responses = 0
            elif respond and self._streaming:
                self._empty_responses += 1
            elif respond:
                self._publish(self.response, String())
        self.publish_report(report)

    def publish_report(self, report: Report) -> None:
        """The account of a request."""
        message = DiagnosticArray()
        message.header.stamp = self._node.get_clock().now().to_msg()
        name = f"{self._node.get_fully_qualified_name()}: request"
        hardware_id = report.engine.get("fingerprint", "")
        message.status = [diagnostic_status(report.level, name, report.sentence, hardware_id, report.pairs())]
        self._publish(self.report, message)

    def publish_status(self, level: Level, sentence: str, pairs: Iterable[tuple[str, str]]) -> None:
        """The state of the node in one line."""
        self._publish(
            self.status, diagnostic_status(level, self._node.get_fully_qualified_name(), sentence, pairs=pairs)
        )

    def publish_diagnostics(self, statuses: list[DiagnosticStatus]) -> None:
        """One array on /diagnostics."""
        message = DiagnosticArray(status=statuses)
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._publish(self.diagnostics, message)

    def flush(self, timeout: float) -> None:
        """Wait until subscribers have what was said last, at most ``timeout`` s; for the end of a process."""
        for publisher in (self.response, self.report):
            if hasattr(publisher, "wait_for_all_acked"):
                publisher.wait_for_all_acked(Duration(seconds=timeout))

    def _publish(self, publisher: Publisher, message: Any) -> None:
        # A context that was shut down from outside refuses to publish. The request must end all the same.
        try:
            publisher.publish(message)
        except Exception as error:
            if self._counters.count("unpublished") == 1:
                self._node.get_logger().error(f"{publisher.topic_name} could not be published: {error}")
