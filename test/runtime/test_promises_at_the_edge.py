"""Promises of docs/runtime-rules.md that show only at an edge: one token more, one fault later, one caller too many."""

from __future__ import annotations

import sys
import threading

import pytest
from runtime_helpers import answer, fake_runtime, item, outcome, request, stepped
from tokenizers_for_tests import CHATML_TOKENS, byte_level

from edgellm_ros.backends.fake import FakeMode, FakeScript
from edgellm_ros.errors import EdgeLLMError, RequestError
from edgellm_ros.runtime.boundary import AdmitDecision
from edgellm_ros.runtime.context_cache import ContextCacheConfig
from edgellm_ros.runtime.guide_grammar import Guide
from edgellm_ros.runtime.guided import GuideCompiler
from edgellm_ros.runtime.reasoning import ReasoningRules, ReasoningState
from edgellm_ros.runtime.request import FinishReason, LLMGenerationRequest, LLMGenerationResponse, Request
from edgellm_ros.runtime.scheduler import RequestEngine, RequestEngineConfig, ShutdownMode
from edgellm_ros.runtime.streaming import StreamChannel
from edgellm_ros.runtime.tokenizer import Tokenizer

SEEDED = FakeScript(mode=FakeMode.SEEDED)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    with fake_runtime(tmp_path_factory.mktemp("fake") / "engine", FakeScript(answers=["abcdefgh"])) as made:
        yield made


@pytest.fixture
def cached(tmp_path):
    with fake_runtime(tmp_path / "engine", SEEDED, context_cache=ContextCacheConfig()) as made:
        yield made


def test_a_response_that_is_given_again_holds_the_last_request_alone(runtime):
    response = LLMGenerationResponse()
    for text in ("one", "two"):
        assert runtime.handle_request(request(text), response)
        assert response.output_texts == ["abcdefgh"]
    unprepared = request("three")
    assert runtime.rank.begin_generation(unprepared, response) is None
    assert response == LLMGenerationResponse()


def test_an_index_is_in_use_while_its_result_waits_to_be_taken(runtime):
    """The row is free again, and still nobody may come under its index: one of the two results would be lost."""
    arriving = runtime.prepare(request("late", max_generate_length=1))
    seen = []

    def before_step(session, step):
        if step == 0:
            assert session.admit_request(arriving, 5, 50) is AdmitDecision.ADMITTED
        elif session.resident_count() == 1 and not seen:
            with pytest.raises(RequestError, match="index 5"):
                session.admit_request(runtime.prepare(request("later")), 5, 51)
            seen.append(session.take_completed_at_or_above(5)[5])
            assert session.admit_request(runtime.prepare(request("later")), 5, 51) is AdmitDecision.ADMITTED

    response = stepped(runtime, request("first"), before_step)
    assert len(seen) == 1 and seen[0].request_id == 50
    assert response.output_texts == ["abcdefgh", "abcdefgh"]


@pytest.mark.parametrize("surplus", range(-1, 3))
def test_the_last_token_of_an_answer_is_never_kept(cached, surplus):
    """Its keys and values are not in the cache: a block that ends with it is not whole."""
    length = 16 + (32 - 20) + surplus  # 20 ids of prompt: with no surplus the history fills three blocks exactly
    asked = LLMGenerationRequest(
        (Request(ignore_eos=True),), max_generate_length=length, pre_tokenized_input_ids=[list(range(65, 85))]
    )
    response = answer(cached, asked)
    history = 20 + len(response.output_ids[0])
    assert history == 48 + surplus
    assert cached.rank.get_context_cache_metrics().published_tokens == (history - 1) // 16 * 16


@pytest.mark.parametrize("step", [17, 34])
def test_a_cancelled_answer_of_several_blocks_is_not_kept(cached, step):
    channel = StreamChannel()

    def cancel(session, index):
        if index == step:
            channel.cancel()

    asked = request(item("open", ignore_eos=True), channels=[channel], max_generate_length=60)
    response = stepped(cached, asked, cancel)
    assert response.finish_reasons == [FinishReason.CANCELLED] and len(response.output_ids[0]) > step
    kept = cached.rank.get_context_cache_metrics().published_tokens
    assert kept == response.input_token_counts[0] // 16 * 16


