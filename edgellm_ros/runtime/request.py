"""What a caller asks and what it gets back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import RefusalCode, RequestError
from ..json_values import shown
from ..vision.media import Media, MediaItem, PromptMedia
from ..vision.processor import Video
from ..vision.pruner import PruningReport, VisualPrunerConfig
from .cache_policy import DERIVE_REPLAY_TAIL, CacheCommitPolicy, CacheLookupPolicy
from .guide_grammar import Guide

if TYPE_CHECKING:
    from .streaming import StreamChannel

MAX_BATCH = 16
MAX_MESSAGES = 64
MAX_MESSAGE_BYTES = 128 * 1024
MAX_STOP_STRINGS = 16
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_LOGIT_BIAS = 100.0
MAX_LOGPROBS = 50
DEFAULT_SEED = 0xED6E5EED20260001


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


class SpecialTokenPolicy(str, Enum):
    """What control tokens written in user text mean."""

    LITERAL = "literal"  # plain text
    REJECT = "reject"  # the request is refused
    ALLOW = "allow"  # they act as control tokens


def check_number(name: str, value: Any, low: float, high: float, *, integer: bool = False, above: bool = False) -> None:
    """Refuse a number outside its range; ``above`` leaves the lower end out."""
    kinds = (int,) if integer else (int, float)
    ok = isinstance(value, kinds) and not isinstance(value, bool)  # comparing is exact, also beyond every float
    if not ok or not low <= value <= high or (above and value == low):
        start = f"above {low}" if above else f"from {low}"
        kind = "a whole number" if integer else "a number"
        raise RequestError(f"{name} is {shown(value)}; want {kind} {start} to {high}.")


def _check_kind(name: str, value: Any, kind: type[Enum]) -> None:
    if not isinstance(value, kind):
        raise RequestError(f"{name} is {shown(value)}; want a {kind.__name__}: {', '.join(kind.__members__)}.")


@dataclass(frozen=True)
class SamplingParameters:
    """How one sequence picks its tokens. ``temperature`` 0 or ``top_k`` 1 is greedy; ``top_k`` 0 means no limit."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, 0, 100)
        check_number("top_p", self.top_p, 0, 1, above=True)
        check_number("top_k", self.top_k, 0, 1 << 31, integer=True)
        check_number("min_p", self.min_p, 0, 1)
        check_number("repetition_penalty", self.repetition_penalty, 0, 100, above=True)
        check_number("presence_penalty", self.presence_penalty, -2, 2)
        check_number("frequency_penalty", self.frequency_penalty, -2, 2)

    @property
    def greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature == 0 or self.top_k == 1


@dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    ``tool_calls`` and ``reasoning`` belong to turns of the assistant; ``tool_call_id`` and ``name`` to those of a tool,
    whose ``content`` is its result. A turn with images is made by ``of``: ``parts`` are then its texts, images and
    videos in order, and ``content`` is the texts alone.
    """

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    reasoning: str | None = None
    parts: tuple[str | Media | MediaItem, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, role: str, *parts: str | Media | MediaItem) -> Message:
        """A turn of texts, images (uint8 RGB [H,W,3]) and videos, in order.

        :raises RequestError: a part of another kind.
        """
        return cls(role, "".join(part for part in parts if isinstance(part, str)), parts=parts)

    @property
    def media(self) -> tuple[MediaItem, ...]:
        """The images and videos that were placed already."""
        return tuple(part for part in self.parts if isinstance(part, MediaItem))

    @property
    def has_media(self) -> bool:
        """True where a part is an image or a video."""
        return any(not isinstance(part, str) for part in self.parts)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tool_calls", tuple(self.tool_calls))
        object.__setattr__(self, "parts", tuple(self.parts))
        for part in self.parts:
            if not isinstance(part, str | np.ndarray | Video | MediaItem):
                raise RequestError(
                    f"a part of a message is {type(part).__name__}; want text, an image as a NumPy array, or a Video."
                )
        if not isinstance(self.role, str) or not self.role:
            raise RequestError(f"message role is {self.role!r}; want a non-empty string such as 'user'.")
        if not isinstance(self.content, str):
            raise RequestError(f"message content is {type(self.content).__name__}; want a string.")
        size = len(self.content.encode("utf-8", "replace"))
        if size > MAX_MESSAGE_BYTES:
            raise RequestError(
                f"message content has {size} bytes; want at most {MAX_MESSAGE_BYTES}.", RefusalCode.INPUT_TOO_LONG
            )


@dataclass(frozen=True)
class Request:
    """One sequence. Fields left at None take the batch's value."""

    messages: tuple[Message, ...] = ()
    sampling: SamplingParameters | None = None
    max_generate_length: int | None = None
    sampling_seed: int | None = None
    lora_weights_name: str | None = None
    stop_strings: tuple[str, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    context_cache_lookup_policy: CacheLookupPolicy | None = None
    guided_decoding: Guide | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", tuple(self.messages))
        stops: Any = self.stop_strings
        if isinstance(stops, str):  # a tuple of it would be its letters
            raise RequestError(f"stop_strings is {shown(stops)}; want a list of texts.")
        object.__setattr__(self, "stop_strings", tuple(self.stop_strings))
        if len(self.messages) > MAX_MESSAGES:
            raise RequestError(f"a request has {len(self.messages)} messages; want at most {MAX_MESSAGES}.")
        if len(self.stop_strings) > MAX_STOP_STRINGS:
            raise RequestError(f"a request has {len(self.stop_strings)} stop strings; want at most {MAX_STOP_STRINGS}.")
        for stop in self.stop_strings:
            if not isinstance(stop, str) or not stop:
                raise RequestError(f"a stop string is {stop!r}; want non-empty text.")
        if self.max_generate_length is not None:
            check_number("max_generate_length", self.max_generate_length, 1, 1 << 31, integer=True)
        if self.sampling_seed is not None:
            check_number("sampling_seed", self.sampling_seed, 0, (1 << 64) - 1, integer=True)
        if self.context_cache_lookup_policy is not None:
            _check_kind("context_cache_lookup_policy", self.context_cache_lookup_policy, CacheLookupPolicy)
        if len(self.logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
            raise RequestError(f"logit_bias has {len(self.logit_bias)} entries; want at most {MAX_LOGIT_BIAS_ENTRIES}.")
        for token, bias in self.logit_bias.items():
            check_number(f"logit_bias[{token}]", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
        if self.guided_decoding is not None:
            if not isinstance(self.guided_decoding, Guide):
                raise RequestError(f"guided_decoding is {shown(self.guided_decoding)}; want a Guide.")
            if self.ignore_eos:
                raise RequestError(
                    "ignore_eos and guided_decoding are both given; a guided answer ends: leave one out."
                )


@dataclass
class LLMGenerationRequest:
    """A batch of sequences and what they share; per-item fields win over the batch's.

    ``pre_tokenized_input_ids`` and the fields after it are filled by
    ``LLMInferenceRuntime`` (ids that are given bypass template and tokenizer). ``deadline`` is seconds from the start
    of generation; 0 means none.
    """

    requests: Sequence[Request] = ()
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    max_generate_length: int = 256
    sampling_seed: int | None = None
    lora_weights_name: str = ""
    save_system_prompt_kv_cache: bool = False
    tools: Sequence[Mapping[str, Any]] = ()  # functions that the model may call, as the chat template takes them
    tool_choice: str = "auto"  # required: the answer is one call or more; the name of a tool: one call of it
    tool_format: str = ""  # how its calls are written: hermes, llama3, mistral; empty: as its template says
    apply_chat_template: bool = True
    add_generation_prompt: bool = True
    enable_thinking: bool = False
    special_tokens: SpecialTokenPolicy = SpecialTokenPolicy.LITERAL
    skip_special_tokens: bool = True
    num_logprobs: int = 0
    deadline: float = 0.0
    stream_channels: Sequence[StreamChannel | None] = ()
    accept_hidden_layer: int = 0  # whose states to keep where they are asked for; layers count from 1
    context_cache_lookup_policy: CacheLookupPolicy = CacheLookupPolicy.USE_CACHE
    context_cache_commit_policy: CacheCommitPolicy = CacheCommitPolicy.INCLUDING_GENERATED_TOKENS
    context_cache_replay_tail_length: int = 0  # -1: found out from the chat template, for one sequence
    visual_pruner: VisualPrunerConfig | None = None  # which image tokens to leave out; None: as the runtime is set
    on_token_generated: Callable[[int, int, int, bool], None] | None = None  # token, original index, step, finished
    pre_tokenized_input_ids: list[list[int]] = field(default_factory=list)
    formatted_requests: list[str] = field(default_factory=list)
    control_token_counts: list[int] = field(default_factory=list)  # control tokens that each item's text held
    media: list[PromptMedia | None] = field(default_factory=list)  # images of each item, placed
    system_prompts: list[str] = field(default_factory=list)  # each item's system turn, as the template writes it

    def __post_init__(self) -> None:
        check_number("max_generate_length", self.max_generate_length, 1, 1 << 31, integer=True)
        check_number("num_logprobs", self.num_logprobs, 0, MAX_LOGPROBS, integer=True)
        check_number("deadline", self.deadline, 0, 86400)
        check_number(
            "context_cache_replay_tail_length", self.context_cache_replay_tail_length, DERIVE_REPLAY_TAIL, 1 << 31,
            integer=True,
        )  # fmt: skip
        _check_kind("context_cache_lookup_policy", self.context_cache_lookup_policy, CacheLookupPolicy)
        _check_kind("context_cache_commit_policy", self.context_cache_commit_policy, CacheCommitPolicy)
        if self.sampling_seed is not None:
            check_number("sampling_seed", self.sampling_seed, 0, (1 << 64) - 1, integer=True)


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
