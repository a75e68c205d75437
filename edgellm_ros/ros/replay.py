"""Plays a recording to a node, by its own clock, and keeps what the node makes of it.

The node takes its time from ``/clock``, which is published here: the moment of a message, then the message. Only topics
that the node listens to are played.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rclpy.qos import QoSProfile
from rosgraph_msgs.msg import Clock
from std_msgs.msg import Float64MultiArray

from ..errors import EdgeLLMError, RefusalCode
from .action_messages import time_message
from .bag import Bag
from .client import PromptClient, pairs
from .graph import Graph, find_graph
from .publishers import reliable
from .replay_bystanders import bystanders
from .replay_record import ReplayRecord, answer_entry, chunk_entry

CLOCK_PERIOD = 0.01  # s of the node's time
DISCOVERY_TIMEOUT = 30.0  # s until the node has found the publishers
CANCEL_TIMEOUT = 10.0  # s for what still runs at the end
_NANO = 1_000_000_000
_PRELUDE = 0.3  # s for a first word of the clock, and for last messages
_QUEUE = QoSProfile(depth=1000)
_OWN = {"/clock", "/parameter_events", "/rosout"}


@dataclass(frozen=True)
class Prompt:
    """``text`` is published so many seconds of the recording after its first message."""

    text: str
    after: float = 0.0


class _Pace:
    """The node's clock, which follows this machine's at ``rate``; ``moment`` is what it last said, in ns."""

    def __init__(self, executor: Any, beginning: int, rate: float, tick: Callable[[int], None]) -> None:
        self._executor, self._beginning, self._rate, self._tick = executor, beginning, rate, tick
        self._began, self.moment = time.monotonic(), beginning
        tick(beginning)

    @property
    def passed(self) -> float:
        """Seconds of the recording."""
        return (self.moment - self._beginning) / _NANO

    def advance(self, until: int) -> None:
        """Spin, with a tick now and then, until the clock says ``until``."""
        while (wait := self._began + (until - self._beginning) / _NANO / self._rate - time.monotonic()) > 0:
            self._executor.spin_once(timeout_sec=min(wait, CLOCK_PERIOD / self._rate))
            now = self._beginning + round((time.monotonic() - self._began) * self._rate * _NANO)
            if min(now, until) - self.moment >= CLOCK_PERIOD * _NANO:
                self._say(min(now, until))
        self._executor.spin_once(timeout_sec=0.0)
        if until > self.moment:
            self._say(until)

    def rest(self, seconds: float, done: Callable[[], bool] = lambda: False) -> None:
        """Let the clock stand still at the beginning, or go on, for seconds of this machine at most."""
        end, standing = time.monotonic() + seconds, self.moment == self._beginning
        while time.monotonic() < end and not done():
            if standing:
                self._executor.spin_once(timeout_sec=0.01)
                self._tick(self.moment)
            else:
                self.advance(self.moment + round(CLOCK_PERIOD * _NANO))
        if standing:
            self._began = time.monotonic()

    def _say(self, moment: int) -> None:
        self.moment = moment
        self._tick(moment)


class ReplayClient(PromptClient):
    """``played`` and ``left_out`` name the recording's topics, once ``open`` has looked at them."""

    def __init__(self, *, server: str = "edgellm", **options: Any) -> None:
        super().__init__("edgellm_replay", server=server, **options)
        self._server = f"{self.get_namespace().rstrip('/')}/{server}"
        self._clock = self.create_publisher(Clock, "/clock", 10)
        self._topics: dict[str, Any] = {}
        self.chunks: list[dict[str, str]] = []
        self.left_out: list[str] = []
        self.create_subscription(Float64MultiArray, "action_chunk", self._take_chunk, reliable(1000))

    def _take_chunk(self, message: Float64MultiArray) -> None:
        label = message.layout.dim[0].label if message.layout.dim else ""
        self.chunks.append(chunk_entry(label, message.data.tobytes()))

    @property
    def played(self) -> list[str]:
        """Topics of the recording that the node gets."""
        return list(self._topics)

    def open(self, bag: Bag, spin: Callable[[Callable[[], bool], float], bool], remappings: Mapping[str, str]) -> None:
        """Make publishers for what the node listens to, and wait until it has found them.

        ``remappings`` give the node's topic for one of the recording. ``spin`` spins until a condition holds.

        :raises EdgeLLMError: no topic fits, one is of another type, the node does not find them, or others would take
            part: a controller that listens to the node, or a camera beside the recorded one.
        """
        unknown = set(remappings) - set(bag.topics)
        if unknown:
            raise _bad(f"{bag.path} has no topic {min(unknown)}; it has {', '.join(bag.topics)}.")
        graph = find_graph(self._server, lambda seconds: spin(lambda: False, seconds))
        wanted = self._wanted(graph)
        targets: dict[str, tuple[str, str]] = {}
        for topic, kind in bag.topics.items():
            target = self.resolve_topic_name(remappings.get(topic, topic))
            if target in _OWN or target not in wanted:
                self.left_out.append(topic)
                continue
            if wanted[target] != kind:
                raise _bad(f"{topic} is {kind} in {bag.path}; the node takes {wanted[target]} on {target}.")
            targets[topic] = (target, kind)
        if not targets:
            has, takes = ", ".join(bag.topics) or "no topics", ", ".join(sorted(set(wanted) - _OWN))
            raise _bad(f"{bag.path} has {has}; the node listens to {takes} and to none of them: use --remap.")
        played = [self._clock.topic_name, *(target for target, _ in targets.values())]
        if reason := bystanders(graph, self._server, self.get_fully_qualified_name(), played):
            raise EdgeLLMError(reason, RefusalCode.NOT_ACTIVE)
        for topic, (target, kind) in targets.items():
            self._topics[topic] = self.create_publisher(_message_class(kind), target, _QUEUE)
        publishers = (*self._topics.values(), self._clock)
        if not spin(lambda: all(p.get_subscription_count() for p in publishers), DISCOVERY_TIMEOUT):
            raise EdgeLLMError(
                "The node did not find the publishers of the recording; start both again.", RefusalCode.NOT_ACTIVE
            )

    def _wanted(self, graph: Graph) -> dict[str, str]:
        """What the node listens to: the type of each topic.

        :raises EdgeLLMError: it is not there, or has a clock of its own.
        """
        if not graph.has(self._server):
            raise EdgeLLMError(
                f"The ROS domain does not show what {self._server} listens to; start both again.",
                RefusalCode.NOT_ACTIVE,
            )
        wanted = {endpoint.topic: endpoint.message_type for endpoint in graph.subscriptions_of(self._server)}
        if self._clock.topic_name not in wanted:
            raise EdgeLLMError(
                f"The node does not listen to {self._clock.topic_name}; start it with use_sim_time set to true.",
                RefusalCode.NOT_ACTIVE,
            )
        return wanted

    def play(self, bag: Bag, executor: Any, *, rate: float, settle: float, prompt: Prompt | None = None) -> None:
        """Publish the messages at ``rate`` times their pace, then wait for what is on its way.

        The clock goes on for ``settle`` s at most after the last message; less where every prompt has its report.
        """
        pace = None
        prompts = 0
        for message in bag.messages(self._topics):
            if pace is None:
                pace = _Pace(executor, message.time, rate, self._tick)
                pace.rest(_PRELUDE)
            pace.advance(max(pace.moment, message.time))
            if prompt is not None and pace.passed >= prompt.after:
                self.ask(prompt.text)
                prompt, prompts = None, prompts + 1
            publisher = self._topics[message.topic]
            publisher.publish(message.data)
            prompts += publisher.topic_name == self._prompt.topic_name
        if pace is None:
            return
        if prompt is not None:
            self.ask(prompt.text)
            prompts += 1

        def told() -> bool:
            return 0 < prompts <= len(self.reports)

        pace.rest(settle, told)
        if prompts and not told():
            self.cancel()
            pace.rest(CANCEL_TIMEOUT, told)
        pace.rest(_PRELUDE)  # chunks and reports are topics of their own

    def _tick(self, moment: int) -> None:
        self._clock.publish(Clock(clock=time_message(moment)))

    def record(self) -> ReplayRecord:
        """What came until now.

        :raises EdgeLLMError: reports do not hold the texts.
        """
        reports = [pairs(report) for report in self.reports]
        if not all("prompt" in report for report in reports):
            raise _bad("The node's reports hold no texts to compare; set its parameter report.include_text to true.")
        engines = sorted({report.get("engine.fingerprint", "") for report in reports} - {""})
        return ReplayRecord(" ".join(engines), [answer_entry(report) for report in reports], list(self.chunks))


def _message_class(kind: str) -> Any:
    package, _, name = kind.replace("/msg/", "/").partition("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), name)
    except (ImportError, AttributeError):
        raise _bad(f"The message type {kind} is not installed; source the workspace that has it.") from None


def _bad(sentence: str) -> EdgeLLMError:
    return EdgeLLMError(sentence, RefusalCode.BAD_PARAMETER)
