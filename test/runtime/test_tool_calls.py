"""Tool calls told apart from text, wherever the stream is cut."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_helpers import answer, check_stream, drain, fake_runtime, item, request, stepped
from tokenizers_for_tests import CHATML_TOKENS, byte_level

from edgellm_ros.backends.fake import FakeScript
from edgellm_ros.chat_template import ChatTemplate
from edgellm_ros.errors import RefusalCode, RequestError
from edgellm_ros.runtime.conversation import template_messages, template_tools
from edgellm_ros.runtime.guide_grammar import Guide
from edgellm_ros.runtime.guided import GuideCompiler
from edgellm_ros.runtime.media_marks import MediaMarks
from edgellm_ros.runtime.reasoning import ReasoningRules
from edgellm_ros.runtime.request import (
    FinishReason,
    LLMGenerationResponse,
    Message,
    Request,
    SamplingParameters,
    ToolCall,
)
from edgellm_ros.runtime.streaming import StreamChannel
from edgellm_ros.runtime.tokenizer import Tokenizer
from edgellm_ros.runtime.tool_calls import FORMATS, HERMES, LLAMA3, MISTRAL, ToolCallParser, format_of_template
from edgellm_ros.runtime.tool_guide import tool_guide

GRIP = {"name": "grip", "description": "Close the hand.", "parameters": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "grip", "arguments": {"force": 2}}\n</tool_call>'


def parse(form, *parts):
    """Text joined, and calls in their places."""
    parser = ToolCallParser(form)
    found = [entry for part in parts for entry in parser.feed(part)] + parser.finish()
    joined = []
    for entry in found:
        if isinstance(entry, str) and joined and isinstance(joined[-1], str):
            joined[-1] += entry
        else:
            joined.append(entry)
    return joined


def call(name, place=0, **arguments):
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False), f"call{place:05d}")


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (HERMES, "plain < text", ["plain < text"]),
        (HERMES, CALL, [call("grip", force=2)]),
        (HERMES, f"Let me see.\n{CALL}", ["Let me see.\n", call("grip", force=2)]),
        (HERMES, f"{CALL}\n{CALL}\n", [call("grip", force=2), call("grip", 1, force=2)]),
        (HERMES, f"{CALL} done", [call("grip", force=2), " done"]),
        (HERMES, '<tool_call>[{"name": "a"}, {"name": "b", "arguments": {}}]</tool_call>', [call("a"), call("b", 1)]),
        (HERMES, '<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>', [call("a", x=1)]),
        (HERMES, '<tool_call>{"name":"a","arguments":{"x":"</tool_call>"}}</tool_call>', [call("a", x="</tool_call>")]),
        (HERMES, '<tool_call>{"name": "a"', ['<tool_call>{"name": "a"']),
        (HERMES, "<tool_call>nonsense</tool_call>!", ["<tool_call>nonsense</tool_call>!"]),
        (HERMES, '<tool_call>{"name": 3}</tool_call>', ['<tool_call>{"name": 3}</tool_call>']),
        (HERMES, '<tool_call>{"name": "a", "arguments": [1]}</tool_call>',
         ['<tool_call>{"name": "a", "arguments": [1]}</tool_call>']),
        (HERMES, f'<tool_call>"open</tool_call> {CALL}', ['<tool_call>"open</tool_call> ', call("grip", force=2)]),
        (HERMES, f"{CALL}<tool_c", [call("grip", force=2), "<tool_c"]),
        (LLAMA3, '{"name": "grip", "parameters": {"force": 2}}', [call("grip", force=2)]),
        (LLAMA3, ' <|python_tag|>{"name": "grip", "parameters": {}}', [call("grip")]),
        (LLAMA3, '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}', [call("a"), call("b", 1)]),
        (LLAMA3, '{"name": "a", "parameters": {}} and text', [call("a"), " and text"]),
        (LLAMA3, "Hello {}", ["Hello {}"]),
        (LLAMA3, '{"answer": 3} more', ['{"answer": 3} more']),
        (LLAMA3, '{"name": "a", ', ['{"name": "a", ']),
        (LLAMA3, "  ", ["  "]),
        (MISTRAL, '[TOOL_CALLS] [{"name": "a", "arguments": {"x": [1]}}] ', [call("a", x=[1])]),
        (MISTRAL, "[TOOL_CALLS] none", ["[TOOL_CALLS] none"]),
    ],
)  # fmt: skip
def test_calls_come_out_whole_and_the_rest_is_text(form, text, expected):
    assert parse(form, text) == expected
    for cut in range(len(text) + 1):
        assert parse(form, text[:cut], text[cut:]) == expected
    assert parse(form, *text) == expected


_PARTS = st.sampled_from(
    [CALL, "<tool_call>", "</tool_call>", "<tool", '{"name": "a", "arguments": {}}', "[TOOL_CALLS]", "<|python_tag|>",
     '"', "\\", "{", "}", "[", "]", " ", "\n", ";", "text", "é"]
)  # fmt: skip


@given(st.sampled_from(list(FORMATS.values())), st.lists(_PARTS, max_size=9).map("".join), st.data())
def test_nothing_depends_on_the_cuts(form, text, data):
    whole = parse(form, text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    assert parse(form, *(text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True))) == whole
    if all(isinstance(entry, str) for entry in whole):
        assert "".join(whole) == text  # no call: not a character is lost


@given(st.text(max_size=30), st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=9), max_size=3))
def test_any_name_and_arguments_survive(name, arguments):
    text = "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"
    found = parse(HERMES, *text)
    if name:
        assert (found[0].name, json.loads(found[0].arguments)) == (name, arguments)
    else:
        assert found == [text]


def test_text_passes_as_soon_as_it_cannot_begin_a_call():
    parser = ToolCallParser(HERMES)
    assert parser.feed("yes <tool") == ["yes "]
    assert parser.feed("s are") == ["<tools are"]
    assert parser.feed(CALL[:-1]) == []
    assert parser.feed(CALL[-1]) == [call("grip", force=2)]


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("{% if tools %}<tool_call>{% endif %}", HERMES),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", MISTRAL),
        ("""{% if tools %}'{"name": function name, "parameters": …'{% endif %}""", LLAMA3),
        ("{{ messages }}", None),
    ],
)
def test_the_template_says_how_calls_are_written(source, form):
    assert format_of_template(source) is form


TEMPLATE = (
    "{% if tools %}{% for tool in tools %}<tools>{{ tool | tojson }}</tools>{% endfor %}<tool_call>{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls %}<tool_call>{{ call.function.name }}:{{ call.function.arguments.force }}"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def tool_runtime(tmp_path):
    with fake_runtime(tmp_path, FakeScript(answers=[f"Well.\n{CALL}\n"])) as runtime:
        runtime.tokenizer.chat_template = ChatTemplate(TEMPLATE)
        yield runtime


@pytest.mark.parametrize("interval", [1, 4, 1000])
@pytest.mark.parametrize("drive", [answer, stepped])
def test_an_answer_has_text_and_calls_apart(tool_runtime, drive, interval):
    channel = StreamChannel(interval)
    response = drive(tool_runtime, request("hi", tools=[GRIP], channels=[channel]))
    check_stream(drain(channel), response)
    assert response.output_texts == ["Well.\n"] and response.tool_calls == [[call("grip", force=2)]]
    assert answer(tool_runtime, request("hi", tools=[GRIP])).tool_calls == response.tool_calls  # nobody listens


def test_without_tools_the_same_answer_is_text(tool_runtime):
    response = answer(tool_runtime, request("hi"))
    assert response.tool_calls == [[]] and "<tool_call>" in response.output_texts[0]
    given = request("hi", tool_format="hermes")
    assert answer(tool_runtime, given).tool_calls == [[call("grip", force=2)]]


def test_templates_get_tools_calls_and_results(tool_runtime):
    messages = (
        Message("user", "hold it"),
        Message("assistant", "", tool_calls=(call("grip", force=2),), reasoning="hm"),
        Message("tool", "", tool_call_id="call00000", name="grip"),
    )
    prompt = tool_runtime.tokenizer.encode_conversation(messages, tools=[GRIP])
    assert "<tool_call>grip:2</tool_call>" in prompt.text
    assert json.loads(prompt.text[7 : prompt.text.index("</tools>")]) == {"type": "function", "function": GRIP}


def test_control_tokens_in_tools_are_text(tool_runtime):
    tool = {**GRIP, "description": "x<|im_end|>"}
    prompt = tool_runtime.tokenizer.encode_conversation([Message("user", "hi")], tools=[tool])
    end = tool_runtime.tokenizer.token_id("<|im_end|>")
    assert prompt.control_token_count == 1 and prompt.token_ids.count(end) == 1 and "x<|im_end|>" in prompt.text


@pytest.mark.parametrize(
    ("tools", "fields", "words"),
    [
        ([{"type": "function"}], {}, "tool 0 is"),
        ([GRIP, "grip"], {}, "tool 1 is"),
        ([{"name": "a", "x": {1}}], {}, "tool 0 is"),
        ([], {"tool_format": "xml"}, "want one of hermes"),
        ([GRIP], {"apply_chat_template": False}, "no chat template tells"),
    ],
)
def test_bad_tools_are_refused(tool_runtime, tools, fields, words):
    assert not tool_runtime.handle_request(request("hi", tools=tools, **fields), LLMGenerationResponse())
    assert words in tool_runtime.last_refusal.message


def test_a_template_that_knows_no_tools_is_named(tmp_path):
    with fake_runtime(tmp_path) as runtime, pytest.raises(RequestError) as raised:
        runtime.prepare(request(Request((Message("user", "hi"),)), tools=[GRIP]))
    assert raised.value.code is RefusalCode.UNSUPPORTED


LIFT = {"name": "lift", "parameters": {"type": "object", "properties": {"height": {"type": "integer", "maximum": 99,
        "minimum": 0}}, "required": ["height"]}}  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("choice", "names"), [("required", {"grip", "lift"}), ("lift", {"lift"})])
def test_a_required_call_is_made_and_valid(tmp_path, form, choice, names):
    """The engine would say anything; the answer is calls that fit their schemas and nothing else."""
    pytest.importorskip("llguidance")
    with fake_runtime(tmp_path, FakeScript(mode="seeded", peak=3.0)) as runtime:
        runtime.tokenizer.chat_template = ChatTemplate(TEMPLATE)
        for seed in range(4):
            asked = request(
                "hi",
                tools=[GRIP, LIFT],
                tool_choice=choice,
                tool_format=form,
                sampling=SamplingParameters(temperature=1.0),
                sampling_seed=seed,
                max_generate_length=300,
            )
            response = answer(runtime, asked)
            assert response.finish_reasons == [FinishReason.END_ID], response.output_texts
            calls = response.tool_calls[0]
            assert calls and response.output_texts == [""] and {call.name for call in calls} <= names
            assert all(0 <= json.loads(call.arguments)["height"] <= 99 for call in calls if call.name == "lift")


def test_markers_of_calls_are_their_tokens_where_the_vocabulary_has_them():
    pytest.importorskip("llguidance")
    tokenizer = Tokenizer(byte_level(CHATML_TOKENS, ["<tool_call>", "</tool_call>"]))
    end = tokenizer.token_id("<|im_end|>")
    compiler = GuideCompiler(tokenizer, tokenizer.vocab_size, (end,), ReasoningRules(tokenizer))
    guide = compiler.start(tool_guide([GRIP], HERMES, "grip"), (), False)
    opening = tokenizer.token_id("<tool_call>")
    assert np.flatnonzero(np.unpackbits(guide.take_mask().view(np.uint8), bitorder="little")).tolist() == [opening]
    body = tokenizer.encode('\n{"name": "grip", "arguments": {}}\n')
    for token in (opening, *body, tokenizer.token_id("</tool_call>"), end):
        guide.take_mask()
        assert guide.accept(token)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": [GRIP], "tool_choice": "fly"}, "the name of a tool (grip)"),
        ({"tool_choice": "required"}, "no tool is given"),
        ({"tool_choice": "fly"}, "no tool is given"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(tool_runtime, fields, words):
    assert not tool_runtime.handle_request(request("hi", **fields), LLMGenerationResponse())
    assert words in tool_runtime.last_refusal.message


def test_a_choice_goes_with_no_other_guide(tool_runtime):
    asked = request(item("hi", guided_decoding=Guide.choice("a")), tools=[GRIP], tool_choice="required")
    assert not tool_runtime.handle_request(asked, LLMGenerationResponse())
    assert "a guide of its own" in tool_runtime.last_refusal.message


def deep(levels: int) -> dict:
    value: dict = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize("levels", [70, 900, 5000])
def test_tools_and_arguments_nested_without_end_are_refused_or_text(levels):
    """Templates, and what marks control tokens, go through them by recursion."""
    with pytest.raises(RequestError, match="tool 0 is nested more than 64 deep"):
        template_tools([{"name": "f", "parameters": deep(levels)}], lambda text, own: text)
    arguments = '{"a":' * levels + "1" + "}" * levels
    messages = [Message("assistant", "", (ToolCall("f", arguments),))]
    (turn,) = template_messages(messages, lambda text, own: text, MediaMarks(None, messages, None, str))
    assert turn["tool_calls"][0]["function"]["arguments"] == arguments
