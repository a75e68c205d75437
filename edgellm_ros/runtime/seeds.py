"""A request checked against what the engine can do, and cut into one seed per sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..engine_format import BuilderLimits
from ..errors import InputTooLongError, RefusalCode, RequestError
from ..json_values import shown
from ..vision.pruner import VisualPrunerConfig
from .boundary import SlotSeed
from .cache_policy import CachePolicy
from .media_prompt import lookup_policy, media_spans
from .request import DEFAULT_SEED, MAX_BATCH, LLMGenerationRequest, Request
from .request_checks import WHOLE_NUMBER
from .streaming import StreamChannel


def check_request(request: LLMGenerationRequest, limits: BuilderLimits) -> None:
    """Refuse what does not depend on the prompt's ids.

    :raises RequestError: an empty or too large batch, an item with nothing to answer, or channels that do not fit.
    """
    request.check()
    count = len(request.requests)
    if not count:
        raise RequestError("the request holds no sequence; want at least one.")
    if count > min(limits.max_batch_size, MAX_BATCH):
        raise RequestError(
            f"the request holds {count} sequences; the engine was built for {limits.max_batch_size}: send fewer at "
            "once.",
            RefusalCode.BATCH_TOO_LARGE,
        )
    for index, item in enumerate(request.requests):
        if not item.messages and not _given_ids(request, index):
            raise RequestError(f"sequence {index} has neither messages nor ids; want one of them.")
    check_channels(request)


def check_channels(request: LLMGenerationRequest) -> None:
    """:raises RequestError: channels of the wrong number, used twice, or in use already."""
    channels = request.stream_channels
    if not channels:
        return
    if len(channels) != len(request.requests):
        raise RequestError(
            f"the request has {len(channels)} stream channels for {len(request.requests)} sequences; want one each "
            "(None where there is none).",
            RefusalCode.BAD_CHANNEL,
        )
    given = [channel for channel in channels if channel is not None]
    for channel in given:
        if not isinstance(channel, StreamChannel):
            raise RequestError(f"a stream channel is {shown(channel)}; want a StreamChannel.", RefusalCode.BAD_CHANNEL)
    if len({id(channel) for channel in given}) != len(given):
        raise RequestError("one stream channel is given for two sequences; want one each.", RefusalCode.BAD_CHANNEL)
    for channel in given:
        channel.check_usable()


def check_prompt(prompt_ids: Sequence[int], limits: BuilderLimits, vocab_size: int) -> None:
    """:raises RequestError: no ids, ids outside the vocabulary (``InputTooLongError``: more than the engine takes)."""
    count = len(prompt_ids)
    if not count:
        raise RequestError("the prompt has no token; want at least one.", RefusalCode.EMPTY_PROMPT)
    if count > limits.max_kv_cache_capacity:
        raise InputTooLongError(
            f"the prompt has {count} tokens; max_kv_cache_capacity is {limits.max_kv_cache_capacity}: shorten it or "
            "build the engine with more."
        )
    if count > limits.max_input_len:
        raise InputTooLongError(
            f"the prompt has {count} tokens; max_input_len is {limits.max_input_len}: shorten it or build the engine "
            "with more."
        )
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocab_size:
        raise RequestError(f"the prompt holds an id outside 0..{vocab_size - 1}; use ids of this engine's tokenizer.")


def check_bias(logit_bias: Mapping[int, float], vocab_size: int) -> None:
    """:raises RequestError: it names what is no id of the vocabulary."""
    for token in logit_bias:
        if not WHOLE_NUMBER.holds(token) or not 0 <= token < vocab_size:
            raise RequestError(f"logit_bias names the id {shown(token)}; want one of 0..{vocab_size - 1}.")


def token_budget(prompt_length: int, wanted: int, limits: BuilderLimits, headroom: int) -> int:
    """Tokens that a sequence may generate.

    :raises RequestError: the prompt leaves no room for one.
    """
    room = limits.max_kv_cache_capacity - prompt_length - headroom
    if room <= 0:
        raise RequestError(
            f"the prompt has {prompt_length} tokens and leaves no room to generate one (max_kv_cache_capacity is "
            f"{limits.max_kv_cache_capacity}); shorten it.",
            RefusalCode.NO_ROOM,
        )
    return min(wanted, room)


def make_seed(
    request: LLMGenerationRequest,
    index: int,
    original_index: int,
    queued: float = 0.0,
    visual_pruner: VisualPrunerConfig | None = None,
) -> SlotSeed:
    """Everything one sequence of a prepared request brings; its own fields win over the batch's, and those over
    ``visual_pruner``.
    """
    item = request.requests[index]
    media = request.media[index] if index < len(request.media) else None
    return SlotSeed(
        prompt_ids=tuple(request.pre_tokenized_input_ids[index]),
        original_index=original_index,
        sampling=item.sampling or request.sampling,
        sampling_seed=resolve_seed(request, item),
        max_generate_length=item.max_generate_length or request.max_generate_length,
        lora_weights_name=adapter_name(request, item),
        stop_strings=item.stop_strings,
        logit_bias=item.logit_bias,
        ignore_eos=item.ignore_eos,
        guided_decoding=item.guided_decoding,
        skip_special_tokens=request.skip_special_tokens,
        enable_thinking=request.enable_thinking,
        tool_format=request.tool_format,
        num_logprobs=request.num_logprobs,
        deadline=request.deadline,
        stream_channel=request.stream_channels[index] if request.stream_channels else None,
        on_token_generated=request.on_token_generated,
        system_prompt=request.system_prompts[index] if index < len(request.system_prompts) else "",
        cache=CachePolicy(
            lookup=lookup_policy(media) or item.context_cache_lookup_policy or request.context_cache_lookup_policy,
            commit=request.context_cache_commit_policy,
            replay_tail_length=max(0, request.context_cache_replay_tail_length),
            media=media_spans(media),
        ),
        media=media,
        visual_pruner=request.visual_pruner or visual_pruner or VisualPrunerConfig(),
        queued=queued,
    )


def adapter_name(request: LLMGenerationRequest, item: Request) -> str:
    """The item's adapter, else the batch's; empty where it names none."""
    return request.lora_weights_name if item.lora_weights_name is None else item.lora_weights_name


def resolve_seed(request: LLMGenerationRequest, item: Request) -> int:
    """The item's seed, else the batch's, else the fixed default."""
    for seed in (item.sampling_seed, request.sampling_seed):
        if seed is not None:
            return seed
    return DEFAULT_SEED


def _given_ids(request: LLMGenerationRequest, index: int) -> bool:
    ids = request.pre_tokenized_input_ids
    return index < len(ids) and bool(ids[index])
