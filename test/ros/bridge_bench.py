"""A prompt bridge on a scripted engine."""

from __future__ import annotations

from scripted_host import Recorder, ScriptedHandle, ScriptedHost, wait_for

from edgellm_ros.errors import Refusal, RefusalCode
from edgellm_ros.ros.counters import Counters
from edgellm_ros.ros.history import ConversationHistory
from edgellm_ros.ros.parameters import Settings
from edgellm_ros.ros.requests import PromptBridge

CANCELLED = Refusal(RefusalCode.CANCELLED, "Cancelled by the test.")
STOPPED = Refusal(RefusalCode.NOT_ACTIVE, "Deactivated by the test.")


def settings(**changes: object) -> Settings:
    """Defaults, changed by names with ``__`` for the dot."""
    return Settings.from_values({name.replace("__", "."): value for name, value in changes.items()})


class BridgeBench:
    """A bridge on a scripted engine."""

    def __init__(self) -> None:
        self.outputs = Recorder()
        self.counters = Counters()
        self.history = ConversationHistory()
        self.refusals: list[Refusal] = []
        self.bridge = PromptBridge(self.outputs, self.counters, self.history, self.refusals.append)  # type: ignore[arg-type]
        self.host = ScriptedHost()

    def start(self, host: ScriptedHost | None = None) -> ScriptedHost:
        self.host = host or self.host
        self.bridge.start(self.host)  # type: ignore[arg-type]
        return self.host

    def running(self, number: int) -> ScriptedHandle:
        """The handle of the n-th request that reached the engine."""
        wait_for(lambda: len(self.host.handles) > number, f"request {number} reaches the engine")
        return self.host.handles[number]

    def wait_reports(self, count: int) -> None:
        wait_for(lambda: len(self.outputs.reports) >= count, f"{count} reports")

    def codes(self) -> list[str]:
        return [report.refusal.code.value if report.refusal else "" for report in self.outputs.reports]
