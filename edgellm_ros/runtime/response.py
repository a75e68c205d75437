"""What a caller gets back."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum

from ..vision.pruner import PruningReport
from .request_checks import TEXT, check_fields


class FinishReason(IntEnum):
    """Why a sequence ended; values 0 to 5 are those of the official runtime."""

    NOT_FINISHED = 0
    END_ID = 1
    LENGTH = 2
    CANCELLED = 3
    ERROR = 4
    STOP_WORDS = 5
    DEADLINE = 6

    @property
    def label(self) -> str:
        """Lower-case name, as reports and JSON show it."""
        return self.name.lower()


class AnswerPart(str, Enum):
    """What a piece of a generated sequence is."""

    ANSWER = "answer"
    REASONING = "reasoning"  # what the model thinks before it answers
    TOOL_CALL = "tool_call"


@dataclass(frozen=True)
class ToolCall:
    """A function that a model wants called; ``arguments`` is the text of a JSON object."""

    name: str
    arguments: str
    id: str = ""

    def __post_init__(self) -> None:
        check_fields(self, {"name": TEXT, "arguments": TEXT, "id": TEXT})


@dataclass(frozen=True)
class TokenLogprob:
    """One candidate: its id, natural-log probability and the bytes it stands for."""

    token_id: int
    logprob: float
    piece: bytes


@dataclass(frozen=True)
class SequenceTimes:
    """Seconds on ``time.monotonic``'s clock; 0 where the sequence never got there."""

    queued: float = 0.0
    prefill_start: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0


@dataclass
class LLMGenerationResponse:
    """Results by original index. ``output_ids`` are not trimmed by stop strings; ``output_texts`` are."""

    output_ids: list[list[int]] = field(default_factory=list)
    output_texts: list[str] = field(default_factory=list)  # the answers, without reasoning and tool calls
    reasoning_texts: list[str] = field(default_factory=list)
    tool_calls: list[list[ToolCall]] = field(default_factory=list)
    logprobs: list[list[list[TokenLogprob]]] = field(default_factory=list)
    finish_reasons: list[FinishReason] = field(default_factory=list)
    input_token_counts: list[int] = field(default_factory=list)
    reused_token_counts: list[int] = field(default_factory=list)  # of them, those that were known and not computed
    pruning: list[PruningReport | None] = field(default_factory=list)  # what became of its visual tokens
    times: list[SequenceTimes] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)  # why, where a sequence ended in ERROR or DEADLINE

    def clear(self) -> None:
        """Forget the results of an earlier request."""
        for values in vars(self).values():
            values.clear()
