"""Whatever a field of a request is given, it is served or refused in one short sentence."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from runtime_helpers import answer, fake_runtime, item, request

from edgellm_ros.errors import EdgeLLMError, RequestError
from edgellm_ros.runtime.guide_grammar import Guide, GuideKind
from edgellm_ros.runtime.request import (
    LLMGenerationRequest,
    LLMGenerationResponse,
    Message,
    Request,
    SamplingParameters,
    ToolCall,
)
from edgellm_ros.runtime.scheduler import RequestEngine, RequestEngineConfig


class Unspeakable:
    """Has nothing to say for itself."""

    def __repr__(self) -> str:
        raise ZeroDivisionError


def nested(levels: int, times: int) -> list:
    """A list in a list, each ``times`` on its level."""
    value: list = []
    for _ in range(levels):
        value = [value] * times
    return value


ANYTHING = {
    "None": None, "a number": 5, "below zero": -1, "a huge number": 10**400, "a fraction": 1.5, "nan": float("nan"),
    "true": True, "text": "x", "half a character": "\ud800", "long text": "x" * 300_000, "bytes": b"x", "numbers": [1],
    "texts": ["x"], "nothings": [None], "lists": [[1]], "lists of text": [["x"]], "lists of nothing": [[None]],
    "fractions": [[1.5]], "named": {"a": 1}, "numbered": {1: "x"}, "nan by number": {1: float("nan")}, "empty": (),
    "an object": object(), "an array": np.array([[1], [2]]), "arrays": [np.array([1, 2])], "a set": {"x"},
    "unspeakable": Unspeakable(), "deep": nested(100_000, 1), "doubled": nested(60, 2), "by name": {"a": nested(60, 2)},
}  # fmt: skip
CALL = {"name": "f", "arguments": "{}"}
MAKERS = {
    SamplingParameters: lambda **field: request("hi", sampling=SamplingParameters(**field)),
    ToolCall: lambda **field: request(
        Request((Message("user", "q"), Message("assistant", "", (ToolCall(**CALL | field),)), Message("user", "hi")))
    ),
    Message: lambda **field: request(Request((Message(**{"role": "user", "content": "hi", **field}),))),
    Request: lambda **field: request(Request(**{"messages": (Message("user", "hi"),), **field})),
    LLMGenerationRequest: lambda **field: LLMGenerationRequest(**{"requests": (item("hi"),), **field}),
}  # fmt: skip
FIELDS = [(kind, field.name) for kind in MAKERS for field in dataclasses.fields(kind)]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    with fake_runtime(tmp_path_factory.mktemp("fake") / "engine") as made:
        yield made


def refused(ask) -> str:
    """The sentence that it is refused with; empty where it is served."""
    try:
        return ask() or ""
    except EdgeLLMError as error:
        return str(error)


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name in FIELDS])
def test_any_value_of_a_field_is_served_or_refused_in_a_short_sentence(runtime, kind, field):
    for name, value in ANYTHING.items():

        def ask(value=value):
            asked = MAKERS[kind](**{field: value})
            if runtime.handle_request(asked, LLMGenerationResponse()):
                return ""
            return runtime.last_refusal.message

        sentence = refused(ask)
        assert "\n" not in sentence and len(sentence) < 600, f"{name}: {sentence}"
        assert not sentence or sentence.endswith("."), f"{name}: {sentence}"
    assert answer(runtime, request("hi"))


@pytest.mark.parametrize("field", ["special_tokens", "enable_thinking", "skip_special_tokens", "apply_chat_template"])
def test_a_switch_takes_no_other_value_for_one(field):
    """The text "reject" is not the policy: taken for something else it would let through what it should not."""
    with pytest.raises(RequestError, match=rf"{field} is 'reject'; want"):
        LLMGenerationRequest((item("hi"),), **{field: "reject"})


def test_fields_that_are_set_later_are_checked_too(runtime):
    asked = request("hi")
    asked.max_generate_length = "many"
    assert not runtime.handle_request(asked, LLMGenerationResponse())
    assert runtime.last_refusal.message == "max_generate_length is 'many'; want a whole number from 1 to 2147483648."
    asked = runtime.prepare(request("hi"))
    asked.sampling = None
    assert runtime.rank.begin_generation(asked, LLMGenerationResponse()) is None
    assert "sampling is None" in runtime.rank.last_refusal.message


def test_ids_that_are_given_win_over_messages(runtime):
    asked = request("hi there", pre_tokenized_input_ids=[[65, 66]])
    assert runtime.prepare(asked).pre_tokenized_input_ids == [[65, 66]]
    assert answer(runtime, asked).input_token_counts == [2]


@pytest.mark.parametrize("channel", [5, 0, "x", []], ids=repr)
def test_a_channel_of_another_kind_is_refused(runtime, channel):
    with pytest.raises(RequestError, match="want a StreamChannel"):
        runtime.rank.admission.check(runtime.prepare(request("hi", channels=[channel])))
    engine = RequestEngine(runtime, RequestEngineConfig())
    try:
        with pytest.raises(RequestError, match="want a StreamChannel"):
            engine.submit(request("hi"), channel)
        assert engine.submit(request("hi")).get(20)
    finally:
        assert engine.shutdown(timeout=20)


@pytest.mark.parametrize("kind", GuideKind)
def test_a_guide_of_anything_is_taken_or_refused_in_a_sentence(runtime, kind):
    for name, value in ANYTHING.items():
        makers = [lambda value=value: Guide(kind, value)]
        if kind is GuideKind.JSON_SCHEMA:
            makers += [
                lambda value=value: Guide.json_schema(value),
                lambda value=value: Guide.json_schema({"a": value}),
            ]
        if kind is GuideKind.CHOICE:
            makers.append(lambda value=value: Guide.choice(value))
        for make in makers:
            sentence = refused(
                lambda make=make: runtime.rank.admission.check(
                    runtime.prepare(request(item("hi", guided_decoding=make())))
                )
            )
            assert "\n" not in sentence and len(sentence) < 600, f"{name}: {sentence}"