@pytest.mark.parametrize("thinks", [False, True])
def test_no_end_is_allowed_while_a_guided_answer_is_still_reasoned_about(thinks):
    tokenizer = Tokenizer(byte_level([*CHATML_TOKENS, "<think>", "</think>"]))
    end, start, stop = map(tokenizer.token_id, ("<|im_end|>", "<think>", "</think>"))
    compiler = GuideCompiler(tokenizer, tokenizer.vocab_size, (end,), ReasoningRules(tokenizer))
    guide = compiler.start(Guide.choice("a"), (start,), thinks)

    def allowed(mask, token):
        return bool(mask[token // 32] >> (token % 32) & 1)

    mask = guide.take_mask()
    assert not allowed(mask, end) and allowed(mask, stop) and allowed(mask, tokenizer.token_id("z"))
    assert guide.accept(stop)
    mask = guide.take_mask()
    assert allowed(mask, tokenizer.token_id("a")) and not allowed(mask, tokenizer.token_id("z"))


@pytest.mark.parametrize("thinks", [False, True])
def test_a_guided_answer_may_open_its_reasoning_where_it_was_asked_to(thinks):
    tokenizer = Tokenizer(byte_level([*CHATML_TOKENS, "<think>", "</think>"]))
    end, start = map(tokenizer.token_id, ("<|im_end|>", "<think>"))
    compiler = GuideCompiler(tokenizer, tokenizer.vocab_size, (end,), ReasoningRules(tokenizer))
    guide = compiler.start(Guide.choice("a"), (tokenizer.token_id("q"),), thinks)
    mask = guide.take_mask()
    assert bool(mask[start // 32] >> (start % 32) & 1) is thinks
    assert bool(mask[tokenizer.token_id("a") // 32] >> (tokenizer.token_id("a") % 32) & 1)


def test_a_marker_behind_the_first_token_opens_no_reasoning():
    tokenizer = Tokenizer(byte_level([*CHATML_TOKENS, "<think>", "</think>"]))
    rules = ReasoningRules(tokenizer)
    state = rules.follow(ReasoningState.UNDECIDED, tokenizer.token_id("a"))
    assert state is ReasoningState.ANSWER
    assert rules.follow(state, tokenizer.token_id("<think>")) is ReasoningState.ANSWER


def test_a_callback_that_raises_ends_its_own_sequence_alone(runtime):
    """Others in the batch have nothing to do with it, whoever drives."""
    everybody = threading.Event()

    def failing(token, index, step, finished):
        everybody.wait(20)
        if step == 2:
            raise ArithmeticError("the caller's own fault")

    engine = RequestEngine(runtime, RequestEngineConfig(max_batch_size=3))
    try:
        bad = engine.submit(request("bad", on_token_generated=failing))
        good = [engine.submit(request("good")) for _ in range(2)]
        everybody.set()
        response = bad.get(20)
        assert response.finish_reasons == [FinishReason.ERROR]
        assert "on_token_generated" in response.messages[0] and "the caller's own fault" in response.messages[0]
        for handle in good:
            assert outcome(handle.get(20))[1:] == ("abcdefgh", FinishReason.END_ID)
        assert engine.healthy
    finally:
        assert engine.shutdown(timeout=20)


CALLBACKS = {
    "raises": lambda engine: 1 / 0,
    "exits": lambda engine: sys.exit(1),
    "interrupts": lambda engine: (_ for _ in ()).throw(KeyboardInterrupt),
    "waits for another": lambda engine: engine.submit(request("hi")).get(),
    "asks and waits": lambda engine: engine.handle_request(request("hi"), LLMGenerationResponse()),
    "shuts down": lambda engine: engine.shutdown(ShutdownMode.CANCEL, timeout=20),
}


@pytest.mark.parametrize("does", CALLBACKS)
@pytest.mark.parametrize("when", ["token", "end"])
def test_whatever_a_callback_does_nobody_is_left_waiting(runtime, does, when):
    """Nor does anybody else get a worse answer, or another one's end."""
    engine = RequestEngine(runtime, RequestEngineConfig(max_batch_size=3))
    go_on = threading.Event()

    def on_token(token, index, step, finished):
        go_on.wait(20)
        if when == "token" and step == 3:  # the others are there
            CALLBACKS[does](engine)

    try:
        handles = [engine.submit(request("first", on_token_generated=on_token))]
        handles += [engine.submit(request(item("other", max_generate_length=4))) for _ in range(2)]
        for handle in handles if when == "end" else ():
            handle.add_done_callback(lambda handle: CALLBACKS[does](engine))
        go_on.set()
        for handle in handles:
            try:
                response = handle.get(20)
                assert response.finish_reasons[0] is not FinishReason.NOT_FINISHED
                if does != "shuts down" and (when == "end" or handle is not handles[0]):
                    assert response.finish_reasons[0] in (FinishReason.END_ID, FinishReason.LENGTH)
            except EdgeLLMError as error:
                assert does == "shuts down", error
        if does != "shuts down":
            assert engine.healthy and engine.submit(request("third")).get(20).output_texts == ["abcdefgh"]
    finally:
        assert engine.shutdown(timeout=20)
