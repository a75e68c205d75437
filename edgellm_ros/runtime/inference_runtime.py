"""The runtime as a user sees it: conversations in, text out."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..backends.base import Backend
from ..backends.registry import graph_libraries
from ..engine_format import EngineConfig
from ..engine_manifest import Manifest
from ..errors import InputTooLongError, Refusal, RequestError
from .boundary import BoundaryHook
from .cache_policy import DERIVE_REPLAY_TAIL
from .context_cache import ContextCacheConfig
from .conversation import check_tools
from .media_prompt import place_media, prompt_media
from .rank_runtime import LLMRankRuntime
from .replay_tail import derive_replay_tail, system_text, template_options
from .request import LLMGenerationRequest, LLMGenerationResponse
from .request_checks import check_kinds
from .tokenizer import Tokenizer
from .tool_calls import resolve_format
from .tool_guide import with_tool_choice

MAX_INPUT_BYTES = 10**6  # text of all messages of a request


class LLMInferenceRuntime:
    """Renders and tokenises a request once and runs it. One thread at a time; ``prepare`` may run on any.

    ``backend`` is a name ("auto" takes what the engine directory was built for) or an open backend, which then stays
    the caller's. ``threads`` is for the engine's own work, 0 for all physical cores; the other numbers are explained
    at ``LLMRankRuntime``.

    :raises EngineDirectoryError: the directory fails a check.
    :raises BackendError: the device or engine library fails, or cannot run this directory.
    """

    def __init__(
        self,
        engine_dir: Path | str,
        multimodal_engine_dir: Path | str | None = None,
        *,
        backend: str | Backend = "auto",
        threads: int = 0,
        prefill_chunk: int = 256,
        context_cache: ContextCacheConfig | None = None,
        lora_weights: Mapping[str, Path | str] | None = None,
        join_chunk: int = 64,
        mixed_positions: int | None = None,
        checkpoint_dir: Path | str | None = None,
    ) -> None:
        start = time.monotonic()
        self.rank = LLMRankRuntime(
            engine_dir,
            multimodal_engine_dir,
            backend=backend,
            threads=threads,
            prefill_chunk=prefill_chunk,
            context_cache=context_cache,
            lora_weights=lora_weights,
            join_chunk=join_chunk,
            mixed_positions=mixed_positions,
            checkpoint_dir=checkpoint_dir,
        )
        self.last_refusal: Refusal | None = None
        self._load_seconds = time.monotonic() - start

    @property
    def config(self) -> EngineConfig:
        """``config.json`` of the engine directory."""
        return self.rank.config

    @property
    def manifest(self) -> Manifest:
        """``manifest.json`` of the engine directory."""
        return self.rank.manifest

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer and chat template."""
        return self.rank.tokenizer

    def prepare(self, request: LLMGenerationRequest) -> LLMGenerationRequest:
        """A copy that holds the ids of every sequence; the rendered prompts also go into the caller's request.

        Ids that are given win over messages. Lengths are checked against the engine where the request begins.

        Images and videos are processed and placed; the tower runs where the prompt does.

        :raises RequestError: a prompt that is blank, too long as text, refused by the template or by the policy for
            control tokens; an image that cannot be processed, or ids with other image tokens than the images make.
        """
        check_kinds({"request": request}, LLMGenerationRequest)
        request.check()
        ids: list[list[int]] = []
        formatted: list[str] = []
        counts: list[int] = []
        system: list[str] = []
        tail = request.context_cache_replay_tail_length
        derive = tail == DERIVE_REPLAY_TAIL and len(request.requests) == 1 and self.rank.reuses_context
        wants_system = request.save_system_prompt_kv_cache or self.rank.keeps_system_prompts
        given = request.pre_tokenized_input_ids
        if len(given) > len(request.requests):
            raise RequestError(
                f"{len(given)} lists of ids are given for {len(request.requests)} sequences; want one each."
            )
        size = sum(message.size for item in request.requests for message in item.messages) + check_tools(request.tools)
        if size > MAX_INPUT_BYTES:
            raise InputTooLongError(f"the messages and tools hold {size} characters; want at most {MAX_INPUT_BYTES}.")
        vision = self.rank.vision
        placed = dataclasses.replace(request, requests=[place_media(item, vision) for item in request.requests])
        for index, item in enumerate(placed.requests):
            if index < len(given) and given[index]:
                ids.append(list(given[index]))
                formatted.append("")
                counts.append(0)
                system.append("")
                continue
            if not item.messages:
                raise RequestError(f"sequence {index} has neither messages nor ids; want one of them.")
            prompt = self.tokenizer.encode_conversation(
                item.messages,
                apply_chat_template=request.apply_chat_template,
                add_generation_prompt=request.add_generation_prompt,
                **template_options(request),
            )
            ids.append(prompt.token_ids)
            formatted.append(prompt.text)
            counts.append(prompt.control_token_count)
            system.append(system_text(self.tokenizer, placed, index, prompt) if wants_system else "")
            if derive:
                tail = derive_replay_tail(self.tokenizer, placed, index, prompt)
        request.formatted_requests = formatted
        request.control_token_counts = counts
        request.system_prompts = system
        media = [
            prompt_media(item.messages, prompt_ids, vision, self.tokenizer.token_id)
            for item, prompt_ids in zip(placed.requests, ids, strict=True)
        ]
        template = self.tokenizer.chat_template if request.apply_chat_template else None
        form = resolve_format(request.tool_format, bool(request.tools), template.source if template else "")
        return dataclasses.replace(
            placed,
            media=media,
            visual_pruner=request.visual_pruner or self.rank.visual_pruner_config,
            pre_tokenized_input_ids=ids,
            formatted_requests=list(formatted),
            control_token_counts=list(counts),
            tool_format=form.name if form is not None else "",
            requests=with_tool_choice(placed, form),
            system_prompts=list(system),
            context_cache_replay_tail_length=max(0, tail),
        )

    def handle_request(
        self,
        request: LLMGenerationRequest,
        response: LLMGenerationResponse,
        *,
        output_thinker_embeddings: bool = False,
        boundary_hook: BoundaryHook | None = None,
    ) -> bool:
        """Run a request to its end and fill ``response``; False leaves ``last_refusal``.

        True does not say that every row ended well: see ``finish_reasons`` and ``messages``.

        :raises InputTooLongError: a prompt is longer than the engine takes.
        """
        self.last_refusal = None
        try:
            prepared = self.prepare(request)
            if self.rank.handle_request(
                prepared,
                response,
                output_thinker_embeddings=output_thinker_embeddings,
                boundary_hook=boundary_hook,
            ):
                return True
            self.last_refusal = self.rank.last_refusal
        except InputTooLongError as error:
            self.last_refusal = error.refusal
            raise
        except RequestError as error:
            self.last_refusal = error.refusal
        return False

    def warm_up(self, max_batch_size: int = 0) -> None:
        """Run the engine once at each batch size up to ``max_batch_size`` (0: the engine's own).

        The first request is then as fast as later ones.

        :raises BackendError: the engine failed.
        """
        self.rank.warm_up(max_batch_size)

    def describe(self) -> dict[str, Any]:
        """Model, engine, limits and memory, as plain values for reports and diagnostics."""
        limits = self.config.limits
        return {
            "model": self.config.model,
            "engine_directory": str(self.rank.directory.path),
            "backend": self.rank.backend.name,
            "backends_passed_over": list(self.rank.passed_over),
            "lowering": self.manifest.lowering,
            "precision": self.manifest.precision,
            "source": self.manifest.source,
            "licence": self.manifest.licence,
            "max_batch_size": limits.max_batch_size,
            "max_input_len": limits.max_input_len,
            "max_kv_cache_capacity": limits.max_kv_cache_capacity,
            "prefill_chunk": self.rank.executor.prefill_chunk,
            "join_chunk": self.rank.executor.join_chunk,
            "mixed_positions": self.rank.executor.mixed_positions,
            "adapters": list(self.rank.adapters.names),
            "chat_template": self.tokenizer.chat_template is not None,
            "vision": None if self.rank.vision is None else self.rank.vision.describe(),
            "load_seconds": self._load_seconds,
            "memory": dict(self.rank.backend.memory()),
            "engine": self.rank.executor.engine_details,
            "libraries": graph_libraries(self.rank.backend),
        }

    def close(self) -> None:
        """Free the engine; a second call does nothing."""
        self.rank.close()

    def __enter__(self) -> LLMInferenceRuntime:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
