"""What a caller asks; what it gets back is in ``response``, and both can be had from here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import RefusalCode, RequestError
from ..json_values import shown
from ..vision.media import Media, MediaItem, PromptMedia
from ..vision.processor import Video
from ..vision.pruner import VisualPrunerConfig
from .cache_policy import DERIVE_REPLAY_TAIL, CacheCommitPolicy, CacheLookupPolicy
from .guide_grammar import Guide
from .request_checks import (
    FUNCTION,
    SWITCH,
    TEXT,
    TOKEN_IDS,
    VISIBLE_TEXT,
    WHOLE_NUMBER,
    as_tuple,
    check_count,
    check_fields,
    check_number,
    checked_bias,
    list_of,
    member_of,
    of_kind,
    or_none,
)
from .response import AnswerPart, FinishReason, LLMGenerationResponse, SequenceTimes, TokenLogprob, ToolCall

if TYPE_CHECKING:
    from .streaming import StreamChannel

__all__ = [
    "AnswerPart", "FinishReason", "LLMGenerationRequest", "LLMGenerationResponse", "Message", "Request",
    "SamplingParameters", "SequenceTimes", "SpecialTokenPolicy", "TokenCallback", "TokenLogprob", "ToolCall",
]  # fmt: skip

TokenCallback = Callable[
    [int, int, int, bool], None
]  # token, original index, step, finished; raising ends the sequence
MAX_BATCH = 16
MAX_MESSAGES = 64
MAX_MESSAGE_BYTES = 128 * 1024
MAX_PARTS = 256  # of a message: each image is processed before it can be seen whether all of them fit
MAX_STOP_STRINGS = 16
MAX_LOGPROBS = 50
LOWEST_TEMPERATURE = 1e-6  # what is drawn below it is the most likely token, and 32 bits end not far from there
DEFAULT_SEED = 0xED6E5EED20260001


class SpecialTokenPolicy(str, Enum):
    """What control tokens written in user text mean."""

    LITERAL = "literal"  # plain text
    REJECT = "reject"  # the request is refused
    ALLOW = "allow"  # they act as control tokens


@dataclass(frozen=True)
class SamplingParameters:
    """How one sequence picks its tokens. ``top_k`` 1 and temperatures below 0.000001 are greedy; ``top_k`` 0 means no
    limit.
    """

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
        check_number("repetition_penalty", self.repetition_penalty, 0.01, 100)
        check_number("presence_penalty", self.presence_penalty, -2, 2)
        check_number("frequency_penalty", self.frequency_penalty, -2, 2)

    @property
    def greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature < LOWEST_TEMPERATURE or self.top_k == 1


_LIST = of_kind((list, tuple), "a list")
_SAMPLING = of_kind(SamplingParameters, "SamplingParameters")


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
    def size(self) -> int:
        """Characters of all its texts."""
        calls = sum(len(call.name) + len(call.arguments) for call in self.tool_calls)
        texts = (self.role, self.content, self.reasoning or "", self.name, self.tool_call_id)
        return sum(map(len, texts)) + calls

    @property
    def has_media(self) -> bool:
        """True where a part is an image or a video."""
        return any(not isinstance(part, str) for part in self.parts)

    def __post_init__(self) -> None:
        as_tuple(self, "tool_calls", list_of(of_kind(ToolCall, "a ToolCall"), "ToolCall"))
        as_tuple(self, "parts", _LIST)
        check_count("parts", self.parts, MAX_PARTS)
        for part in self.parts:
            if not isinstance(part, str | np.ndarray | Video | MediaItem):
                raise RequestError(
                    f"a part of a message is {type(part).__name__}; want text, an image as a NumPy array, or a Video."
                )
        if not isinstance(self.role, str) or not self.role:
            raise RequestError(f"message role is {shown(self.role)}; want a non-empty string such as 'user'.")
        if not isinstance(self.content, str):
            raise RequestError(f"message content is {type(self.content).__name__}; want a string.")
        check_fields(self, {"tool_call_id": TEXT, "name": TEXT, "reasoning": or_none(TEXT)})
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
        as_tuple(self, "messages", list_of(of_kind(Message, "a Message"), "Message"))
        as_tuple(self, "stop_strings", list_of(VISIBLE_TEXT, "texts, none of them empty"))
        check_fields(self, _REQUEST_FIELDS)
        check_count("messages", self.messages, MAX_MESSAGES)
        check_count("stop_strings", self.stop_strings, MAX_STOP_STRINGS)
        object.__setattr__(self, "logit_bias", checked_bias(self.logit_bias))
        if self.max_generate_length is not None:
            check_number("max_generate_length", self.max_generate_length, 1, 1 << 31, integer=True)
        if self.sampling_seed is not None:
            check_number("sampling_seed", self.sampling_seed, 0, (1 << 64) - 1, integer=True)
        if self.guided_decoding is not None and self.ignore_eos:
            raise RequestError("ignore_eos and guided_decoding are both given; a guided answer ends: leave one out.")


_REQUEST_FIELDS = {
    "sampling": or_none(_SAMPLING),
    "lora_weights_name": or_none(TEXT),
    "ignore_eos": SWITCH,
    "context_cache_lookup_policy": or_none(member_of(CacheLookupPolicy)),
    "guided_decoding": or_none(of_kind(Guide, "a Guide")),
}
_BATCH_FIELDS = {
    "requests": list_of(of_kind(Request, "a Request"), "Request"),
    "sampling": _SAMPLING,
    "lora_weights_name": TEXT,
    "save_system_prompt_kv_cache": SWITCH,
    "tools": _LIST,
    "tool_choice": TEXT,
    "parallel_tool_calls": SWITCH,
    "tool_format": TEXT,
    "apply_chat_template": SWITCH,
    "add_generation_prompt": SWITCH,
    "enable_thinking": SWITCH,
    "reasoning_effort": TEXT,
    "special_tokens": member_of(SpecialTokenPolicy),
    "skip_special_tokens": SWITCH,
    "stream_channels": _LIST,
    "accept_hidden_layer": WHOLE_NUMBER,
    "context_cache_lookup_policy": member_of(CacheLookupPolicy),
    "context_cache_commit_policy": member_of(CacheCommitPolicy),
    "visual_pruner": or_none(of_kind(VisualPrunerConfig, "a VisualPrunerConfig")),
    "on_token_generated": or_none(FUNCTION),
    "pre_tokenized_input_ids": list_of(TOKEN_IDS, "lists of token ids"),
    "formatted_requests": list_of(TEXT, "texts"),
    "control_token_counts": list_of(WHOLE_NUMBER, "whole numbers"),
    "media": list_of(or_none(of_kind(PromptMedia, "a PromptMedia")), "PromptMedia"),
    "system_prompts": list_of(TEXT, "texts"),
}


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
    parallel_tool_calls: bool = True  # False: the template is told, and a required answer is one call
    tool_format: str = ""  # how its calls are written: hermes, llama3, mistral; empty: as its template says
    apply_chat_template: bool = True
    add_generation_prompt: bool = True
    enable_thinking: bool = False
    reasoning_effort: str = ""  # for the chat template alone: low, medium, high, or what else it knows; empty: its own
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
    on_token_generated: TokenCallback | None = None
    pre_tokenized_input_ids: list[list[int]] = field(default_factory=list)
    formatted_requests: list[str] = field(default_factory=list)
    control_token_counts: list[int] = field(default_factory=list)  # control tokens that each item's text held
    media: list[PromptMedia | None] = field(default_factory=list)  # images of each item, placed
    system_prompts: list[str] = field(default_factory=list)  # each item's system turn, as the template writes it

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """What a maker would be refused for: fields may be set later, too.

        :raises RequestError: a field holds something else than it may; the sentence names it.
        """
        check_fields(self, _BATCH_FIELDS)
        check_number("max_generate_length", self.max_generate_length, 1, 1 << 31, integer=True)
        check_number("num_logprobs", self.num_logprobs, 0, MAX_LOGPROBS, integer=True)
        check_number("deadline", self.deadline, 0, 86400)
        check_number(
            "context_cache_replay_tail_length", self.context_cache_replay_tail_length, DERIVE_REPLAY_TAIL, 1 << 31,
            integer=True,
        )  # fmt: skip
        if self.sampling_seed is not None:
            check_number("sampling_seed", self.sampling_seed, 0, (1 << 64) - 1, integer=True)
