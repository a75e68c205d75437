"""Reasoning and answer, apart in stream and response."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_helpers import answer, check_stream, drain, fake_runtime, item, request, stepped
from tokenizers_for_tests import CHATML_TOKENS, byte_level

from edgellm_ros.backends.fake import FakeScript
from edgellm_ros.runtime.answer_text import AnswerReader, AnswerRules, split_pieces
from edgellm_ros.runtime.reasoning import ReasoningRules, ReasoningState
from edgellm_ros.runtime.request import AnswerPart, FinishReason
from edgellm_ros.runtime.streaming import StreamChannel
from edgellm_ros.runtime.tokenizer import Tokenizer

THINKING = Tokenizer(byte_level(CHATML_TOKENS, ["<think>", "</think>", "<tool_call>", "</tool_call>"]))
START, END, TURN = (THINKING.token_id(text) for text in ("<think>", "</think>", "<|im_end|>"))
RULES = ReasoningRules(THINKING, [TURN])


@pytest.mark.parametrize(
    ("prompt", "state"),
    [
        ([1, 2], ReasoningState.UNDECIDED),
        ([1, START, 2], ReasoningState.REASONING),  # the template opens it
        ([1, START, 2, END, 3], ReasoningState.ANSWER),  # the template skips it
        ([START, 2, END, 3, TURN, 4], ReasoningState.UNDECIDED),  # an earlier turn's markers say nothing
        ([START, 2, END, 3, TURN, 4, START], ReasoningState.REASONING),
    ],
)
def test_the_last_marker_of_the_last_turn_says_where_an_answer_starts(prompt, state):
    assert RULES.at_start(prompt) is state


def test_without_markers_everything_is_answer():
    rules = ReasoningRules(Tokenizer(byte_level(CHATML_TOKENS)))
    assert rules.at_start([1]) is ReasoningState.ANSWER


def script(text: str) -> FakeScript:
    """One token per character, markers whole."""
    pieces, rest = [], text
    while rest:
        size = next((len(marker) for marker in ("<think>", "</think>") if rest.startswith(marker)), 1)
        pieces.append(rest[:size])
        rest = rest[size:]
    return FakeScript(answers=[pieces, ["<think>", "</think>"]])


@pytest.mark.parametrize("interval", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "reasoning", "shown"),
    [
        ("<think>\nI see.\nSo.\n</think>\n\nYes.", "I see.\nSo.", "Yes."),
        ("<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("Yes.", "", "Yes."),
        ("Yes <think> no", "", "Yes <think> no"),  # later markers are text
        ("<think>hm", "hm", ""),
        ("<think>hm</think>", "hm", ""),
    ],
)
@pytest.mark.parametrize("drive", [answer, stepped])
def test_reasoning_and_answer_come_apart(tmp_path, text, reasoning, shown, interval, drive):
    with fake_runtime(tmp_path, script(text)) as runtime:
        channel = StreamChannel(interval)
        response = drive(runtime, request("hi", enable_thinking=True, channels=[channel]))
        check_stream(drain(channel), response)
        silent = answer(runtime, request("hi", enable_thinking=True))
    assert (response.reasoning_texts, response.output_texts) == ([reasoning], [shown])
    assert (silent.reasoning_texts, silent.output_texts) == ([reasoning], [shown])
    assert silent.output_ids == response.output_ids


def test_a_prompt_that_opens_reasoning_is_understood(tmp_path):
    with fake_runtime(tmp_path, script("<think>hm</think>Yes.")) as runtime:
        asked = runtime.prepare(request("hi"))
        asked.pre_tokenized_input_ids[0].append(runtime.tokenizer.token_id("<think>"))
        response = answer(runtime, asked)
    assert (response.reasoning_texts, response.output_texts) == (["hm"], ["Yes."])


def test_stop_strings_end_the_answer_and_not_the_reasoning(tmp_path):
    with fake_runtime(tmp_path, script("<think>a. b.</think>Yes. No.")) as runtime:
        response = answer(runtime, request(item("hi", stop_strings=(".",))))
    assert response.finish_reasons == [FinishReason.STOP_WORDS]
    assert (response.reasoning_texts, response.output_texts) == (["a. b."], ["Yes"])


def test_chunks_say_which_part_they_belong_to(tmp_path):
    with fake_runtime(tmp_path, script("<think>ab</think>cd")) as runtime:
        channel = StreamChannel(1000)
        answer(runtime, request("hi", channels=[channel]))
    assert [(chunk.part, chunk.text) for chunk in drain(channel)] == [
        (AnswerPart.REASONING, "ab"),
        (AnswerPart.ANSWER, "cd"),
    ]


_TOKENS = st.lists(st.sampled_from([START, END, TURN, *range(32, 40), 0xC3, 0xA9]), max_size=12)


@given(_TOKENS, st.sampled_from(list(ReasoningState)), st.sampled_from(["", "hermes"]), st.booleans())
def test_reading_as_it_streams_is_reading_at_once(token_ids, state, tool_format, skip):
    rules = AnswerRules(RULES, state, tool_format)
    streamed = AnswerReader(rules, THINKING, skip, ("!",))
    pieces = [piece for token_id in token_ids for piece in streamed.feed(token_id)] + streamed.finish()
    for piece in pieces:
        piece.text.encode("utf-8")
        assert piece.text or piece.tool_call
    parts = [piece.part for piece in pieces]
    assert AnswerPart.REASONING not in parts[parts.index(AnswerPart.ANSWER) :] if AnswerPart.ANSWER in parts else True
    shown, reasoning, calls = split_pieces(pieces)
    assert reasoning == reasoning.strip() and not calls and "!" not in shown
