"""Who may take a row: requests checked, cut into sequences, their prompts run, their results counted."""

from __future__ import annotations

import time

from ..engine_format import EngineConfig
from ..errors import BackendError, RefusalCode, RequestError
from ..vision.runner import VisionMetrics
from .boundary import BatchResult, SlotSeed
from .decoding.strategy import Accepted, DecodingStrategy
from .executor import ModelExecutor
from .generation import GenerationContext, RankLostError
from .guided import GuideCompiler
from .lora import Adapters
from .metrics import LLMGenerationMetrics, LLMPrefillMetrics, SpecDecodeGenerationMetrics
from .prefix_reuse import PrefixReuse
from .request import LLMGenerationRequest
from .seeds import check_bias, check_prompt, check_request, make_seed, token_budget
from .sequence import EndRules, Sequence
from .stage_times import StageTimes
from .token_pruning import TokenPruner
from .tokenizer import Tokenizer


class Admission:
    """What founders of a batch and later arrivals have in common. Checks may run on any thread, the rest may not."""

    def __init__(
        self,
        config: EngineConfig,
        executor: ModelExecutor,
        tokenizer: Tokenizer,
        strategy: DecodingStrategy,
        reuse: PrefixReuse,
        pruner: TokenPruner,
        adapters: Adapters,
    ) -> None:
        self.config = config
        self.executor = executor
        self.tokenizer = tokenizer
        self.strategy = strategy
        self.reuse = reuse
        self.pruner = pruner
        self.adapters = adapters
        self.prefill_metrics = LLMPrefillMetrics()
        self.generation_metrics = LLMGenerationMetrics()
        self.spec_decode_metrics = SpecDecodeGenerationMetrics()
        self.stage_times = StageTimes()
        self.vision_metrics: VisionMetrics | None = None  # where there is a tower
        self._rules = EndRules(config.eos_token_id, tokenizer)
        self._guides = GuideCompiler(tokenizer, config.vocab_size, config.eos_token_id, self._rules.reasoning)

    def check(self, request: LLMGenerationRequest) -> None:
        """Everything that ``begin_generation`` would refuse a prepared request for, without starting it.

        :raises RequestError: what and why (``InputTooLongError`` for lengths).
        """
        for index in range(max(1, len(request.requests))):
            self.check_seed(self.make_checked_seed(request, index, index))

    def make_checked_seed(
        self, request: LLMGenerationRequest, index: int, original_index: int, queued: float = 0.0
    ) -> SlotSeed:
        """One sequence of a prepared request.

        :raises RequestError: the request, or this sequence of it, cannot be served.
        """
        check_request(request, self.config.limits)
        self.reuse.check(request)
        if len(request.pre_tokenized_input_ids) != len(request.requests):
            raise RequestError(
                "the request was not tokenised; prepare it, or give one list of ids per sequence.",
                RefusalCode.UNPREPARED,
            )
        seed = make_seed(request, index, original_index, queued, self.pruner.config)
        self.check_seed(seed)
        return seed

    def check_seed(self, seed: SlotSeed) -> None:
        """:raises RequestError: its prompt is empty, too long, foreign to the vocabulary, or leaves no room; so is its
        bias; its adapter is not loaded; or its guide does not compile (``MissingPackageError``: there is no compiler).
        """
        self.adapters.check(seed.lora_weights_name)
        check_prompt(seed.prompt_ids, self.config.limits, self.config.vocab_size)
        check_bias(seed.logit_bias, self.config.vocab_size)
        self._budget(seed)
        if seed.guided_decoding is not None:
            self._guides.check(seed.guided_decoding)

    def new_sequence(self, seed: SlotSeed, request_id: int) -> Sequence:
        """A sequence that has no row yet."""
        sequence = Sequence(seed, request_id, self.tokenizer, self._rules, self._budget(seed))
        if seed.guided_decoding is not None:
            sequence.guide = self._guides.start(seed.guided_decoding, seed.prompt_ids, seed.enable_thinking)
        return sequence

    def _budget(self, seed: SlotSeed) -> int:
        headroom = self.strategy.base_headroom
        return token_budget(len(seed.prompt_ids), seed.max_generate_length, self.config.limits, headroom)

    def seat(self, sequence: Sequence, row: int) -> None:
        """Give a sequence its sampling state in a row, and its adapter.

        :raises RequestError: all places for adapters are in use.
        """
        media, name = sequence.seed.media, sequence.seed.lora_weights_name
        self.executor.start_row(row, sequence.sampling_row(), sequence.seed.prompt_ids, media)
        self.adapters.seat(name, row)
        # From here on the adapter stays what it is, so this is the one whose keys and values the row will hold.
        sequence.set_scope(name, self.adapters.generation(name))
        if media is not None and self.vision_metrics is not None:
            self.vision_metrics.images += len(media.items)
            self.vision_metrics.image_tokens += sum(media.token_counts)

    def begin(self, sequence: Sequence, row: int) -> bool:
        """Called before the first chunk of a prompt, once: it is pruned, and its row holds what is known of it.

        False where the sequence has ended instead.
        """
        if not sequence.prompt_begun:
            try:
                seed, report = self.pruner.prune(sequence.seed)
            except (BackendError, RequestError) as error:
                sequence.fail(error.refusal)
                return False
            sequence.take_pruned(seed, report)
            self.executor.media.start(row, seed.media)
        return self.reuse.begin(sequence, row)

    def prefill_chunk(
        self, context: GenerationContext, sequence: Sequence, row: int, *, joining: bool = False
    ) -> Accepted | None:
        """One chunk of a prompt; a failing engine ends that sequence alone. ``joining``: other rows wait meanwhile.

        :raises RankLostError: a rank is gone.
        """
        start = time.monotonic()
        try:
            accepted = self.strategy.prefill_chunk(sequence, row, joining=joining)
            return None if accepted is None else context.agree([accepted])[0]
        except RankLostError:
            raise
        except BackendError as error:
            sequence.fail(error.refusal)
            return None
        finally:
            self.count_time("llm_prefill", time.monotonic() - start)

    def count_time(self, stage: str, seconds: float) -> None:
        """Time that the engine worked for ``llm_prefill`` or ``llm_generation``."""
        metrics = self.prefill_metrics if stage == "llm_prefill" else self.generation_metrics
        metrics.seconds += seconds
        self.stage_times.record(stage, seconds)

    def record(self, result: BatchResult) -> None:
        """Count a sequence that left its row."""
        pruned = result.pruning.before - result.pruning.after if result.pruning is not None else 0
        self.prefill_metrics.record(result.reused_length, result.effective_prefill_length, pruned)
        self.generation_metrics.record(result.generate_length)
