"""Stands in for a loaded engine where a test decides step by step what the engine does."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

from edgellm_ros.errors import EdgeLLMError, Refusal
from edgellm_ros.ros.engine_host import EngineFacts
from edgellm_ros.ros.generation_run import GenerationRun, Outputs
from edgellm_ros.ros.prompt_request import PromptRequest
from edgellm_ros.ros.report import Report
from edgellm_ros.runtime.request import FinishReason, LLMGenerationRequest, LLMGenerationResponse
from edgellm_ros.runtime.streaming import StreamChannel

DEADLINE = 10.0


def wait_for(condition: Callable[[], bool], what: str, deadline: float = DEADLINE) -> None:
    """Return when the condition holds; fail when it does not in time."""
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"not within {deadline} s: {what}"
        time.sleep(0.001)


class ScriptedHandle:
    """One submitted request; the test pushes its pieces and ends it."""

    def __init__(self, request: LLMGenerationRequest, channel: StreamChannel, obey: bool) -> None:
        self.request = request
        self.channel = channel
        self.refusal: Refusal | None = None
        self._obey = obey
        self._texts: list[str] = []
        self._done = threading.Event()

    @property
    def prompt(self) -> str:
        return self.request.requests[0].messages[-1].content

    def push(self, text: str) -> None:
        self._texts.append(text)
        self.channel.push([len(self._texts)], text)

    def end(self, reason: FinishReason = FinishReason.END_ID, text: str = "") -> None:
        self._texts.append(text)
        self.channel.push([], text, 3, (), reason)
        self._done.set()

    def done(self) -> bool:
        return self._done.is_set()

    def cancel(self) -> None:
        if self._obey and not self.done():
            self.end(FinishReason.CANCELLED)

    def get(self, timeout: float | None = None) -> LLMGenerationResponse:
        if not self._done.wait(timeout):
            raise TimeoutError
        return LLMGenerationResponse(
            output_ids=[[1] * len(self._texts)],
            output_texts=["".join(self._texts)],
            finish_reasons=[self.channel.reason],
            input_token_counts=[3],
        )


class ScriptedHost:
    """``answer`` None leaves requests open for the test; a text answers each at once. ``obey``: cancels are heard."""

    def __init__(self, answer: str | None = None, *, obey: bool = True, refuse: EdgeLLMError | None = None) -> None:
        self.answer = answer
        self.obey = obey
        self.refuse = refuse
        self.healthy = True
        self.takes_images = True
        self.handles: list[ScriptedHandle] = []
        self.most_at_once = 0
        self.facts = EngineFacts("scripted", "fp32", "none", 1, "f00d", "", 0.0)

    def count_control_tokens(self, text: str) -> int:
        return text.count("<|")

    def make_run(self, request: PromptRequest, outputs: Outputs) -> GenerationRun:
        return GenerationRun(request, self, outputs)  # type: ignore[arg-type]

    def submit(self, request: LLMGenerationRequest, channel: StreamChannel) -> ScriptedHandle:
        if self.refuse is not None:
            raise self.refuse
        channel.attach()
        handle = ScriptedHandle(request, channel, self.obey)
        self.handles.append(handle)
        self.most_at_once = max(self.most_at_once, sum(not other.done() for other in self.handles))
        if self.answer is not None:
            for letter in self.answer:
                handle.push(letter)
            handle.end()
        return handle


class Recorder:
    """Outputs that remember, in the order in which they came: ('delta', text), ('response', text), ('report', …)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self.events: list[tuple[str, object]] = []

    def publish_delta(self, text: str) -> int:
        with self._lock:
            self.events.append(("delta", text))
            return next(self._numbers)

    def publish_end(self, text: str, report: Report, *, running: bool, respond: bool) -> None:
        with self._lock:
            if respond:
                self.events.append(("response", text))
            self.events.append(("report", report))

    def of(self, kind: str) -> list[object]:
        with self._lock:
            return [value for name, value in self.events if name == kind]

    @property
    def reports(self) -> list[Report]:
        return self.of("report")  # type: ignore[return-value]
