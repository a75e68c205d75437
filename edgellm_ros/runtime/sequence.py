"""One live sequence: ids, lengths, stream, stops, and how it ends. It carries all its state; rows are only places."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import replace
from typing import TYPE_CHECKING

from ..backends.base import SamplingRow
from ..errors import Refusal, RefusalCode
from ..vision.pruner import PruningReport
from .answer_text import AnswerRules
from .boundary import BatchResult, SlotSeed
from .delivery import Delivery
from .guided import SequenceGuide
from .reasoning import ReasoningRules, ReasoningState
from .request import FinishReason, SequenceTimes, TokenLogprob
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .decoding.strategy import Accepted

_NOT_FINISHED = FinishReason.NOT_FINISHED


class EndRules:
    """Which ids end a sequence: the primary one always, the others not while it reasons."""

    def __init__(self, eos_token_ids: Items[int], tokenizer: Tokenizer) -> None:
        self.primary = eos_token_ids[0] if eos_token_ids else None
        self.all = frozenset(eos_token_ids)
        self.reasoning = ReasoningRules(tokenizer, eos_token_ids)


class Sequence:
    """State of one sequence from its seat in a row to its result.

    Owned by the thread that drives the batch. ``token_ids`` is the history, prompt first; ``committed_length`` counts
    the positions of it that the cache holds, always one less than the history once a token was sampled.
    """

    def __init__(self, seed: SlotSeed, request_id: int, tokenizer: Tokenizer, rules: EndRules, budget: int) -> None:
        self.seed = seed
        self.running_seed = seed  # with what pruning leaves of its prompt
        self.pruning: PruningReport | None = None
        self.request_id = request_id
        self.original_index = seed.original_index
        self.token_ids = list(seed.prompt_ids)
        self.prompt_length = len(seed.prompt_ids)
        self.generate_length = 0
        self.committed_length = 0
        self.reused_length = 0  # of the prompt: copied into the row, not computed
        self.prompt_begun = False
        self.prompt_kept = False  # offered for reuse
        self.budget = budget
        self.birth_round = 0
        self.finish_reason = _NOT_FINISHED
        self.refusal: Refusal | None = None  # why, where it ended in ERROR or DEADLINE
        self.first: Accepted | None = None  # what prefill sampled, until it is delivered
        self.logprobs: list[tuple[TokenLogprob, ...]] = []
        self._rules = rules
        self.guide: SequenceGuide | None = None
        self._reasoning = rules.reasoning.at_start(seed.prompt_ids)
        guided = seed.guided_decoding is not None
        self._answer_rules = AnswerRules(rules.reasoning, self._reasoning, seed.tool_format, guided)
        self.delivery = Delivery(seed, tokenizer, self._answer_rules)
        self._started = self._first_token = self._last_token = 0.0
        self.deadline = float("inf")

    # -- start -------------------------------------------------------------------------------------------------

    def take_pruned(self, seed: SlotSeed, report: PruningReport) -> None:
        """Run this prompt instead, which is the sequence's own without some visual tokens."""
        self.running_seed, self.pruning = seed, report
        self.token_ids = list(seed.prompt_ids)
        self.prompt_length = len(seed.prompt_ids)

    def set_scope(self, adapter: str, generation: int) -> None:
        """Its prefixes are those of its adapter, whoever made the seed."""
        known = self.seed.cache.scope
        scope = replace(known, adapter=adapter, adapter_generation=generation)
        if scope != known:
            self.seed = replace(self.seed, cache=replace(self.seed.cache, scope=scope))
            self.running_seed = self.seed

    def attach(self) -> None:
        """Claim the stream channel; from here on a terminal chunk is owed.

        :raises RequestError: the channel is in use or finished.
        """
        self.delivery.attach()

    def start(self, now: float, generation_round: int) -> None:
        """Prefill begins; the deadline counts from here."""
        self._started = now
        self.birth_round = generation_round
        if self.seed.deadline:
            self.deadline = now + self.seed.deadline

    def sampling_row(self) -> SamplingRow:
        """What the sampler needs to know."""
        sampling = self.seed.sampling
        return SamplingRow(
            temperature=0.0 if sampling.greedy else float(sampling.temperature),
            top_k=sampling.top_k,
            top_p=float(sampling.top_p),
            min_p=float(sampling.min_p),
            repetition_penalty=float(sampling.repetition_penalty),
            presence_penalty=float(sampling.presence_penalty),
            frequency_penalty=float(sampling.frequency_penalty),
            seed=self.seed.sampling_seed,
            logit_bias=self.seed.logit_bias,
            num_logprobs=self.seed.num_logprobs,
        )

    @property
    def finished(self) -> bool:
        """True once it has a terminal reason, which never changes but for a stop string found in the same step."""
        return self.finish_reason is not _NOT_FINISHED

    @property
    def prefilled(self) -> bool:
        """True when the whole prompt is in the cache."""
        return self.committed_length >= self.prompt_length

    # -- between steps -----------------------------------------------------------------------------------------

    def check_interrupts(self, now: float) -> None:
        """End it where its channel was cancelled or its time is over."""
        if self.finish_reason is not _NOT_FINISHED:
            return
        channel = self.delivery.channel
        if channel is not None and channel.cancelled:
            self.finish_reason = FinishReason.CANCELLED
        elif now >= self.deadline:
            self.finish_reason = FinishReason.DEADLINE
            self.refusal = Refusal(
                RefusalCode.DEADLINE,
                f"the request ran out of its {self.seed.deadline:g} s after {self.generate_length} tokens; "
                "allow more time or fewer tokens.",
            )

    def fail(self, refusal: Refusal) -> None:
        """End it in ERROR unless it has ended."""
        if self.finish_reason is _NOT_FINISHED:
            self.finish_reason = FinishReason.ERROR
            self.refusal = refusal

    def adopt(self, reason: FinishReason) -> None:
        """Take over how the first rank sees it."""
        if self.finish_reason is _NOT_FINISHED:
            self.finish_reason = reason

    # -- one token ---------------------------------------------------------------------------------------------

    def accept(self, token_id: int, logprobs: tuple[TokenLogprob, ...], now: float) -> None:
        """Append a sampled token and decide whether the sequence ends with it."""
        if self.guide is not None and not self.guide.accept(token_id):
            self.fail(self.guide.refusal(token_id))
            return
        self.token_ids.append(token_id)
        self.generate_length += 1
        if self.seed.num_logprobs:
            self.logprobs.append(logprobs)
        self._last_token = now
        if self.generate_length == 1:
            self._first_token = now
        rules = self._rules
        self._reasoning = rules.reasoning.follow(self._reasoning, token_id)
        reasons = self._reasoning is ReasoningState.REASONING
        ends = token_id in rules.all and (token_id == rules.primary or not reasons)
        if (ends and not self.seed.ignore_eos) or (self.guide is not None and self.guide.complete):
            self.finish_reason = FinishReason.END_ID
        elif self.generate_length >= self.budget:
            self.finish_reason = FinishReason.LENGTH
        if self.delivery.take(token_id, logprobs):
            self.finish_reason = FinishReason.STOP_WORDS

    def emit(self) -> None:
        """Push a chunk where one is due, the terminal one where the sequence has ended."""
        if self.finish_reason is _NOT_FINISHED:
            self.delivery.emit()
        else:
            self.finish_reason = self.delivery.finish(self.finish_reason)

    # -- result ------------------------------------------------------------------------------------------------

    def times(self) -> SequenceTimes:
        """When it was queued, started, gave its first and its last token."""
        return SequenceTimes(self.seed.queued, self._started, self._first_token, self._last_token)

    def result(self, generation_round: int) -> BatchResult:
        """What is filed when it leaves its row."""
        text, reasoning, calls = self.delivery.read()
        return BatchResult(
            original_index=self.original_index,
            request_id=self.request_id,
            token_ids=tuple(self.token_ids),
            generate_length=self.generate_length,
            iterations=max(0, generation_round - self.birth_round),
            raw_input_ids=self.seed.prompt_ids,
            effective_prefill_length=min(self.committed_length, self.prompt_length) - self.reused_length,
            reused_length=self.reused_length,
            pruning=self.pruning,
            finish_reason=self.finish_reason,
            refusal=self.refusal,
            text=text,
            reasoning=reasoning,
            tool_calls=calls,
            answer_rules=self._answer_rules,
            logprobs=tuple(self.logprobs),
            skip_special_tokens=self.seed.skip_special_tokens,
            times=self.times(),
            system_prompt=self.seed.system_prompt,
        )
