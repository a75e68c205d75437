"""Many callers, one runtime: a thread that takes requests in order and runs them together where there is room."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque

from ..errors import EdgeLLMError, Refusal, RefusalCode, RequestError, SubmitError
from .batch_driver import BatchDriver
from .handle import RequestHandle, unstarted_response
from .inference_runtime import LLMInferenceRuntime
from .metrics import RequestEngineMetrics
from .request import FinishReason, LLMGenerationRequest, LLMGenerationResponse
from .request_checks import check_kinds, of_kind, or_none
from .scheduler_config import RequestEngineConfig, ShutdownMode
from .seeds import check_channels, resolve_seed
from .streaming import StreamChannel
from .watchdog import StepWatchdog, timeout_message

__all__ = ["RequestEngine", "RequestEngineConfig", "RequestHandle", "ShutdownMode"]

_TERMINAL_CHUNK_ONLY = 1 << 31


class RequestEngine:
    """First come, first served. Its thread alone calls the runtime, which nobody else may use meanwhile.

    Every method may be called from any thread. ``_condition`` covers the queue, the counters and the flags; the batch
    belongs to the thread, or to the watchdog while an engine call is overdue.

    :raises EdgeLLMError: more rows are wanted than the engine has.
    """

    def __init__(self, runtime: LLMInferenceRuntime, config: RequestEngineConfig | None = None) -> None:
        check_kinds({"runtime": runtime}, LLMInferenceRuntime)
        check_kinds({"config": config}, or_none(of_kind(RequestEngineConfig, "a RequestEngineConfig")))
        self._runtime = runtime
        self._config = config or RequestEngineConfig()
        rows = runtime.rank.max_batch_size()
        if self._config.max_batch_size > rows:
            raise EdgeLLMError(
                f"max_batch_size is {self._config.max_batch_size}; the engine was built for {rows}: lower it.",
                RefusalCode.BAD_PARAMETER,
            )
        self._condition = threading.Condition()
        self._queue: deque[RequestHandle] = deque()
        self._arrived = 0  # since the thread last looked
        self._next_id = 1
        self._metrics = RequestEngineMetrics()
        self._stopping = False
        self._driver = BatchDriver(runtime, self._config.max_batch_size, self._end)
        self.last_refusal: Refusal | None = None
        self._watchdog = (
            StepWatchdog(self._config.step_timeout, self._on_timeout) if self._config.step_timeout else None
        )
        runtime.rank.executor.observer = self._watchdog
        self._thread = threading.Thread(target=self._run, name="edgellm-engine", daemon=True)
        self._thread.start()

    # -- for callers -------------------------------------------------------------------------------------------

    @property
    def healthy(self) -> bool:
        """False while an engine call is overdue, and for good once the thread has ended."""
        return self._thread.is_alive() and not (self._watchdog is not None and self._watchdog.hanging)

    @property
    def pending(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """Requests that run."""
        return len(self._driver.residents)

    def metrics(self) -> RequestEngineMetrics:
        """A copy of the counters."""
        with self._condition:
            return dataclasses.replace(self._metrics)

    def submit(self, request: LLMGenerationRequest, channel: StreamChannel | None = None) -> RequestHandle:
        """Queue a request of one sequence; it is rendered and tokenised here, on the caller's thread.

        :raises RequestError: it cannot be served as it is.
        :raises SubmitError: the queue is full, an engine step is overdue, or the engine shuts down.
        """
        try:
            handle = self._make_handle(request, channel)
            with self._condition:
                self._check_open()
                handle.request_id = self._next_id
                self._next_id += 1
                self._queue.append(handle)
                self._arrived += 1
                self._metrics.submitted += 1
                self._condition.notify_all()
        except EdgeLLMError:
            with self._condition:
                self._metrics.refused += 1
            raise
        return handle

    def _make_handle(self, request: LLMGenerationRequest, channel: StreamChannel | None) -> RequestHandle:
        check_kinds({"request": request}, LLMGenerationRequest)
        request.check()
        if len(request.requests) != 1:
            raise RequestError(f"the request holds {len(request.requests)} sequences; want one: submit each alone.")
        check_channels(request)
        own = request.stream_channels[0] if request.stream_channels else None
        if None not in (own, channel) and own is not channel:  # nobody would ever end the other one
            raise RequestError("two stream channels are given for one sequence; want one.", RefusalCode.BAD_CHANNEL)
        channel = own if channel is None else channel
        # Without a channel there would be nothing to cancel through.
        if channel is None:
            channel = StreamChannel(_TERMINAL_CHUNK_ONLY, request.skip_special_tokens)
        prepared = dataclasses.replace(self._runtime.prepare(request), stream_channels=(channel,))
        self._runtime.rank.admission.check(prepared)
        seed = resolve_seed(prepared, prepared.requests[0])
        return RequestHandle(0, prepared, channel, seed, self.cancel, self._thread)

    def _check_open(self) -> None:
        limit = self._config.max_pending_requests
        if self._stopping or not self._thread.is_alive():
            raise SubmitError("the request engine shuts down; start another one.", RefusalCode.SHUTTING_DOWN)
        if not self.healthy:
            raise SubmitError(timeout_message(self._config.step_timeout), RefusalCode.STEP_TIMEOUT)
        if len(self._queue) >= limit or self._arrived >= self._config.command_queue_capacity:
            raise SubmitError(f"{len(self._queue)} requests wait already; try again when some have ended.")

    def cancel(self, handle: RequestHandle) -> None:
        """End a request: at once while it waits, before its next engine call while it runs."""
        check_kinds({"handle": handle}, RequestHandle)
        handle.channel.cancel()
        with self._condition:
            waiting = handle in self._queue
            if waiting:
                self._queue.remove(handle)
            self._condition.notify_all()
        if waiting:
            self._end(handle, unstarted_response(handle, FinishReason.CANCELLED))

    def handle_request(self, request: LLMGenerationRequest, response: LLMGenerationResponse) -> bool:
        """Submit and wait; on False ``response`` is as it was and ``last_refusal`` says why.

        :raises InputTooLongError: a prompt is longer than the engine takes.
        """
        check_kinds({"request": request}, LLMGenerationRequest)
        check_kinds({"response": response}, LLMGenerationResponse)
        self.last_refusal = None
        try:
            result = self.submit(request).get()
        except EdgeLLMError as error:
            self.last_refusal = error.refusal
            if error.code is RefusalCode.INPUT_TOO_LONG:
                raise
            return False
        for field in dataclasses.fields(response):
            setattr(response, field.name, getattr(result, field.name))
        return True

    def shutdown(self, mode: ShutdownMode = ShutdownMode.DRAIN, timeout: float | None = None) -> bool:
        """Take no more requests, end those there are, and stop; False when the thread was not done in ``timeout`` s.

        Whatever the engine does then, no handle and no channel stays open.
        """
        check_kinds({"mode": mode}, ShutdownMode)
        with self._condition:
            self._stopping = True
            open_handles = [*self._queue, *self._driver.residents.values()] if mode is ShutdownMode.CANCEL else []
            self._condition.notify_all()
        for handle in open_handles:
            self.cancel(handle)
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._abandon_all()
            return False
        if self._watchdog is not None:
            self._watchdog.close()
            self._runtime.rank.executor.observer = None
        return True

    def _abandon_all(self) -> None:
        with self._condition:
            waiting = [*self._queue, *self._driver.residents.values()]
            self._queue.clear()
        for handle in waiting:
            handle.channel.cancel()
            self._end(handle, error=EdgeLLMError("the request engine was shut down.", RefusalCode.SHUTTING_DOWN))

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._abandon_all()  # there is nobody, unless something ended the thread

    def _serve(self) -> None:
        while True:
            with self._condition:
                while not (self._queue or self._driver.active or self._stopping):
                    self._condition.wait(self._config.idle_wait)
                self._arrived = 0
                if self._stopping and not self._queue and not self._driver.active:
                    return
            try:
                self._tick()
            except BaseException as error:  # a fault of one batch must not end the others' service, nor sys.exit()
                refusal = error.refusal if isinstance(error, EdgeLLMError) else _unexpected(error)
                self._driver.fail(refusal)

    def _tick(self) -> None:
        if not self._driver.active:
            handle = self._take(founder=True)
            if handle is not None:
                self._count_latency(handle)
                self._driver.found(handle)
            return
        if self._queue and self._config.max_batch_size > 1:
            self._let_join()
        self._driver.step()

    def _let_join(self) -> None:
        """Let the first in the queue join: one per step, and nobody overtakes it."""
        handle = self._take(founder=False) if self._driver.has_room else None
        if handle is not None and self._driver.admit(handle):
            self._count_latency(handle)
            self._metrics.admitted_mid_flight += 1
        elif handle is not None or not self._driver.has_room:
            self._metrics.stalls_no_capacity += 1
            if handle is not None:
                with self._condition:
                    del self._driver.residents[handle.request_id]
                    self._queue.appendleft(handle)

    def _count_latency(self, handle: RequestHandle) -> None:
        with self._condition:
            self._metrics.record_queue_latency(time.monotonic() - handle.queued)

    def _take(self, *, founder: bool) -> RequestHandle | None:
        """Move the first of the queue into the batch, if it may be there, so that it is always in one of them."""
        with self._condition:
            if not self._queue:
                return None
            if not founder and not self._config.compatibility.allows(self._driver.founder, self._queue[0].prepared):
                self._metrics.stalls_incompatible += 1
                return None
            handle = self._queue.popleft()
            self._driver.residents[0 if founder else handle.request_id] = handle
            return handle

    def _on_timeout(self, stage: int) -> None:
        """On the watchdog's thread, while the engine's thread is inside the overdue call."""
        refusal = Refusal(RefusalCode.STEP_TIMEOUT, timeout_message(self._config.step_timeout))
        if stage == 1:
            with self._condition:
                self._metrics.step_timeouts += 1
            self._driver.end_residents(refusal)
            return
        with self._condition:
            waiting = list(self._queue)
            self._queue.clear()
        for handle in waiting:
            self._end(handle, unstarted_response(handle, FinishReason.ERROR, refusal.message), refusal=refusal)

    def _end(
        self,
        handle: RequestHandle,
        response: LLMGenerationResponse | None = None,
        *,
        error: EdgeLLMError | None = None,
        refusal: Refusal | None = None,
    ) -> None:
        reason = response.finish_reasons[0] if response is not None else FinishReason.ERROR
        if not handle.complete(response, error=error, refusal=refusal):
            return
        with self._condition:
            if reason is FinishReason.CANCELLED:
                self._metrics.cancelled += 1
            elif reason is FinishReason.ERROR:
                self._metrics.failed += 1
            else:
                self._metrics.completed += 1


def _unexpected(error: BaseException) -> Refusal:
    return Refusal(RefusalCode.ENGINE_FAILED, f"the runtime failed ({type(error).__name__}: {error}); see the log.")
