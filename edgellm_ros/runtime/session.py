"""The decode loop as an object: prime, advance, and the boundary between steps where sequences arrive and leave."""

from __future__ import annotations

import time
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from ..errors import BackendError, MisuseError, Refusal, RefusalCode, RequestError, StepTimeoutError, one_sentence
from .boundary import AdmitDecision, BatchResult, SlotSeed
from .decoding.strategy import Accepted
from .generation import GenerationContext, RankLostError, SteppedGeneration, ends_the_program
from .rank_model import RankModel
from .request import FinishReason, LLMGenerationRequest, LLMGenerationResponse, TokenCallback
from .request_checks import INDEX, REQUEST_ID, WHOLE_NUMBER, check_kinds, of_kind
from .results import append_result
from .rows import evict_finished
from .sequence import Sequence

if TYPE_CHECKING:
    from .rank_runtime import LLMRankRuntime

_NOT_FINITE = Refusal(
    RefusalCode.ENGINE_FAILED,
    "the engine gave numbers that are not finite; check the engine directory or lower its precision.",
)


class GenerationSession:
    """Drives one open request; every call comes from the thread that drives the runtime, between steps.

    A failing engine call ends the rows that it was for in ERROR, with a sentence; the request itself goes on to its
    end, so ``prime_from_prefill`` and ``advance`` are False only where nothing can go on.

    :raises MisuseError: from any call, when the request was closed; from those that change something, in the middle of
        a step.
    """

    def __init__(self, runtime: LLMRankRuntime, generation: SteppedGeneration) -> None:
        check_kinds({"runtime": runtime}, of_kind(RankModel, "an LLMRankRuntime"))
        check_kinds({"generation": generation}, SteppedGeneration)
        self._admission = runtime.admission
        self._generation = generation
        self._primed = False

    @property
    def _context(self) -> GenerationContext:
        if self._generation.closed:
            raise MisuseError("this request is closed; begin another one.")
        return self._generation.context

    # -- the loop ----------------------------------------------------------------------------------------------

    def prime_from_prefill(self) -> bool:
        """Deliver what prefill gave: first tokens, and the rows that have ended already. Called once, first."""
        with self._generation.driving:
            return self._prime()

    def _prime(self) -> bool:
        context = self._context
        if self._primed:
            raise MisuseError("prime_from_prefill was called twice; call it once, before the first advance.")
        self._primed = True
        now = time.monotonic()
        if not self._check_interrupts(now):
            return False
        for sequence in context.sequences:
            first, sequence.first = sequence.first, None
            if first is not None and not sequence.finished:
                self._accept(sequence, first, now)
            sequence.emit()
        self._evict()
        self._admission.reuse.keep_prompts(context)
        return True

    def finished(self) -> bool:
        """True when no row is live."""
        return all(sequence.finished for sequence in self._context.sequences)

    def advance(self) -> bool:
        """One decode step of the live rows, and one chunk of the prompt of a row that arrived, in one call or two.

        False when another rank is gone: drop the request.
        """
        try:
            with self._generation.driving:
                return self._advance()
        except RankLostError:
            return False

    def _advance(self) -> bool:
        context = self._context
        if not self._primed:
            raise MisuseError("advance was called before prime_from_prefill; call that first.")
        if not self._check_interrupts(time.monotonic()):
            return False
        # A row that ended between steps leaves now: its consumer hears of it before the step, and the step is cheaper.
        self._evict()
        self._begin_prompt()
        decoding = context.sequences[: context.decoding_count]
        if decoding and context.prefilling and self._mixed_step(decoding, context.prefilling[0]):
            context.generation_round += 1
            self._evict()
            self._admission.reuse.keep_prompts(context)
            return True
        if decoding:
            self._decode(decoding)
            context.generation_round += 1
            self._evict()
        if context.prefilling:
            self._prefill_chunk(context.prefilling[0], joining=bool(decoding))
            self._evict()
        self._admission.reuse.keep_prompts(context)
        return True

    def _begin_prompt(self) -> None:
        """Have what is known of the next prompt copied into its row."""
        context = self._context
        while context.prefilling:
            sequence = context.prefilling[0]
            if self._admission.begin(sequence, context.sequences.index(sequence)):
                return
            sequence.emit()
            self._evict()

    def _mixed_step(self, decoding: list[Sequence], joiner: Sequence) -> bool:
        """Both at once where that pays. False: it does not, or the engine failed, and then each is tried by itself.

        A prompt that the engine cannot run thus ends no other row.
        """
        strategy, metrics = self._generation.strategy, self._admission
        if not strategy.mixes(decoding, joiner):
            return False
        start, cached = time.monotonic(), joiner.committed_length
        try:
            gained, first = strategy.mixed_step(decoding, joiner)
        except StepTimeoutError as error:
            for sequence in (*decoding, joiner):
                sequence.fail(error.refusal)
                sequence.emit()
            return True
        except BackendError:
            return False
        agreed = self._context.agree(gained if first is None else [*gained, first])
        now = time.monotonic()
        share = (joiner.committed_length - cached) / (joiner.committed_length - cached + len(decoding))
        metrics.count_time("llm_prefill", share * (now - start))
        metrics.generation_metrics.steps += 1
        metrics.count_time("llm_generation", (1 - share) * (now - start))
        if first is not None:
            self._context.prefilling.remove(joiner)
        for sequence, accepted in zip((*decoding, joiner), agreed, strict=False):
            self._accept(sequence, accepted, now)
            sequence.emit()
        return True

    def _decode(self, decoding: list[Sequence]) -> None:
        metrics = self._admission.generation_metrics
        start = time.monotonic()
        try:
            accepted = self._context.agree(self._generation.strategy.decode_step(decoding))
        except RankLostError:
            raise
        except BackendError as error:
            for sequence in decoding:
                sequence.fail(error.refusal)
                sequence.emit()
            return
        now = time.monotonic()
        metrics.steps += 1
        self._admission.count_time("llm_generation", now - start)
        for sequence, gained in zip(decoding, accepted, strict=True):
            self._accept(sequence, gained, now)
            sequence.emit()

    def _prefill_chunk(self, sequence: Sequence, *, joining: bool) -> None:
        row = self._context.sequences.index(sequence)
        accepted = self._admission.prefill_chunk(self._context, sequence, row, joining=joining)
        if sequence.finished:
            sequence.emit()
            return
        if accepted is not None:
            self._context.prefilling.remove(sequence)
            self._accept(sequence, accepted, time.monotonic())
            sequence.emit()

    def _accept(self, sequence: Sequence, gained: Accepted, now: float) -> None:
        if sequence.finish_reason is not FinishReason.NOT_FINISHED:  # its guide could not go on
            return
        if gained.not_finite:
            sequence.fail(_NOT_FINITE)
            return
        logprobs = gained.logprobs or ((),) * len(gained.token_ids)
        callback = sequence.seed.on_token_generated
        for token_id, candidates in zip(gained.token_ids, logprobs, strict=True):
            sequence.accept(token_id, candidates, now)
            if callback is not None:
                self._tell(callback, token_id, sequence)
            if sequence.finished:
                break

    def _tell(self, callback: TokenCallback, token_id: int, sequence: Sequence) -> None:
        """Others in the batch have nothing to do with a callback that raises: its own sequence ends.

        On the main thread an interrupt or an exit is not the callback's alone.
        """
        try:
            callback(token_id, sequence.original_index, self._context.generation_round, sequence.finished)
        except BaseException as error:
            if ends_the_program(error):
                raise
            what = f"on_token_generated raised {type(error).__name__}: {error}; correct it, or leave it out."
            sequence.fail(Refusal(RefusalCode.BAD_REQUEST, one_sentence(what)))

    def _check_interrupts(self, now: float) -> bool:
        """End cancelled and late rows; on several ranks the first one decides, or shapes would differ."""
        context = self._context
        broadcast = context.token_broadcast
        if broadcast is None or self._generation.parallel_rank <= 0:
            for sequence in context.sequences:
                sequence.check_interrupts(now)
        if broadcast is not None:
            flags = [int(sequence.finish_reason) for sequence in context.sequences]
            if not broadcast(flags):
                return False
            for sequence, flag in zip(context.sequences, flags, strict=True):
                sequence.adopt(FinishReason(flag))
        for sequence in context.sequences:
            if sequence.finished:
                sequence.emit()
        return True

    def _evict(self) -> None:
        evict_finished(self._context, self._admission)

    # -- the boundary ------------------------------------------------------------------------------------------

    def resident_count(self) -> int:
        """Rows in use."""
        return len(self._context.sequences)

    def admit_request(
        self, request: LLMGenerationRequest, original_index: int, request_id: int, queued: float = 0.0
    ) -> AdmitDecision:
        """Give a prepared request of one sequence a row; its own parameters, seed and budget apply.

        :raises RequestError: the request cannot be served as it is; nothing changed.
        """
        check_kinds({"request": request}, LLMGenerationRequest)
        check_kinds({"original_index": original_index}, INDEX)
        check_kinds({"request_id": request_id}, REQUEST_ID)
        self._check_primed()
        if len(request.requests) != 1:
            raise RequestError(f"{len(request.requests)} sequences arrive at once; want one.")
        with self._generation.driving:
            seed = self._admission.make_checked_seed(request, 0, original_index, queued)
            return self._admit(seed, request_id)

    def admit_sequence(self, seed: SlotSeed) -> AdmitDecision:
        """Give a prepared sequence a row; its request id is its original index + 1.

        :raises RequestError: the sequence cannot be served as it is; nothing changed.
        """
        check_kinds({"seed": seed}, SlotSeed)
        self._check_primed()
        with self._generation.driving:
            self._admission.check_seed(seed)
            return self._admit(seed, seed.original_index + 1)

    def _admit(self, seed: SlotSeed, request_id: int) -> AdmitDecision:
        context = self._context
        if not self._generation.strategy.supports_live_admission:
            raise RequestError("this decoding strategy admits nobody to a running batch.", RefusalCode.UNSUPPORTED)
        taken = {sequence.original_index for sequence in context.sequences} | set(context.completed)
        if seed.original_index in taken or any(sequence.request_id == request_id for sequence in context.sequences):
            raise RequestError(f"index {seed.original_index} or request id {request_id} is in use; want new ones.")
        if len(context.sequences) >= self._admission.config.limits.max_batch_size:
            return AdmitDecision.NO_CAPACITY
        adapters = self._admission.adapters
        if not adapters.available(seed.lora_weights_name):
            return AdmitDecision.NO_CAPACITY
        sequence = self._admission.new_sequence(seed, request_id)
        row = len(context.sequences)
        self._admission.seat(sequence, row)
        try:
            sequence.start(time.monotonic(), context.generation_round)
            sequence.attach()  # last, for another thread can see it
        except BaseException:
            adapters.release(seed.lora_weights_name)
            raise
        context.sequences.append(sequence)
        context.prefilling.append(sequence)
        return AdmitDecision.ADMITTED

    def _check_primed(self) -> None:
        if not self._primed:
            raise MisuseError("a sequence arrived before prime_from_prefill; call that first.")

    def take_completed_at_or_above(self, first_index: int) -> dict[int, BatchResult]:
        """Move out the results whose original index is at least ``first_index``."""
        check_kinds({"first_index": first_index}, WHOLE_NUMBER)
        completed = self._context.completed
        return {index: completed.pop(index) for index in sorted(completed) if index >= first_index}

    def materialize_result(self, result: BatchResult, stop_strings: Items[str] = ()) -> LLMGenerationResponse:
        """A response of one element; ``stop_strings`` matter only where no text was read while it ran."""
        check_kinds({"result": result}, BatchResult)
        response = LLMGenerationResponse()
        append_result(response, result, self._admission.tokenizer, stop_strings)
        return response
