"""The running batch of a scheduler: who sits in it, one step at a time, and how everybody in it ends."""

from __future__ import annotations

from typing import Protocol

from ..errors import BackendError, EdgeLLMError, Refusal, RefusalCode, RequestError
from .boundary import AdmitDecision, BatchResult
from .generation import SteppedGeneration
from .handle import RequestHandle, unstarted_response
from .inference_runtime import LLMInferenceRuntime
from .request import FinishReason, LLMGenerationRequest, LLMGenerationResponse
from .results import append_result
from .session import GenerationSession


class EndHandle(Protocol):
    """How a scheduler ends a handle."""

    def __call__(
        self,
        handle: RequestHandle,
        response: LLMGenerationResponse | None = None,
        *,
        error: EdgeLLMError | None = None,
        refusal: Refusal | None = None,
    ) -> None:
        """End it once and count it."""
        ...


class BatchDriver:
    """Belongs to the thread that drives the runtime, or to the watchdog while an engine call is overdue.

    ``residents`` holds the handles of the batch by original index: 0 for the one that started it, the request id for
    those that joined. Whoever puts a handle there calls ``found`` or ``admit`` next.
    """

    def __init__(self, runtime: LLMInferenceRuntime, max_batch_size: int, end: EndHandle) -> None:
        self._runtime = runtime
        self._max_batch_size = max_batch_size
        self._end = end
        self._generation: SteppedGeneration | None = None
        self._session: GenerationSession | None = None
        self.founder = LLMGenerationRequest()  # the request that opened the batch
        self.residents: dict[int, RequestHandle] = {}

    @property
    def active(self) -> bool:
        """True while a batch is open."""
        return self._session is not None

    @property
    def has_room(self) -> bool:
        """True when another sequence may join the open batch."""
        return self._session is not None and self._session.resident_count() < self._max_batch_size

    def found(self, handle: RequestHandle) -> None:
        """Start a batch: run the prompt, deliver the first token."""
        self.founder = handle.prepared
        rank = self._runtime.rank
        try:
            generation = rank.begin_generation(
                handle.prepared,
                LLMGenerationResponse(),
                founder_request_id=handle.request_id,
                queued=handle.queued,
            )
        except RequestError as error:
            self._end(self.residents.pop(0), error=error)
            return
        if generation is None:
            refusal = rank.last_refusal or Refusal(RefusalCode.BAD_REQUEST, "the request was refused.")
            self._end(self.residents.pop(0), error=RequestError(refusal.message, refusal.code))
            return
        self._generation = generation
        self._session = GenerationSession(rank, generation)
        self._session.prime_from_prefill()
        self._harvest()

    def admit(self, handle: RequestHandle) -> bool:
        """Let a sequence join the open batch; False when there is no room after all."""
        if self._session is None:
            return False
        index = handle.request_id
        try:
            decision = self._session.admit_request(handle.prepared, index, handle.request_id, handle.queued)
        except RequestError as error:
            self._end(self.residents.pop(index), error=error)
            return True
        return decision is not AdmitDecision.NO_CAPACITY

    def step(self) -> None:
        """One step of the open batch; its results leave at once.

        :raises EdgeLLMError: the batch cannot go on; call ``fail``.
        """
        if self._session is None:
            return
        if not self._session.advance():
            raise BackendError("the batch cannot go on.")
        self._harvest()

    def _harvest(self) -> None:
        session, generation = self._session, self._generation
        if session is None or generation is None:
            return
        results = session.take_completed_at_or_above(0)
        # First everything that may fail, then what must not.
        responses = {index: session.materialize_result(result) for index, result in results.items()}
        for index, response in responses.items():
            handle = self.residents.pop(index, None)
            if handle is not None:
                self._end(handle, response, refusal=results[index].refusal)
        if session.finished():
            self._session = self._generation = None
            self._runtime.rank.finish_generation(generation, LLMGenerationRequest(), LLMGenerationResponse())

    def fail(self, refusal: Refusal) -> None:
        """End everybody with what they have, and close the batch."""
        generation, self._generation, self._session = self._generation, None, None
        self.end_residents(refusal)
        self.residents.clear()
        if generation is not None:
            generation.close(refusal)

    def end_residents(self, refusal: Refusal) -> None:
        """End everybody with what they have; the rows are left to the next step."""
        context = self._runtime.rank.open_context
        results: dict[int, BatchResult] = {}
        if context is not None:
            for sequence in context.sequences:
                sequence.fail(refusal)
                sequence.emit()
                results[sequence.original_index] = sequence.result(context.generation_round)
            results.update(context.completed)
        for index, handle in list(self.residents.items()):
            result = results.get(index)
            if result is None:
                self._end(handle, unstarted_response(handle, FinishReason.ERROR, refusal.message), refusal=refusal)
                continue
            response = LLMGenerationResponse()
            append_result(response, result, self._runtime.tokenizer)
            self._end(handle, response, refusal=result.refusal)
