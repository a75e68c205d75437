"""The worker's side of one request: hand it to the engine, publish its pieces, and say how it ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from ..errors import EdgeLLMError, MisuseError, Refusal, RefusalCode
from ..runtime.cache_policy import DERIVE_REPLAY_TAIL
from ..runtime.request import AnswerPart, FinishReason, LLMGenerationRequest, LLMGenerationResponse, Request
from ..runtime.streaming import StreamChannel, StreamChunk
from .engine_host import EngineHost
from .history import Turn, conversation
from .prompt_request import PromptRequest, RequestState
from .report import Report

if TYPE_CHECKING:
    from ..runtime.scheduler import RequestHandle

STOP_GRACE = 1.0  # s that the engine has to end a request which was stopped
_POLL = 0.05  # s between looks at a request whose engine says nothing
_NATURAL_ENDS = (FinishReason.END_ID, FinishReason.LENGTH, FinishReason.STOP_WORDS)


class Outputs(Protocol):
    """Where answers go; ``Publishers`` in the node."""

    def publish_delta(self, text: str) -> int:
        """A piece of the running answer; returns its sequence number."""
        ...

    def publish_end(self, text: str, report: Report, *, running: bool, respond: bool) -> None:
        """The whole text (where ``respond``) and the report of a request that ended."""
        ...


def publish_piece(request: PromptRequest, outputs: Outputs, text: str) -> None:
    """Let a piece of a running answer out, for the worker."""
    if request.state is RequestState.ENDED:  # it was given up by another thread
        return
    number = outputs.publish_delta(text)
    request.pieces.append(text)
    if request.first_delta is None:
        request.first_delta, request.first_delta_time = number, time.monotonic()


class GenerationRun:
    """Belongs to the worker thread; only ``request.state`` and ``request.stop`` are changed by others meanwhile."""

    def __init__(self, request: PromptRequest, host: EngineHost, outputs: Outputs) -> None:
        self._request = request
        self._host = host
        self._outputs = outputs
        self._channel = StreamChannel()
        self._handle: RequestHandle | None = None

    def submit(self, turns: tuple[Turn, ...]) -> RequestHandle:
        """Give the request to the engine, with fewer turns of history where all do not fit and that is allowed.

        :raises EdgeLLMError: the engine refuses it.
        """
        request, settings = self._request, self._request.settings
        request.seed = settings.generation.draw_seed()
        request.control_tokens = self._host.count_control_tokens(request.prompt)
        request.started = time.monotonic()
        dropped = 0
        while True:
            try:
                self._handle = self._host.submit(self._generation_request(turns[dropped:]), self._channel)
                break
            except EdgeLLMError as error:
                too_long = error.code in (RefusalCode.INPUT_TOO_LONG, RefusalCode.NO_ROOM)
                if not too_long or settings.prompt.overflow != "truncate_history" or dropped == len(turns):
                    raise
                dropped += 1
                self._channel = StreamChannel()
        request.history_turns, request.history_turns_dropped = len(turns) - dropped, dropped
        return self._handle

    def _generation_request(self, turns: tuple[Turn, ...]) -> LLMGenerationRequest:
        settings, generation = self._request.settings, self._request.settings.generation
        messages = conversation(generation.system_prompt, turns, self._request.prompt, self._request.images.images)
        return LLMGenerationRequest(
            requests=[
                Request(messages, stop_strings=generation.stop, guided_decoding=settings.guide.guide),
            ],
            sampling=generation.sampling,
            max_generate_length=generation.max_tokens,
            sampling_seed=self._request.seed,
            enable_thinking=generation.enable_thinking,
            special_tokens=settings.prompt.special_token_policy,
            deadline=generation.timeout,
            visual_pruner=settings.visual_pruner.config,
            context_cache_replay_tail_length=DERIVE_REPLAY_TAIL,
        )

    def stream(self) -> bool:
        """Publish pieces until the request is over; False when the engine does not end it in time."""
        interval, held, last_publication = self._request.settings.stream.min_interval, "", 0.0
        while True:
            due = max(0.0, last_publication + interval - time.monotonic()) if held else _POLL
            chunk = self._channel.wait_pop(min(_POLL, due))
            over = False
            if chunk is not None:
                held += _answer(chunk)
                over = chunk.finished
            elif self._channel.finished or self.handle.done():
                over = True
                while (chunk := self._channel.try_pop()) is not None:  # it may have come after the wait
                    held += _answer(chunk)
            now = time.monotonic()
            if held and (over or now >= last_publication + interval):
                self._publish(held)
                held, last_publication = "", now
            if over:
                return True
            if chunk is None and self._overdue(now):
                return False

    def _overdue(self, now: float) -> bool:
        request = self._request
        if request.stop is not None and now > request.stop_time + STOP_GRACE:
            return True
        timeout = request.settings.generation.timeout
        return timeout > 0 and now > request.started + timeout + STOP_GRACE

    def _publish(self, text: str) -> None:
        publish_piece(self._request, self._outputs, text)

    @property
    def handle(self) -> RequestHandle:
        """What ``submit`` returned.

        :raises MisuseError: it was not called.
        """
        if self._handle is None:
            raise MisuseError("the request was not submitted.")
        return self._handle

    def result(self) -> tuple[LLMGenerationResponse, Refusal | None]:
        """What the engine says at the end, and why there is no (complete) answer where there is none."""
        stop = self._request.stop
        try:
            response = self.handle.get(STOP_GRACE)
        except EdgeLLMError as error:
            return LLMGenerationResponse(), stop or error.refusal
        except TimeoutError:
            sentence = "The engine ended the stream but gave no result."
            return LLMGenerationResponse(), Refusal(RefusalCode.ENGINE_FAILED, sentence)
        reason = response.finish_reasons[0] if response.finish_reasons else FinishReason.ERROR
        message = response.messages[0] if response.messages else ""
        if reason in _NATURAL_ENDS:
            return response, None
        if reason is FinishReason.CANCELLED:
            return response, stop or Refusal(RefusalCode.CANCELLED, message or "The request was cancelled.")
        if reason is FinishReason.DEADLINE:
            limit = self._request.settings.generation.timeout
            sentence = f"The answer was not complete within {limit:g} s (generation.timeout)."
            return response, Refusal(RefusalCode.DEADLINE, message or sentence)
        failed = Refusal(RefusalCode.ENGINE_FAILED, message or "The engine failed without saying why.")
        return response, self.handle.refusal or failed


def _answer(chunk: StreamChunk) -> str:
    """What listeners get: reasoning and calls are not for them."""
    return chunk.text if chunk.part is AnswerPart.ANSWER else ""
