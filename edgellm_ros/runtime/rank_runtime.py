"""One engine on one device, one request at a time: what a request passes from begin to finish."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..backends.base import Backend, EmbeddingTable
from ..backends.registry import open_backend
from ..engine_format import EngineConfig, EngineDirectory, Manifest, open_engine_directory
from ..errors import (
    EdgeLLMError,
    InputTooLongError,
    MisuseError,
    Refusal,
    RefusalCode,
    RequestError,
)
from .admission import Admission
from .boundary import BoundaryHook
from .context_cache import ContextCache, ContextCacheConfig, ContextCacheMetrics
from .decoding.vanilla import VanillaDecoding
from .executor import ModelExecutor
from .founding import prefill_founders, seat_founders
from .generation import GenerationContext, InProgressGuard, RankLostError, SteppedGeneration, TokenBroadcastFn
from .metrics import LLMGenerationMetrics, LLMPrefillMetrics
from .prefix_reuse import PrefixReuse
from .request import LLMGenerationRequest, LLMGenerationResponse
from .results import append_result
from .session import GenerationSession
from .system_prompt import SystemPromptStore
from .tokenizer import Tokenizer


class LLMRankRuntime:
    """Not safe for several threads: callers take turns, and a call during an open request is refused.

    Refusals return None or False and leave ``last_refusal``; prompts that are too long and misuse raise.
    ``threads`` (0: all physical cores) is for the engine's own work; ``prefill_chunk`` is the most prompt tokens of
    one engine call, between which cancellation and deadlines are looked at; ``join_chunk`` is the same for a prompt
    that joins rows which decode: they wait for one such chunk a step at most. ``mixed_positions`` is the most positions
    (rows times the longest chunk) of one call that holds both; None takes what was measured for the backend. With
    ``context_cache`` prompts reuse what they have in common with earlier ones.

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
        mapping: Any | None = None,
        tokenizer: Tokenizer | None = None,
        chat_template: Any | None = None,
        context_cache: ContextCacheConfig | None = None,
        checkpoint_dir: Path | str | None = None,
        draft_checkpoint_dir: Path | str | None = None,
        backend: Backend | str | None = None,
        threads: int = 0,
        prefill_chunk: int = 256,
        join_chunk: int = 64,
        mixed_positions: int | None = None,
    ) -> None:
        for name, value in (
            ("multimodal_engine_dir", multimodal_engine_dir),
            ("lora_weights", lora_weights),
            ("drafting_config", drafting_config),
            ("mapping", mapping),
            ("checkpoint_dir", checkpoint_dir),
            ("draft_checkpoint_dir", draft_checkpoint_dir),
        ):
            if value:
                raise EdgeLLMError(f"{name} is given, but this engine serves text alone; leave it out.",
                                   RefusalCode.UNSUPPORTED)  # fmt: skip
        for name, value, least in (("prefill_chunk", prefill_chunk, 1), ("join_chunk", join_chunk, 1),
                                   ("mixed_positions", mixed_positions or 0, 0)):  # fmt: skip
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise EdgeLLMError(f"{name} is {value!r}; want a whole number of at least {least}.",
                                   RefusalCode.BAD_PARAMETER)  # fmt: skip
        if context_cache is not None and not isinstance(context_cache, ContextCacheConfig):
            raise EdgeLLMError(f"context_cache is {context_cache!r}; want a ContextCacheConfig.",
                               RefusalCode.BAD_PARAMETER)  # fmt: skip
        self._directory = open_engine_directory(engine_dir)
        self.tokenizer = tokenizer or Tokenizer.from_directory(self._directory.path)
        if chat_template is not None:
            self.tokenizer.chat_template = chat_template
        self._owns_backend = backend is None or isinstance(backend, str)
        self.passed_over: list[str] = []  # backends that "auto" tried before the one it took, and why not
        self._backend: Backend = (
            open_backend(backend or "auto", threads=threads, directory=self._directory, passed_over=self.passed_over)
            if backend is None or isinstance(backend, str)
            else backend
        )
        try:
            self.executor = ModelExecutor(
                self._directory,
                self._backend,
                prefill_chunk=prefill_chunk,
                join_chunk=join_chunk,
                mixed_positions=mixed_positions,
            )
        except BaseException:
            if self._owns_backend:
                self._backend.close()
            raise
        self._strategy = VanillaDecoding(self.executor, self.tokenizer)
        self._reuse = PrefixReuse(
            None
            if context_cache is None
            else ContextCache(context_cache, self.executor.cache, self._backend.synchronize),
            SystemPromptStore(self.executor, self.tokenizer),
        )
        self.admission = Admission(self.config, self.executor, self.tokenizer, self._strategy, self._reuse)
        self._latch = threading.Lock()
        self._open: SteppedGeneration | None = None
        self._closed = False
        self.last_refusal: Refusal | None = None

    # -- what it is --------------------------------------------------------------------------------------------

    @property
    def directory(self) -> EngineDirectory:
        """The engine directory."""
        return self._directory

    @property
    def config(self) -> EngineConfig:
        """Its ``config.json``."""
        return self._directory.config

    @property
    def manifest(self) -> Manifest:
        """Its ``manifest.json``."""
        return self._directory.manifest

    @property
    def backend(self) -> Backend:
        """The device that runs it."""
        return self._backend

    def max_batch_size(self) -> int:
        """Rows of the engine."""
        return self.config.limits.max_batch_size

    def has_draft_model(self) -> bool:
        """False: no draft was loaded."""
        return False

    def supports_seated_admission(self) -> bool:
        """True when sequences may join a running batch."""
        return self._strategy.supports_live_admission

    def get_speculative_decoding_strategy_name(self) -> str:
        """``vanilla`` with no draft."""
        return self._strategy.name

    def get_prefill_metrics(self) -> LLMPrefillMetrics:
        """Live counters."""
        return self.admission.prefill_metrics

    def get_generation_metrics(self) -> LLMGenerationMetrics:
        """Live counters."""
        return self.admission.generation_metrics

    def get_context_cache_metrics(self) -> ContextCacheMetrics | None:
        """A copy of the counters; None where the context cache is off. Any thread may ask."""
        cache = self._reuse.context_cache
        return None if cache is None else cache.metrics()

    @property
    def reuses_context(self) -> bool:
        """True where the context cache is on."""
        return self._reuse.context_cache is not None

    @property
    def keeps_system_prompts(self) -> bool:
        """True where saved system prompts are reused: the context cache is off, and there are some."""
        return self._reuse.context_cache is None and len(self._reuse.system_prompts) > 0

    def gen_and_save_system_prompt_kv_cache(self, prompt: str, lora_weights_name: str = "") -> bool:
        """Run a system prompt, as the template writes it, and keep what later prompts that begin with it need not run.

        True where it is kept, or was already, or is empty. False, with ``last_refusal``, where the context cache is on,
        the adapter is not loaded, or it has no ids or too many. No request may be open.

        :raises BackendError: the engine failed.
        :raises MisuseError: a request is open.
        """
        self._check_idle()
        self.last_refusal = self._reuse.save_system_prompt(prompt, lora_weights_name)
        return self.last_refusal is None

    def get_embedding_table(self) -> EmbeddingTable:
        """Token embeddings [V,D]; valid for the life of the runtime."""
        return self.executor.embeddings

    def capture_decoding_cuda_graph(self) -> bool:
        """Record the decode step of every batch size; False where steps run eagerly. No request may be open.

        :raises MisuseError: a request is open.
        """
        self._check_idle()
        return self.executor.capture_decode_steps()

    def warm_up(self, max_batch_size: int = 0) -> None:
        """Run the engine once at each batch size up to ``max_batch_size`` (0: its own). No request may be open.

        :raises BackendError: the engine failed.
        :raises MisuseError: a request is open.
        """
        self._check_idle()
        self.executor.warm_up(max_batch_size)

    def _check_idle(self) -> None:
        if self._open is not None or self._closed:
            raise MisuseError(f"this runtime {'is closed' if self._closed else 'has an open request'}; wait for none.")

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
        :raises MisuseError: ``founder_request_id`` with more than one sequence, or the runtime is closed.
        """
        if self._closed:
            raise MisuseError("this runtime is closed; make another one.")
        guard = InProgressGuard.acquire(self._latch)
        if guard is None:
            self._refuse(RefusalCode.OVERLAP, "another request is open on this runtime; wait for its end.")
            return None
        self.last_refusal = None
        generation = SteppedGeneration(
            guard, self._strategy, GenerationContext(token_broadcast=token_broadcast), parallel_rank, self._on_close
        )
        self._open = generation
        try:
            if parallel_rank > 0 and token_broadcast is None:
                raise RequestError("parallel_rank is above 0 without token_broadcast; give it one.")
            response.clear()
            if output_thinker_embeddings:
                raise RequestError("this engine has no hidden-state output; leave output_thinker_embeddings off.",
                                   RefusalCode.UNSUPPORTED)  # fmt: skip
            self._reuse.check(request, several_ranks=token_broadcast is not None)
            seat_founders(generation.context, self.admission, request, founder_request_id, queued)
            prefill_founders(generation.context, self.admission)
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
        if generation.closed or generation is not self._open:
            raise MisuseError("finish_generation was given a request that is not open; begin another one.")
        with generation:
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
        self._open = None

    @property
    def open_context(self) -> GenerationContext | None:
        """Rows and unclaimed results of the open request; None while there is none."""
        return self._open.context if self._open is not None else None

    def close(self) -> None:
        """Abort an open request and free the engine; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._open is not None:
            self._open.close(Refusal(RefusalCode.SHUTTING_DOWN, "the runtime was closed."))
        self.executor.close()
        if self._owns_backend:
            self._backend.close()
