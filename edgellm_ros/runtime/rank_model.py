"""A model on a device, and what it tells of itself; no request is known here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from ..action.noise import check_noise_seed
from ..backends.base import Backend, EmbeddingTable
from ..backends.cuda.plan_file import plan_of
from ..backends.registry import open_backend
from ..chat_template import special_token_names
from ..engine_format import EngineConfig, EngineDirectory
from ..engine_manifest import Manifest
from ..errors import EdgeLLMError, MisuseError, RefusalCode
from ..json_values import shown
from ..vision.pruner import VisualPrunerConfig
from ..vision.runner import VisionRunner
from ..vision.visual_directory import VisualDirectory
from .admission import Admission
from .artifacts import ModelArtifacts, OpenedEngine, StepSizes
from .context_cache import ContextCache, ContextCacheConfig, ContextCacheMetrics
from .decoding.vanilla import VanillaDecoding
from .hidden_states import HiddenStates, HiddenStatesView
from .lora import Adapters
from .media_marks import MediaFormat
from .metrics import LLMGenerationMetrics, LLMPrefillMetrics, MultimodalMetrics, SpecDecodeGenerationMetrics
from .prefix_reuse import PrefixReuse
from .stage_times import StageTime
from .system_prompt import SystemPromptStore
from .token_pruning import TokenPruner

_LOG = logging.getLogger(__name__)


class RankModel:
    """The engine of one rank, opened, with everything that lives as long as it; not safe for several threads.

    :raises BackendError: the device or engine library fails, or cannot run this directory.
    :raises EdgeLLMError: ``context_cache`` is no configuration of it.
    """

    def __init__(
        self,
        artifacts: ModelArtifacts,
        backend: Backend | str | None,
        threads: int,
        sizes: StepSizes,
        context_cache: ContextCacheConfig | None,
        lora_weights: Mapping[str, Path | str] | None,
    ) -> None:
        if context_cache is not None and not isinstance(context_cache, ContextCacheConfig):
            raise EdgeLLMError(
                f"context_cache is {shown(context_cache)}; want a ContextCacheConfig.", RefusalCode.BAD_PARAMETER
            )
        self._directory = artifacts.directory
        self.tokenizer = artifacts.tokenizer
        with ExitStack() as undo:
            self._engine = undo.enter_context(closing(OpenedEngine.open(artifacts, backend, threads, sizes)))
            self.passed_over = self._engine.passed_over
            self.executor = self._engine.executor
            tensors = self.executor.adapters
            self.adapters = Adapters(tensors.form if tensors is not None else None, tensors)
            self.adapters.load_all(lora_weights or {})
            self._strategy = VanillaDecoding(self.executor, self.tokenizer)
            self._reuse = PrefixReuse(
                None
                if context_cache is None
                else ContextCache(context_cache, self.executor.cache, self._engine.backend.synchronize),
                SystemPromptStore(self.executor, self.tokenizer, self.adapters),
            )
            executor, backend = self.executor, self._engine.backend
            window = bool(executor.engine.capabilities.window or self.config.extra.get("sliding_window"))
            self._pruner = TokenPruner(backend, executor.embeddings, executor.media, window=window)
            self.admission = Admission(
                self.config, executor, self.tokenizer, self._strategy, self._reuse, self._pruner, self.adapters
            )
            self.vision = None
            if artifacts.visual is not None:
                self.vision = undo.enter_context(closing(self._open_vision(artifacts.visual)))
                self._announce(self.vision)
            self._hidden_states = HiddenStates()
            self.action_noise_seed: int | None = None
            undo.pop_all()

    def _open_vision(self, directory: VisualDirectory) -> VisionRunner:
        backend = self._engine.backend
        return VisionRunner(directory, backend, tower_backend=_tower_backend(backend.name, directory))

    def _announce(self, vision: VisionRunner) -> None:
        """Let prompts hold images, and requests use what becomes of them."""
        self.admission.vision_metrics = vision.metrics
        self.executor.media.encode = self.admission.stage_times.timed("vision_encoder", vision.encode)
        bos = special_token_names(self.tokenizer.configuration).get("bos_token", "")
        start = bos if vision.directory.tower.blocks == "prompt" else ""
        self.tokenizer.media_format = MediaFormat(vision.image_mark, vision.video_mark, start)

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
        return self._engine.backend

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

    def load_lora_weights(self, name: str, folder: Path | str) -> None:
        """Load an adapter from a PEFT folder, beside the others or in place of the one of that name. From any thread.

        :raises RequestError: the engine has no room for adapters, or the folder does not fit it.
        :raises MisuseError: a sequence uses the adapter of that name.
        """
        self.adapters.load(name, folder)

    def unload_lora_weights(self, name: str) -> None:
        """Forget an adapter. From any thread.

        :raises RequestError: none of that name is loaded.
        :raises MisuseError: a sequence uses it.
        """
        self.adapters.unload(name)

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

    def get_stage_times(self) -> dict[str, StageTime]:
        """How long ``llm_prefill``, ``llm_generation`` and ``vision_encoder`` take; what never ran is left out.

        Prompts run in chunks, and each is a run; the images that a chunk needs are encoded in its time.
        """
        return self.admission.stage_times.values()

    def get_spec_decode_generation_metrics(self) -> SpecDecodeGenerationMetrics:
        """Live counters; zero without a draft."""
        return self.admission.spec_decode_metrics

    def get_multimodal_metrics(self) -> MultimodalMetrics:
        """A copy of the counters; zero without a vision engine."""
        if self.vision is None:
            return MultimodalMetrics()
        counts = self.vision.metrics
        return MultimodalMetrics(
            total_images=counts.images,
            total_image_tokens=counts.image_tokens,
            pruned_image_tokens=self._pruner.pruned_tokens,
        )

    def get_base_model_hidden_states(self, layer: int) -> HiddenStatesView | None:
        """The last request's ``layer`` (0: input embeddings); None unless it asked with ``output_thinker_embeddings``.

        The view raises ``StaleViewError`` once another request has begun.
        """
        return self._hidden_states.view(layer)

    def get_base_model_prefill_length(self) -> int:
        """Longest prompt behind the hidden states; 0 where none were asked for."""
        return self._hidden_states.prefill_length

    def get_base_model_input_token_ids(self) -> list[list[int]]:
        """Prompts behind the hidden states, by original index; empty where none were asked for."""
        return [list(ids) for ids in self._hidden_states.input_token_ids]

    def get_embedding_table(self) -> EmbeddingTable:
        """Token embeddings [V,D]; valid for the life of the runtime."""
        return self.executor.embeddings

    def set_action_noise_seed(self, seed: int) -> None:
        """Seed of the first noise of action policies, for the requests that follow; kept where there is no policy.

        :raises RequestError: it is no int32; -1 is a seed like any other.
        """
        self.action_noise_seed = check_noise_seed(seed)

    def set_visual_pruner_config(self, config: VisualPrunerConfig | Mapping[str, Any]) -> None:
        """Which image tokens to leave out of requests that come from now on and say nothing themselves.

        :raises EdgeLLMError: an unknown name, algorithm or number out of range; the old one stays then.
        """
        self._pruner.config = VisualPrunerConfig.of(config)

    @property
    def visual_pruner_config(self) -> VisualPrunerConfig:
        """What was set last."""
        return self._pruner.config

    @property
    def visual_pruner_active(self) -> bool:
        """Whether it can have an effect: there is a tower, it is enabled, and no layer has a sliding window."""
        return self.vision is not None and self._pruner.config.enabled and not self._pruner.window

    def _check_hidden_layer(self, layer: int) -> None:
        layers = self.executor.hidden_layers
        if layer not in layers:
            there = f"want one of {', '.join(map(str, layers))}" if layers else "build it with --hidden-states LAYER"
            raise MisuseError(f"accept_hidden_layer is {shown(layer)}, which this engine does not give; {there}.")


def _tower_backend(name: str, directory: VisualDirectory) -> Backend | None:
    """Where a tower runs that the language model's backend has no engine for; None: there as well."""
    if name != "tensorrt" or plan_of(directory.graph).is_file():
        return None
    _LOG.warning(
        "the image tower of %s has no TensorRT plan: ONNX Runtime runs it on the CPU; build it again with '--plan'.",
        directory.path,
    )
    return open_backend("onnxruntime")


def refuse_unserved(**options: object) -> None:
    """:raises EdgeLLMError: an option has a value that this engine cannot serve."""
    for name, value in options.items():
        if value:
            raise EdgeLLMError(
                f"{name} is given, but this engine serves text alone; leave it out.", RefusalCode.UNSUPPORTED
            )
