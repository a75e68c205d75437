"""The heartbeat: looks at the node once a second and tells what it sees on ``~/status`` and ``/diagnostics``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rclpy.lifecycle import LifecycleNode

from .counters import Counters
from .diagnostics import DiagnosticFacts, diagnostic_statuses
from .engine_host import EngineHost
from .history import ConversationHistory
from .images import CameraInputs
from .parameter_server import ParameterServer
from .parameters import ImageSettings
from .publishers import Publishers
from .qos_events import QosWatch
from .report import Level
from .requests import PromptBridge
from .status import NodeFacts, node_status
from .synchronizer import NoFrames

if TYPE_CHECKING:
    from .policy_io import PolicyIO

CLOCK_PATIENCE = 2.0  # s that /clock may take to show up


@dataclass
class NodeState:
    """What transitions and services change; belongs to the executor's thread."""

    host: EngineHost | None = None
    cameras: CameraInputs | None = None  # of an engine that takes images
    policy: PolicyIO | None = None
    enabled: bool = True
    failure: str = ""  # why the last transition failed; empty after one that did not
    profile_warning: str = ""


class Monitor:
    """Belongs to the executor's thread."""

    def __init__(
        self,
        node: LifecycleNode,
        state: NodeState,
        parameters: ParameterServer,
        publishers: Publishers,
        bridge: PromptBridge,
        counters: Counters,
        history: ConversationHistory,
        qos: QosWatch,
    ) -> None:
        self._node = node
        self._state = state
        self._parameters = parameters
        self._publishers = publishers
        self._bridge = bridge
        self._counters = counters
        self._history = history
        self._qos = qos
        self._prompt_topic = node.resolve_topic_name("prompt")
        self._start = time.monotonic()

    def status(self) -> tuple[Level, str]:
        """Level and sentence of the moment."""
        running, waiting = self._bridge.load
        host = self._state.host
        settings = self._parameters.settings()
        return node_status(
            NodeFacts(
                lifecycle=self._parameters.lifecycle(),
                node_name=self._node.get_fully_qualified_name(),
                prompt_topic=self._prompt_topic,
                enabled=self._state.enabled,
                engine_directory_set=bool(settings.engine.directory) or settings.engine.backend == "fake",
                failure=self._state.failure,
                engine_summary=host.facts.summary if host else "",
                engine_fault=self._bridge.engine_fault,
                clock_missing=self._clock_missing(),
                images_missing=self._images_missing(settings.images),
                running=running,
                waiting=waiting,
                prompt_publishers=self._node.count_publishers(self._prompt_topic),
            )
        )

    def _images_missing(self, settings: ImageSettings) -> str:
        if self._state.cameras is None or settings.on_missing == "text_only":
            return ""
        found = self._state.cameras.select(settings)
        return found.sentence if isinstance(found, NoFrames) else ""

    def say(self, sentence: str) -> None:
        """Put a sentence on ``~/status`` before a transition that takes its time."""
        self._publishers.publish_status(Level.WARN, sentence, [("lifecycle", self._parameters.lifecycle())])

    def tick(self) -> None:
        """Tell the state of the moment on both topics."""
        level, sentence = self.status()
        running, waiting = self._bridge.load
        lifecycle, host = self._parameters.lifecycle(), self._state.host
        pairs = [
            ("lifecycle", lifecycle),
            ("enabled", "true" if self._state.enabled else "false"),
            ("running", str(int(running))),
            ("waiting", str(waiting)),
        ]
        self._publishers.publish_status(level, sentence, pairs)
        outputs = self._publishers
        facts = DiagnosticFacts(
            node_name=self._node.get_fully_qualified_name(),
            lifecycle=lifecycle,
            level=level,
            sentence=sentence,
            counters=self._counters.values(),
            engine=host.facts if host else None,
            engine_memory=host.memory() if host else {},
            libraries=host.libraries() if host else {},
            context_cache=host.context_cache() if host else {},
            running=running,
            waiting=waiting,
            history_turns=len(self._history),
            prompt_topic=self._prompt_topic,
            prompt_publishers=self._node.count_publishers(self._prompt_topic),
            response_topic=outputs.response.topic_name,
            response_subscribers=outputs.response.get_subscription_count(),
            delta_subscribers=outputs.delta.get_subscription_count(),
            qos_problems=self._qos.found,
            cameras=self._state.cameras.facts() if self._state.cameras else (),
            profile_warning=self._state.profile_warning,
            policy=self._state.policy.values() if self._state.policy else {},
            without_effect=self._without_effect(host),
        )
        outputs.publish_diagnostics(diagnostic_statuses(facts))

    def _without_effect(self, host: EngineHost | None) -> list[str]:
        if host is None or host.policy is not None:
            return []
        changed = self._parameters.settings().changed()
        return [name for name in changed if name.startswith(("action.", "safety."))]

    def _clock_missing(self) -> bool:
        if not self._node.get_parameter("use_sim_time").value:
            return False
        patient = time.monotonic() - self._start < CLOCK_PATIENCE
        return not patient and self._node.get_clock().now().nanoseconds == 0
