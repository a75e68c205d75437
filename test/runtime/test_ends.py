"""How a sequence ends: budgets, deadlines, end ids and stop strings."""

from __future__ import annotations

import threading

import pytest
from runtime_helpers import answer, check_stream, drain, fake_runtime, request
from tokenizers_for_tests import CHATML_TOKENS, byte_level

from edgellm_ros.backends.fake import FakeScript
from edgellm_ros.runtime.boundary import SlotSeed
from edgellm_ros.runtime.request import (
    FinishReason,
    LLMGenerationRequest,
    Request,
)
from edgellm_ros.runtime.sequence import EndRules, Sequence
from edgellm_ros.runtime.streaming import StreamChannel
from edgellm_ros.runtime.tokenizer import Tokenizer


def test_a_failure_behind_the_end_changes_nothing(runtime):
    """The first reason stays: the callback of the last token comes after it."""

    def on_token(token, index, step, finished):
        if finished:
            raise ArithmeticError

    response = answer(runtime, request("hi", on_token_generated=on_token))
    assert response.finish_reasons == [FinishReason.END_ID] and response.messages == [""]


def test_budgets_are_per_sequence(runtime):
    """A long prompt shortens its own answer and nobody else's."""
    asked = LLMGenerationRequest(
        (Request(ignore_eos=True), Request(ignore_eos=True)),
        pre_tokenized_input_ids=[[65] * 48, [65] * 5],
        max_generate_length=30,
    )
    response = answer(runtime, asked)
    assert [len(row) for row in response.output_ids] == [11, 30]


def test_a_deadline_ends_with_what_was_produced(tmp_path):
    script = FakeScript(answers=["abcdefghijklmnopqrstuvwxyz"], step_latency=0.02)
    with fake_runtime(tmp_path / "engine", script) as runtime:
        channel = StreamChannel()
        response = answer(runtime, request("hi", channels=[channel], deadline=0.2))
        check_stream(drain(channel), response)
        assert response.finish_reasons == [FinishReason.DEADLINE]
        assert 0 < len(response.output_ids[0]) < 26
        assert f"0.2 s after {len(response.output_ids[0])} tokens" in response.messages[0]


@pytest.mark.parametrize("how", ["deadline", "cancel"])
def test_long_prompts_end_between_chunks(tmp_path, how):
    script = FakeScript(prefill_latency=0.005)
    with fake_runtime(tmp_path / "engine", script, prefill_chunk=8) as runtime:
        channel = StreamChannel()
        asked = request("x" * 500, channels=[channel], deadline=0.1 if how == "deadline" else 0)
        timer = threading.Timer(0.1, channel.cancel)
        if how == "cancel":
            timer.start()
        response = answer(runtime, asked)
        check_stream(drain(channel), response)
        assert response.finish_reasons == [FinishReason.DEADLINE if how == "deadline" else FinishReason.CANCELLED]
        assert response.output_ids == [[]]
        assert response.times[0].first_token == 0
        computed = runtime.rank.get_prefill_metrics().computed_tokens
        assert 0 < computed < 500 and computed % 8 == 0


@pytest.mark.parametrize(
    ("tokens", "ended_at"),
    [
        (["<think>", "x", "<|endoftext|>", "</think>", "y", "<|endoftext|>"], 5),  # muted while it thinks
        (["<think>", "x", "<|im_end|>"], 2),  # the primary one is never muted
        (["x", "<|endoftext|>"], 1),  # it skipped thinking
    ],
    ids=["muted", "primary", "skipped"],
)
def test_end_tokens_while_thinking(tokens, ended_at):
    tokenizer = Tokenizer(byte_level(CHATML_TOKENS, ["<think>", "</think>"]))
    rules = EndRules([tokenizer.token_id("<|im_end|>"), tokenizer.token_id("<|endoftext|>")], tokenizer)
    sequence = Sequence(SlotSeed((1,), 0, enable_thinking=True), 1, tokenizer, rules, 100)
    for index, token in enumerate(tokens):
        sequence.accept(tokenizer.token_id(token), (), 1.0)
        assert sequence.finished == (index == ended_at)


def test_a_stop_string_overrides_length_but_no_failure():
    tokenizer = Tokenizer(byte_level(CHATML_TOKENS))
    sequence = Sequence(SlotSeed((1,), 0, stop_strings=("b",)), 1, tokenizer, EndRules([], tokenizer), 2)
    for letter in "ab":
        sequence.accept(tokenizer.token_id(letter), (), 1.0)
    assert sequence.finish_reason is FinishReason.STOP_WORDS
    assert sequence.generate_length == 2  # ids are not trimmed
