"""One engine on one device, one request at a time: what a request passes from begin to finish."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..backends.base import Backend
from ..chat_template import ChatTemplate
from ..errors import (
    InputTooLongError,
    MisuseError,
    Refusal,
    RefusalCode,
    RequestError,
)
from .artifacts import ModelArtifacts, StepSizes
from .boundary import BoundaryHook
from .context_cache import ContextCacheConfig
from .founding import prefill_founders, seat_founders
from .generation import (
    GenerationContext,
    InProgressGuard,
    RankLostError,
    SteppedGeneration,
    TokenBroadcastFn,
)
from .parallel import ParallelMapping
from .rank_model import refuse_unserved
from .rank_upkeep import RankUpkeep
from .request import LLMGenerationRequest, LLMGenerationResponse
from .request_checks import FUNCTION, check_kinds, or_none
from .results import append_result
from .session import GenerationSession
from .tokenizer import Tokenizer


class LLMRankRuntime(RankUpkeep):
    """Not safe for several threads: callers take turns, and a call during an open request is refused.

    Refusals return None or False and leave ``last_refusal``; prompts that are too long and misuse raise.
    ``threads`` (0: all physical cores) is for the engine's own work; ``prefill_chunk`` is the most prompt tokens of
    one engine call, between which cancellation and deadlines are looked at; ``join_chunk`` is the same for a prompt
    that joins rows which decode: they wait for one such chunk a step at most. ``mixed_positions`` is the most positions
    (rows times the longest chunk) of one call that holds both; None takes what was measured for the backend. With
    ``context_cache`` prompts reuse what they have in common with earlier ones. ``multimodal_engine_dir`` holds the
    image tower in its ``visual``; without it the engine directory's own counts.

    :raises EngineDirectoryError: the directory fails a check.
    :raises BackendError: the device or engine library fails, or cannot run this directory.
    :raises EdgeLLMError: an option is given that this engine cannot serve.
    """

    def __init__(
        self,
        engine_dir: Path | str,
        multimodal_engine_dir: Path | str | None = None,
        *,
        lora_weights: Mapping[str, Path | str] | None = None,
        drafting_config: Any | None = None,
        mapping: ParallelMapping | Mapping[str, Any] | None = None,
        tokenizer: Tokenizer | None = None,
        chat_template: ChatTemplate | str | None = None,
        context_cache: ContextCacheConfig | None = None,
        checkpoint_dir: Path | str | None = None,
        draft_checkpoint_dir: Path | str | None = None,
        backend: Backend | str | None = None,
        threads: int = 0,
        prefill_chunk: int = 256,
        join_chunk: int = 64,
        mixed_positions: int | None = None,
    ) -> None:
        sizes = StepSizes(prefill_chunk, join_chunk, mixed_positions)
        refuse_unserved(drafting_config=drafting_config, draft_checkpoint_dir=draft_checkpoint_dir)
        self._mapping = ParallelMapping.of(mapping)
        self._mapping.check_single_rank()
        artifacts = ModelArtifacts.load(
            engine_dir,
            multimodal_engine_dir,
            tokenizer=tokenizer,
            chat_template=chat_template,
            checkpoint_dir=checkpoint_dir,
        )
        super().__init__(artifacts, backend, threads, sizes, context_cache, lora_weights)

    @classmethod
    def from_artifacts(
        cls,
        artifacts: ModelArtifacts,
        *,
        lora_weights: Mapping[str, Path | str] | None = None,
        drafting_config: Any | None = None,
        mapping: ParallelMapping | Mapping[str, Any] | None = None,
        context_cache: ContextCacheConfig | None = None,
        backend: Backend | str | None = None,
        threads: int = 0,
        prefill_chunk: int = 256,
        join_chunk: int = 64,
        mixed_positions: int | None = None,
    ) -> LLMRankRuntime:
        """The same of artifacts that are loaded already, which then belong to the runtime; raises alike."""
        check_kinds({"artifacts": artifacts}, ModelArtifacts)
        sizes = StepSizes(prefill_chunk, join_chunk, mixed_positions)
        refuse_unserved(drafting_config=drafting_config)
        runtime = cls.__new__(cls)
        runtime._mapping = ParallelMapping.of(mapping)
        runtime._mapping.check_single_rank()
        RankUpkeep.__init__(runtime, artifacts, backend, threads, sizes, context_cache, lora_weights)
        return runtime

    # -- a whole request ---------------------------------------------------------------------------------------

    def handle_request(
        self,
        request: LLMGenerationRequest,
        response: LLMGenerationResponse,
        *,
        output_thinker_embeddings: bool = False,
        token_broadcast: TokenBroadcastFn | None = None,
        parallel_rank: int = -1,
        boundary_hook: BoundaryHook | None = None,
    ) -> bool:
        """Run a prepared request to its end; True does not say that every row ended well (see ``finish_reasons``).

        ``boundary_hook`` is called before every step and once after the last.

        :raises InputTooLongError: a prompt is longer than the engine takes.
        """
        check_kinds({"boundary_hook": boundary_hook}, or_none(FUNCTION))
        generation = self.begin_generation(
            request,
            response,
            output_thinker_embeddings=output_thinker_embeddings,
            token_broadcast=token_broadcast,
            parallel_rank=parallel_rank,
        )
        if generation is None:
            return False
        with generation:
            session = GenerationSession(self, generation)
            going = session.prime_from_prefill()
            while going:
                if boundary_hook is not None:
                    boundary_hook(session)
                if session.finished():
                    return self.finish_generation(generation, request, response)
                going = session.advance()
            self.last_refusal = RankLostError().refusal
            return False

    def begin_generation(
        self,
        request: LLMGenerationRequest,
        response: LLMGenerationResponse,
        *,
        output_thinker_embeddings: bool = False,
        token_broadcast: TokenBroadcastFn | None = None,
        parallel_rank: int = -1,
        founder_request_id: int = 0,
        queued: float = 0.0,
    ) -> SteppedGeneration | None:
        """Open a request and run its prompts; no token is delivered yet.

        None is a refusal. While another request is open nothing at all changes, the response included.

        :raises InputTooLongError: a prompt is longer than the engine takes.
        :raises MisuseError: ``founder_request_id`` with more than one sequence, hidden states of a layer that the
            engine does not give, or the runtime is closed, in other work, or that of another process.
        """
        check_kinds({"request": request}, LLMGenerationRequest)
        check_kinds({"response": response}, LLMGenerationResponse)
        check_kinds({"founder_request_id": founder_request_id, "parallel_rank": parallel_rank}, int)
        check_kinds({"token_broadcast": token_broadcast}, or_none(FUNCTION))
        self._check_usable()
        guard = InProgressGuard.acquire(self._latch)
        if guard is None:
            self._refuse(RefusalCode.OVERLAP, "another request is open on this runtime; wait for its end.")
            return None
        try:
            with self._driving:
                self._check_usable()
                return self._begin(
                    SteppedGeneration(
                        guard,
                        self._strategy,
                        GenerationContext(token_broadcast=token_broadcast),
                        parallel_rank,
                        self._driving,
                        self._on_close,
                    ),
                    request,
                    response,
                    request.accept_hidden_layer if output_thinker_embeddings else None,
                    founder_request_id,
                    queued,
                )
        except MisuseError:
            guard.release()  # where somebody else is in the middle of a step
            raise

    def _begin(
        self,
        generation: SteppedGeneration,
        request: LLMGenerationRequest,
        response: LLMGenerationResponse,
        layer: int | None,
        founder_request_id: int,
        queued: float,
    ) -> SteppedGeneration | None:
        self.last_refusal = None
        several_ranks = generation.context.token_broadcast is not None
        self._open = generation
        try:
            if generation.parallel_rank > 0 and not several_ranks:
                raise RequestError("parallel_rank is above 0 without token_broadcast; give it one.")
            self._hidden_states.forget()
            response.clear()
            if layer is not None:
                self._check_hidden_layer(layer)
            self._reuse.check(request, several_ranks=several_ranks)
            seat_founders(generation.context, self.admission, request, founder_request_id, queued)
            prefill_founders(generation.context, self.admission, self._hidden_states, layer)
        except InputTooLongError as error:
            self.last_refusal = error.refusal
            generation.close(error.refusal)
            raise
        except (RequestError, RankLostError) as error:
            self.last_refusal = error.refusal
            generation.close(error.refusal)
            return None
        except BaseException as error:
            generation.close(Refusal(RefusalCode.ENGINE_FAILED, f"the runtime failed: {error}"))
            raise
        return generation

    def finish_generation(
        self, generation: SteppedGeneration, request: LLMGenerationRequest, response: LLMGenerationResponse
    ) -> bool:
        """Fill the response, by original index, with the results that nobody took, and close the request.

        False when rows are still live; the request is over either way.

        :raises MisuseError: the request was closed before.
        """
        if self._open is None or generation is not self._open or generation.closed:
            raise MisuseError("finish_generation was given a request that is not open; begin another one.")
        with self._driving, generation:
            if generation.context.sequences:
                live = len(generation.context.sequences)
                return self._refuse(RefusalCode.BUSY, f"{live} sequences are still running; advance until finished.")
            stops = [item.stop_strings for item in request.requests]
            for index, result in sorted(generation.context.completed.items()):
                append_result(response, result, self.tokenizer, stops[index] if index < len(stops) else ())
            return True

    def _refuse(self, code: RefusalCode, message: str) -> bool:
        self.last_refusal = Refusal(code, message)
        return False

    def _on_close(self, generation: SteppedGeneration) -> None:
        """Count the sequences that had begun to answer; a request that could not begin counts nothing."""
        for sequence in generation.context.sequences:
            if sequence.generate_length and sequence.original_index not in generation.context.completed:
                self.admission.record(sequence.result(generation.context.generation_round))
        self.adapters.release_all()
        self._open = None
