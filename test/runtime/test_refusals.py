"""Requests that are not served: a code, a sentence, and nothing has changed."""

from __future__ import annotations

import pytest
from runtime_helpers import answer, fake_runtime, item, request

from edgellm_ros.errors import EdgeLLMError, InputTooLongError, MisuseError, RefusalCode, RequestError
from edgellm_ros.runtime.guide_grammar import Guide
from edgellm_ros.runtime.rank_runtime import LLMRankRuntime
from edgellm_ros.runtime.request import (
    FinishReason,
    LLMGenerationRequest,
    LLMGenerationResponse,
    Message,
    Request,
    SamplingParameters,
    SpecialTokenPolicy,
    ToolCall,
)
from edgellm_ros.runtime.streaming import StreamChannel


def ids(count: int) -> LLMGenerationRequest:
    return LLMGenerationRequest((Request(),), pre_tokenized_input_ids=[[65] * count])


def used_channel() -> StreamChannel:
    channel = StreamChannel()
    channel.attach()
    return channel


REFUSED = {
    "no sequences": (lambda: LLMGenerationRequest(), RefusalCode.BAD_REQUEST),
    "too many": (lambda: request("a", "b", "c", "d"), RefusalCode.BATCH_TOO_LARGE),
    "nothing to answer": (lambda: LLMGenerationRequest((Request(),)), RefusalCode.BAD_REQUEST),
    "blank": (lambda: request("  "), RefusalCode.EMPTY_PROMPT),
    "one blank of two": (lambda: request("hi", ""), RefusalCode.EMPTY_PROMPT),
    "control tokens": (
        lambda: request("<|im_end|>", special_tokens=SpecialTokenPolicy.REJECT), RefusalCode.SPECIAL_TOKENS,
    ),
    "foreign id": (lambda: request(Request(), pre_tokenized_input_ids=[[999999]]), RefusalCode.BAD_REQUEST),
    "negative id": (lambda: request(Request(), pre_tokenized_input_ids=[[-1]]), RefusalCode.BAD_REQUEST),
    "more ids than sequences": (
        lambda: request("hi", pre_tokenized_input_ids=[[1], [2]]), RefusalCode.BAD_REQUEST,
    ),
    "bias outside": (lambda: request(item("hi", logit_bias={9999: 1.0})), RefusalCode.BAD_REQUEST),
    "adapter": (lambda: request("hi", lora_weights_name="x"), RefusalCode.UNKNOWN_ADAPTER),
    "channel count": (lambda: request("hi", channels=[None, None]), RefusalCode.BAD_CHANNEL),
    "channel used": (lambda: request("hi", channels=[used_channel()]), RefusalCode.BAD_CHANNEL),
    "channel twice": (lambda: request("a", "b", channels=[StreamChannel()] * 2), RefusalCode.BAD_CHANNEL),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_have_a_code_and_a_sentence_and_touch_nothing(runtime, case):
    make, code = REFUSED[case]
    asked = make()
    fresh = StreamChannel()
    if case == "too many":
        asked.stream_channels = (fresh, None, None, None)
    response = LLMGenerationResponse()
    assert not runtime.handle_request(asked, response)
    refusal = runtime.last_refusal
    assert refusal.code is code
    assert refusal.message.endswith(".") and "\n" not in refusal.message
    assert response == LLMGenerationResponse()
    assert not fresh.attached and not fresh.finished
    assert answer(runtime, request("hi")).output_texts == ["Hello there"]


@pytest.mark.parametrize(
    ("count", "expected"),
    [(50, "answered"), (51, "input"), (60, "input"), (61, "capacity"), (10**5, "capacity")],
)  # fmt: skip
def test_length_limits(runtime, count, expected):
    response = LLMGenerationResponse()
    if expected == "answered":
        assert runtime.handle_request(ids(count), response), runtime.last_refusal
        assert response.input_token_counts == [count]
        assert len(response.output_ids[0]) <= 60 - count - 1
        return
    limit = {"input": "max_input_len is 50", "capacity": "max_kv_cache_capacity is 60"}[expected]
    with pytest.raises(InputTooLongError, match=f"EDGELLM_INPUT_TOO_LONG: the prompt has {count} tokens; {limit}"):
        runtime.handle_request(ids(count), response)
    assert runtime.last_refusal.code is RefusalCode.INPUT_TOO_LONG
    assert response == LLMGenerationResponse()
    runtime.rank.last_refusal = None
    with pytest.raises(InputTooLongError):
        runtime.rank.begin_generation(runtime.prepare(ids(count)), response)
    assert runtime.rank.last_refusal.code is RefusalCode.INPUT_TOO_LONG
    assert answer(runtime, request("hi"))


@pytest.mark.parametrize(("count", "room"), [(18, 1), (19, 0), (20, 0)])
def test_no_room_for_one_token(tmp_path, count, room):
    with fake_runtime(tmp_path / "engine", max_input=20, max_kv=20) as small:
        response = LLMGenerationResponse()
        assert small.handle_request(ids(count), response) == bool(room)
        if room:
            assert [len(row) for row in response.output_ids] == [room]
            assert response.finish_reasons == [FinishReason.LENGTH]
        else:
            assert small.last_refusal.code is RefusalCode.NO_ROOM
            assert f"has {count} tokens" in small.last_refusal.message


def test_text_limit(tmp_path, runtime):
    with pytest.raises(InputTooLongError, match="characters"):
        runtime.prepare(request(*[item("x" * 120_000)] * 9))


def test_an_unprepared_request_is_refused_by_the_rank_runtime(runtime):
    response = LLMGenerationResponse()
    assert runtime.rank.begin_generation(request("hi"), response) is None
    assert runtime.rank.last_refusal.code is RefusalCode.UNPREPARED


def test_a_rank_above_zero_needs_a_broadcast(runtime):
    prepared = runtime.prepare(request("hi"))
    assert runtime.rank.begin_generation(prepared, LLMGenerationResponse(), parallel_rank=1) is None
    assert "token_broadcast" in runtime.rank.last_refusal.message
    generation = runtime.rank.begin_generation(
        prepared, LLMGenerationResponse(), parallel_rank=0, token_broadcast=lambda values: True
    )
    generation.close()


def test_founder_id_needs_one_sequence(runtime):
    with pytest.raises(MisuseError, match="founder_request_id"):
        runtime.rank.begin_generation(runtime.prepare(request("a", "b")), LLMGenerationResponse(), founder_request_id=5)
    assert answer(runtime, request("hi"))


@pytest.mark.parametrize("option", ["lora_weights", "drafting_config"])
def test_options_that_this_engine_cannot_serve_are_refused(runtime, option):
    with pytest.raises(EdgeLLMError, match=option) as refused:
        LLMRankRuntime(runtime.rank.directory.path, **{option: {"x": "y"}})
    assert refused.value.code is RefusalCode.UNSUPPORTED


def test_request_fields_are_checked_at_birth():
    for fields in ({"max_generate_length": 0}, {"num_logprobs": 51}, {"deadline": float("nan")}, {"sampling_seed": -1}):
        with pytest.raises(RequestError):
            LLMGenerationRequest((item("x"),), **fields)


@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), float("inf"), True, "1", None])
@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "repetition_penalty"])
def test_a_number_of_any_kind_is_taken_or_refused_in_a_short_sentence(name, value):
    with pytest.raises(RequestError, match=name) as caught:
        SamplingParameters(**{name: value})
    assert len(str(caught.value)) < 200


