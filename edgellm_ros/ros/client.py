"""The other side of the node: publishes prompts and collects what comes back, for the demo and for tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from std_msgs.msg import Empty, String

from .publishers import publishable, reliable


class PromptClient(Node):  # type: ignore[misc]
    """A node beside ``edgellm``. Its lists are filled by whoever spins it; ``on_delta`` is called as pieces come."""

    def __init__(self, node_name: str = "edgellm_client", *, server: str = "edgellm", **options: Any) -> None:
        """``server`` is the name of the node to talk to, in the same namespace; ``options`` those of ``Node``."""
        super().__init__(node_name, **options)
        self.deltas: list[str] = []
        self.responses: list[str] = []
        self.reports: list[DiagnosticStatus] = []
        self.status: DiagnosticStatus | None = None
        self.on_delta: Callable[[str], None] = lambda text: None
        self._prompt = self.create_publisher(String, "prompt", reliable(10))
        self._cancel = self.create_publisher(Empty, "cancel", reliable(1))
        self.create_subscription(String, "response/delta", self._take_delta, reliable(100))
        self.create_subscription(String, "response", lambda message: self.responses.append(message.data), reliable(10))
        self.create_subscription(
            DiagnosticArray, "report", lambda message: self.reports.extend(message.status), reliable(10, latched=True)
        )
        self.create_subscription(DiagnosticStatus, f"{server}/status", self._take_status, reliable(1, latched=True))

    def _take_delta(self, message: String) -> None:
        self.deltas.append(message.data)
        self.on_delta(message.data)

    def _take_status(self, message: DiagnosticStatus) -> None:
        self.status = message

    @property
    def lifecycle(self) -> str:
        """The state of the server as it last said; empty before that."""
        return pairs(self.status).get("lifecycle", "") if self.status else ""

    @property
    def connected(self) -> bool:
        """Whether prompts have a reader and both streams a writer."""
        return bool(
            self._prompt.get_subscription_count()
            and self.count_publishers(self.resolve_topic_name("response"))
            and self.count_publishers(self.resolve_topic_name("response/delta"))
            and self.count_publishers(self.resolve_topic_name("report"))
        )

    def ask(self, prompt: str) -> None:
        """Publish a prompt; characters that a message cannot carry are replaced."""
        self._prompt.publish(String(data=publishable(prompt)))

    def cancel(self) -> None:
        """Ask that everything which runs or waits is ended."""
        self._cancel.publish(Empty())


def pairs(status: DiagnosticStatus) -> dict[str, str]:
    """The key-values of a status."""
    return {entry.key: entry.value for entry in status.values}


def spin_until(executor: Any, condition: Callable[[], bool], timeout: float) -> bool:
    """Spin in this thread until the condition holds; False after ``timeout`` s."""
    end = time.monotonic() + timeout
    while not condition():
        remaining = end - time.monotonic()
        if remaining <= 0:
            return False
        executor.spin_once(timeout_sec=min(0.05, remaining))
    return True
