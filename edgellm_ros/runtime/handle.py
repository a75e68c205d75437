"""What a caller holds of a request that a scheduler took."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..errors import EdgeLLMError, MisuseError, Refusal
from .generation import ends_the_program
from .request import FinishReason, LLMGenerationRequest, LLMGenerationResponse, SequenceTimes
from .streaming import StreamChannel

_LOG = logging.getLogger(__name__)


class RequestHandle:
    """Ends exactly once, in ``complete``; any thread may wait or cancel. Letting go of it cancels nothing.

    ``seed`` is the one that the sequence draws with, ``control_token_count`` how many control tokens its text held.
    """

    def __init__(
        self,
        request_id: int,
        request: LLMGenerationRequest,
        channel: StreamChannel,
        seed: int,
        cancel: Callable[[RequestHandle], None],
        driver: threading.Thread | None = None,
    ) -> None:
        self.request_id = request_id
        self.channel = channel
        self.seed = seed
        self.prompt_token_count = len(request.pre_tokenized_input_ids[0])
        self.control_token_count = request.control_token_counts[0] if request.control_token_counts else 0
        self.queued = time.monotonic()
        self.prepared = request
        self._cancel = cancel
        self._driver = driver  # who runs it, and so must not wait for it
        self._lock = threading.Lock()  # covers the outcome
        self._ended = threading.Event()
        self._response: LLMGenerationResponse | None = None
        self._error: EdgeLLMError | None = None
        self._refusal: Refusal | None = None
        self._callbacks: list[Callable[[RequestHandle], None]] = []

    def done(self) -> bool:
        """True once it has ended, however it did."""
        return self._ended.is_set()

    def cancel(self) -> None:
        """Ask that it ends; what was produced stays in the response, whose reason is CANCELLED."""
        self._cancel(self)

    @property
    def times(self) -> SequenceTimes:
        """When it was queued, begun, and gave its first and its last token; all of them once it has ended."""
        response = self._response
        return response.times[0] if response is not None else SequenceTimes(queued=self.queued)

    @property
    def refusal(self) -> Refusal | None:
        """Why it did not end by itself: deadline, engine failure, step timeout, shutdown; None otherwise."""
        return self._refusal

    def get(self, timeout: float | None = None) -> LLMGenerationResponse:
        """The response of one sequence; waits up to ``timeout`` seconds.

        :raises TimeoutError: it has not ended yet.
        :raises EdgeLLMError: it was refused when its turn came.
        :raises MisuseError: it has not ended, and this is a callback on the thread that runs it.
        """
        if threading.current_thread() is self._driver and not self._ended.is_set():
            raise MisuseError("a callback waits for a request that its own thread runs; wait on another thread.")
        if not self._ended.wait(timeout):
            raise TimeoutError(f"request {self.request_id} has not ended after {timeout} s.")
        if self._error is not None:
            raise self._error
        if self._response is None:
            raise MisuseError(f"request {self.request_id} ended without a response.")
        return self._response

    def add_done_callback(self, callback: Callable[[RequestHandle], None]) -> None:
        """Call ``callback`` with the handle when it ends, on the thread that ends it; at once if it has ended."""
        with self._lock:
            if not self._ended.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def complete(
        self,
        response: LLMGenerationResponse | None = None,
        *,
        error: EdgeLLMError | None = None,
        refusal: Refusal | None = None,
    ) -> bool:
        """End it, and its channel; for the scheduler. False when it has ended already, and then nothing changes."""
        with self._lock:
            if self._ended.is_set():
                return False
            self._response, self._error = response, error
            self._refusal = error.refusal if error is not None else refusal
            reason = response.finish_reasons[0] if response is not None else FinishReason.ERROR
            self.channel.finish(reason, self.prompt_token_count)
            self._ended.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except BaseException as error:  # the caller's fault must not end the service of others
                if ends_the_program(error):
                    raise
                _LOG.exception("a callback of request %d failed", self.request_id)
        return True


def unstarted_response(handle: RequestHandle, reason: FinishReason, message: str = "") -> LLMGenerationResponse:
    """The response of a request that ended before the runtime saw it."""
    return LLMGenerationResponse(
        output_ids=[[]],
        output_texts=[""],
        reasoning_texts=[""],
        tool_calls=[[]],
        logprobs=[[]],
        finish_reasons=[reason],
        input_token_counts=[handle.prompt_token_count],
        reused_token_counts=[0],
        pruning=[None],
        times=[SequenceTimes(queued=handle.queued)],
        messages=[message],
    )
