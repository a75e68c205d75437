"""From a prompt to an answer: one request at a time through the engine, its pieces out as they come.

The executor's thread offers prompts and stops them; a worker thread of its own runs them, so that no callback ever
waits for the engine. Whatever happens, ``_end`` is the only way out of a request, and it acts once.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from ..errors import EdgeLLMError, Refusal, RefusalCode
from ..runtime.request import LLMGenerationResponse
from .counters import Counters
from .engine_host import EngineHost
from .generation_run import STOP_GRACE, GenerationRun, Outputs
from .history import ConversationHistory, Turn
from .images import CameraInputs, RequestImages
from .parameters import Settings
from .prompt_request import PromptRequest, RequestState

JOIN_GRACE = 0.3  # s more for the worker to tell about a request that was stopped


class PromptBridge:
    """Takes prompts, keeps those that wait, and runs them one after the other while it is started.

    Any thread may call it. The condition's lock covers the queue, the running request and every request's state.
    """

    def __init__(
        self,
        outputs: Outputs,
        counters: Counters,
        history: ConversationHistory,
        on_refusal: Callable[[Refusal], None],
    ) -> None:
        """``on_refusal`` is called, from any thread, for each request that ended without an answer."""
        self._outputs = outputs
        self._counters = counters
        self._history = history
        self._on_refusal = on_refusal
        self._condition = threading.Condition()
        self._waiting: deque[PromptRequest] = deque()
        self._running: PromptRequest | None = None
        self._stuck: PromptRequest | None = None  # given up, but the engine still holds it
        self._stuck_host: Callable[[], EngineHost | None] = lambda: None  # that engine, as long as it is loaded
        self._host: EngineHost | None = None
        self._cameras: CameraInputs | None = None
        self._worker: threading.Thread | None = None
        self._session = secrets.token_hex(3)
        self._numbers = itertools.count(1)

    @property
    def load(self) -> tuple[bool, int]:
        """Whether a request runs, and how many wait."""
        with self._condition:
            return self._running is not None, len(self._waiting)

    @property
    def engine_fault(self) -> str:
        """Why the engine takes no prompt now, in one sentence; empty when it does."""
        with self._condition:
            return self._engine_fault()

    def _engine_fault(self) -> str:
        if self._host is None:
            return ""
        if not self._host.healthy:
            return "The engine did not finish a step in time (engine.step_timeout); clean up and configure the node."
        if self._stuck is not None and self._stuck.handle is not None:
            if not self._stuck.handle.done():
                return "The engine has not let go of a request that was stopped; clean up and configure the node."
            self._stuck = None
        return ""

    def start(self, host: EngineHost, cameras: CameraInputs | None = None) -> None:
        """Begin to run prompts on this engine, with the images of these cameras."""
        with self._condition:
            if self._stuck_host() is not host:  # what another engine holds says nothing about this one
                self._stuck = None
            self._host, self._cameras = host, cameras
            self._worker = threading.Thread(target=self._work, args=(host,), name="edgellm-publish", daemon=True)
        self._worker.start()

    def stop(self, refusal: Refusal) -> None:
        """End every request with this reason and the worker with them; returns within ``STOP_GRACE + JOIN_GRACE``."""
        with self._condition:
            worker, self._worker, self._host, self._cameras = self._worker, None, None, None
            running = self._running
        self.cancel_all(refusal)
        if worker is not None:
            worker.join(STOP_GRACE + JOIN_GRACE)
            if worker.is_alive() and running is not None:
                self._end(running, refusal=refusal)

    def offer(self, prompt: str, settings: Settings, refusal: Refusal | None = None) -> PromptRequest:
        """Take a prompt, or end it at once: with ``refusal`` where the caller has one, else by the rules of
        ``prompt.*``. The request that comes back is waiting, running or ended.
        """
        self._counters.count("received")
        request = PromptRequest(f"{self._session}-{next(self._numbers)}", prompt, settings)
        dropped: list[tuple[PromptRequest, Refusal]] = []
        with self._condition:
            refusal = refusal or self._check(request) or self._make_room(request, dropped)
            if refusal is None:
                request.state, request.accepted = RequestState.WAITING, True
                self._waiting.append(request)
                self._condition.notify_all()
        for other, reason in dropped:
            self._end(other, refusal=reason)
        if refusal is not None:
            self._end(request, refusal=refusal)
        return request

    def cancel_all(self, refusal: Refusal) -> tuple[int, int]:
        """Stop the running request and those that wait; returns how many of each there were."""
        with self._condition:
            waiting = list(self._waiting)
            self._waiting.clear()
            running = self._running
            if running is not None:
                self._stop_running(running, refusal)
            self._condition.notify_all()
        for request in waiting:
            self._end(request, refusal=refusal)
        return int(running is not None), len(waiting)

    def _check(self, request: PromptRequest) -> Refusal | None:
        """What is wrong with the prompt itself, or with the engine. Called under the lock."""
        fault = self._engine_fault()
        if fault:
            return Refusal(RefusalCode.STEP_TIMEOUT, fault)
        if self._host is None:
            return Refusal(RefusalCode.NOT_ACTIVE, "The node is not active; activate it and send the prompt again.")
        if not request.prompt.strip():
            return Refusal(RefusalCode.EMPTY_PROMPT, "The prompt is empty or blank; want text.")
        length, limit = len(request.prompt), request.settings.prompt.max_characters
        if length > limit:
            return Refusal(
                RefusalCode.INPUT_TOO_LONG,
                f"The prompt has {length} characters; prompt.max_characters allows {limit}.",
            )
        return None

    def _make_room(self, request: PromptRequest, dropped: list[tuple[PromptRequest, Refusal]]) -> Refusal | None:
        """Apply ``prompt.on_busy``; requests that must go are put into ``dropped``. Called under the lock."""
        policy, size = request.settings.prompt.on_busy, request.settings.prompt.queue_size
        if self._running is None and not self._waiting:
            return None
        if policy == "reject":
            return Refusal(RefusalCode.BUSY, "Another prompt is being answered and prompt.on_busy is reject.")
        if policy == "replace":
            reason = Refusal(RefusalCode.SUPERSEDED, "A newer prompt took its place (prompt.on_busy is replace).")
            dropped += [(other, reason) for other in self._waiting]
            self._waiting.clear()
            if self._running is not None:
                self._stop_running(self._running, reason)
            return None
        if len(self._waiting) < size:
            return None
        if policy == "queue":
            return Refusal(
                RefusalCode.QUEUE_FULL,
                f"{len(self._waiting)} prompts wait already and prompt.queue_size is {size}; send it again later.",
            )
        reason = Refusal(
            RefusalCode.QUEUE_FULL,
            f"Dropped for a newer prompt: prompt.queue_size is {size} (prompt.on_busy is drop_oldest).",
        )
        while len(self._waiting) >= size:
            dropped.append((self._waiting.popleft(), reason))
        return None

    @staticmethod
    def _stop_running(request: PromptRequest, refusal: Refusal) -> None:
        """Ask the engine to end a request; the first reason stays. Called under the lock."""
        if request.stop is None:
            request.stop, request.stop_time = refusal, time.monotonic()
            if request.handle is not None:
                request.handle.cancel()

    def _work(self, host: EngineHost) -> None:
        """The worker: runs requests until another engine, or none, is current."""
        while True:
            with self._condition:
                while self._host is host and not self._waiting:
                    self._condition.wait()
                if self._host is not host:
                    return
                request = self._waiting.popleft()
                request.state = RequestState.RUNNING
                self._running = request
            try:
                self._run(request, host)
            except Exception as error:
                sentence = f"The node failed while it answered ({type(error).__name__}: {error})."
                self._end(request, refusal=Refusal(RefusalCode.ENGINE_FAILED, sentence))
            finally:
                with self._condition:
                    if self._running is request:  # a worker that was given up may end while another one runs
                        self._running = None

    def _run(self, request: PromptRequest, host: EngineHost) -> None:
        epoch, turns = self._history.snapshot(request.settings.prompt.history_turns)
        cameras: CameraInputs | None = None
        try:
            run = host.make_run(request, self._outputs)
            if isinstance(run, GenerationRun) and host.takes_images:  # a task looks for itself, as often as it needs
                cameras = self._cameras
            if cameras is not None:
                request.images = self._look(request, cameras)
            handle = run.submit(turns)
        except EdgeLLMError as error:
            self._end(request, refusal=request.stop or error.refusal, host=host)
            return
        with self._condition:
            request.handle = handle
            if request.stop is not None:
                handle.cancel()
        if not run.stream():
            with self._condition:
                self._stuck, self._stuck_host = request, weakref.ref(host)
            late = Refusal(RefusalCode.DEADLINE, "The engine did not end the request in its time (generation.timeout).")
            self._end(request, refusal=request.stop or late, host=host)
            return
        response, refusal = run.result()
        if refusal is None:
            if response.output_texts and response.output_texts[0] != request.text:
                self._counters.count("stream_mismatches")  # there should be none; diagnostics shows them
            self._history.append(epoch, Turn(request.prompt, request.text))
        self._end(request, refusal=refusal, response=response, host=host)
        if cameras is not None:
            cameras.show(request.images, response.pruning[0] if response.pruning else None, request.text)

    @staticmethod
    def _look(request: PromptRequest, cameras: CameraInputs) -> RequestImages:
        timeout = request.settings.generation.timeout or float("inf")
        return cameras.take(
            request.settings.images,
            stopped=lambda: request.stop is not None,
            deadline=time.monotonic() + timeout,
        )

    def _end(
        self,
        request: PromptRequest,
        *,
        refusal: Refusal | None = None,
        response: LLMGenerationResponse | None = None,
        host: EngineHost | None = None,
    ) -> None:
        """End a request: one response, one report. Later calls for the same request do nothing."""
        with self._condition:
            if request.state is RequestState.ENDED:
                return
            before, request.state = request.state, RequestState.ENDED
            host = host or self._host
        report = request.report(host.facts.report_fields() if host else {}, refusal=refusal, response=response)
        self._counters.ended(report)
        running = before is RequestState.RUNNING
        # An inactive node says nothing on data topics: another may be active on the same ones. The report tells.
        respond = request.accepted or report.refusal is None or report.refusal.code is not RefusalCode.NOT_ACTIVE
        self._outputs.publish_end(request.text, report, running=running, respond=respond)
        if refusal is not None:
            self._on_refusal(refusal)
