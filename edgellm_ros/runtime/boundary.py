"""What may happen between two steps of a running batch: who arrives, who has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from ..errors import Refusal
from ..vision.media import PromptMedia
from ..vision.pruner import PruningReport, VisualPrunerConfig
from .answer_text import AnswerRules
from .cache_policy import CachePolicy
from .guide_grammar import Guide
from .request import (
    MAX_LOGPROBS,
    FinishReason,
    LLMGenerationRequest,
    LLMGenerationResponse,
    SamplingParameters,
    SequenceTimes,
    TokenCallback,
    TokenLogprob,
    ToolCall,
)
from .request_checks import (
    FUNCTION,
    SWITCH,
    TEXT,
    TOKEN_IDS,
    VISIBLE_TEXT,
    as_tuple,
    check_fields,
    check_number,
    checked_bias,
    list_of,
    of_kind,
    or_none,
)
from .streaming import StreamChannel


class AdmitDecision(Enum):
    """What became of an arriving sequence."""

    ADMITTED = "admitted"  # it has a row; its prefill runs with the next steps, its result leaves by harvest
    NO_CAPACITY = "no_capacity"  # nothing changed; try again when a row is free
    FAILED = "failed"  # refused for good; where it had a row, the row ends in ERROR and is harvested


@dataclass(frozen=True)
class SlotSeed:
    """What one arriving sequence brings. Its identity (request id, row) is given when it gets a row.

    :raises RequestError: a field holds something else than it may; the sentence names it.
    """

    prompt_ids: tuple[int, ...]
    original_index: int
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    sampling_seed: int = 0
    max_generate_length: int = 256
    lora_weights_name: str = ""  # adapter; empty: none
    stop_strings: tuple[str, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    guided_decoding: Guide | None = None
    skip_special_tokens: bool = True
    enable_thinking: bool = False
    tool_format: str = ""
    num_logprobs: int = 0
    deadline: float = 0.0  # seconds from the start of its work; 0: none
    stream_channel: StreamChannel | None = None
    on_token_generated: TokenCallback | None = None
    system_prompt: str = ""  # as text, the way the template writes it; for the store of system prompts
    cache: CachePolicy = field(default_factory=CachePolicy)
    media: PromptMedia | None = None  # what of the prompt is more than its ids
    visual_pruner: VisualPrunerConfig = field(default_factory=VisualPrunerConfig)
    queued: float = 0.0  # time.monotonic when it was submitted; 0: it was not queued

    def __post_init__(self) -> None:
        as_tuple(self, "prompt_ids", TOKEN_IDS)
        as_tuple(self, "stop_strings", list_of(VISIBLE_TEXT, "texts, none of them empty"))
        check_fields(self, _SEED_FIELDS)
        check_number("original_index", self.original_index, 0, 1 << 62, integer=True)
        check_number("sampling_seed", self.sampling_seed, 0, (1 << 64) - 1, integer=True)
        check_number("max_generate_length", self.max_generate_length, 1, 1 << 31, integer=True)
        check_number("num_logprobs", self.num_logprobs, 0, MAX_LOGPROBS, integer=True)
        check_number("deadline", self.deadline, 0, 86400)
        object.__setattr__(self, "logit_bias", checked_bias(self.logit_bias))


_SEED_FIELDS = {
    "sampling": of_kind(SamplingParameters, "SamplingParameters"),
    "lora_weights_name": TEXT,
    "ignore_eos": SWITCH,
    "guided_decoding": or_none(of_kind(Guide, "a Guide")),
    "skip_special_tokens": SWITCH,
    "enable_thinking": SWITCH,
    "tool_format": TEXT,
    "stream_channel": or_none(of_kind(StreamChannel, "a StreamChannel")),
    "on_token_generated": or_none(FUNCTION),
    "system_prompt": TEXT,
    "cache": of_kind(CachePolicy, "a CachePolicy"),
    "media": or_none(of_kind(PromptMedia, "a PromptMedia")),
    "visual_pruner": of_kind(VisualPrunerConfig, "a VisualPrunerConfig"),
}


@dataclass(frozen=True)
class BatchResult:
    """A sequence that has ended, filed under its original index when it left its row.

    ``token_ids`` is the whole history, prompt included; its last ``generate_length`` are what was generated. ``text``
    is the answer as it was streamed, None where no text pass was needed while it ran; ``answer_rules`` say how to read
    it then.
    """

    original_index: int
    request_id: int
    token_ids: tuple[int, ...]
    generate_length: int
    iterations: int  # steps of the batch from its first token to its last
    raw_input_ids: tuple[int, ...]
    effective_prefill_length: int  # prompt tokens that were computed
    reused_length: int  # and that were not, being known
    pruning: PruningReport | None  # what became of its visual tokens; None where it never came to that
    finish_reason: FinishReason
    refusal: Refusal | None  # why, where it ended in ERROR or DEADLINE
    text: str | None
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    answer_rules: AnswerRules
    logprobs: tuple[tuple[TokenLogprob, ...], ...]
    skip_special_tokens: bool
    times: SequenceTimes
    system_prompt: str = ""

    @property
    def output_ids(self) -> list[int]:
        """The generated ids, not trimmed by stop strings."""
        return list(self.token_ids[len(self.token_ids) - self.generate_length :])


class GenerationBoundary(Protocol):
    """Calls that are allowed between steps, on the thread that drives the batch."""

    def admit_sequence(self, seed: SlotSeed) -> AdmitDecision:
        """Give a prepared sequence a row; its request id is its original index + 1."""
        ...

    def admit_request(
        self, request: LLMGenerationRequest, original_index: int, request_id: int, queued: float = 0.0
    ) -> AdmitDecision:
        """Give a request of one sequence a row.

        :raises RequestError: the request cannot be served as it is; nothing changed.
        """
        ...

    def take_completed_at_or_above(self, first_index: int) -> dict[int, BatchResult]:
        """Move out the results whose original index is at least ``first_index``."""
        ...

    def materialize_result(self, result: BatchResult, stop_strings: Sequence[str] = ()) -> LLMGenerationResponse:
        """A response of one element."""
        ...

    def resident_count(self) -> int:
        """Rows in use; capacity is judged on it."""
        ...


BoundaryHook = Callable[[GenerationBoundary], None]