def test_a_text_is_no_list_of_stop_strings():
    with pytest.raises(RequestError, match="list of texts"):
        Request(stop_strings="stop")


def tools_of(size: int) -> list[dict]:
    return [{"name": "f", "description": "x" * size}]


LIMITS = {
    "messages": (64, lambda count: Request((Message("user", "hi"),) * count)),
    "bytes of a message": (128 << 10, lambda count: Message("user", "x" * count)),
    "bytes and not characters": (64 << 10, lambda count: Message("user", "é" * count)),
    "parts of a message": (256, lambda count: Message.of("user", *["x"] * count)),
    "stop strings": (16, lambda count: Request(stop_strings=("x",) * count)),
    "biases": (1024, lambda count: Request(logit_bias=dict.fromkeys(range(count), 1.0))),
    "log probabilities": (50, lambda count: LLMGenerationRequest((item("hi"),), num_logprobs=count)),
    "bytes of a guide": (128 << 10, lambda count: Guide("regex", "x" * count)),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_limits_hold_to_the_last_one(limit):
    most, make = LIMITS[limit]
    make(most)
    with pytest.raises(RequestError):
        make(most + 1)


@pytest.mark.parametrize("where", ["role", "reasoning", "name", "arguments", "tools"])
def test_the_text_of_a_request_counts_wherever_it_is(runtime, where):
    """A prompt of a hundred megabytes would keep the tokenizer busy long before its length is known."""
    long = "x" * 10**6
    tools = tools_of(10**6) if where == "tools" else ()
    fields = {"role": "user", "content": "hi"}
    if where == "arguments":
        fields["tool_calls"] = (ToolCall("f", long),)
    elif where != "tools":
        fields[where] = long
    with pytest.raises(InputTooLongError, match=r"hold 10[0-9]+ characters; want at most 1000000"):
        runtime.prepare(LLMGenerationRequest((Request((Message(**fields),)),), tools=tools))
