"""The latch: who is let in, and how a request lets go of it, whatever becomes of it."""

from __future__ import annotations

import copy
import threading

import pytest
from runtime_helpers import answer, drain, fake_runtime, request

from edgellm_ros.errors import BackendError, MisuseError, RefusalCode
from edgellm_ros.runtime.request import (
    FinishReason,
    LLMGenerationResponse,
)
from edgellm_ros.runtime.session import GenerationSession
from edgellm_ros.runtime.streaming import StreamChannel


def test_overlap_leaves_both_responses_alone(runtime):
    prepared = runtime.prepare(request("hi", channels=[StreamChannel()]))
    first = LLMGenerationResponse()
    generation = runtime.rank.begin_generation(prepared, first)
    session = GenerationSession(runtime.rank, generation)
    session.prime_from_prefill()
    first.output_texts.append("what the caller has so far")
    other_channel = StreamChannel()
    second = LLMGenerationResponse(output_texts=["older"])
    kept = copy.deepcopy(second)
    for response in (second, first):
        assert not runtime.rank.handle_request(runtime.prepare(request("x", channels=[other_channel])), response)
        assert runtime.rank.last_refusal.code is RefusalCode.OVERLAP
    assert second == kept and first.output_texts == ["what the caller has so far"]
    assert not other_channel.attached
    while not session.finished():
        session.advance()
    runtime.rank.finish_generation(generation, prepared, first)
    assert first.output_texts[-1] == "Hello there"
    assert answer(runtime, request("hi"))


def test_overlap_from_many_threads_lets_exactly_one_in(runtime):
    barrier = threading.Barrier(8)
    opened = []

    def begin():
        barrier.wait()
        generation = runtime.rank.begin_generation(prepared, LLMGenerationResponse())
        if generation is not None:
            opened.append(generation)

    prepared = runtime.prepare(request("hi"))
    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 1
    opened[0].close()
    opened[0].close()
    assert answer(runtime, request("hi"))


def test_dropping_a_request_at_any_point_ends_its_channel_once(runtime):
    for steps in (None, 0, 1, 5):
        channel = StreamChannel()
        generation = runtime.rank.begin_generation(
            runtime.prepare(request("hi", channels=[channel])), LLMGenerationResponse()
        )
        if steps is not None:
            session = GenerationSession(runtime.rank, generation)
            session.prime_from_prefill()
            for _ in range(steps):
                session.advance()
        generation.close()
        chunks = drain(channel)
        assert [chunk.finished for chunk in chunks].count(True) == 1 and chunks[-1].finished
        assert chunks[-1].finish_reason is FinishReason.ERROR
        assert "Hello there".startswith("".join(chunk.text for chunk in chunks))


def test_closing_a_request_again_leaves_the_next_one_alone(runtime):
    first = runtime.rank.begin_generation(runtime.prepare(request("hi")), LLMGenerationResponse())
    first.close()
    second = runtime.rank.begin_generation(runtime.prepare(request("hi")), LLMGenerationResponse())
    first.close()
    assert runtime.rank.open_context is second.context and second.context.sequences
    assert runtime.rank.begin_generation(runtime.prepare(request("hi")), LLMGenerationResponse()) is None
    second.close()


def test_an_exception_of_the_caller_closes_the_request(runtime):
    channel = StreamChannel()

    def hook(boundary):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        runtime.handle_request(request("hi", channels=[channel]), LLMGenerationResponse(), boundary_hook=hook)
    assert drain(channel)[-1].finished
    assert answer(runtime, request("hi"))


@pytest.mark.parametrize("calls_that_work", range(8))
def test_a_lost_rank_ends_the_request(runtime, calls_that_work):
    prepared = runtime.prepare(request("hi", channels=[channel := StreamChannel()]))
    calls = []
    assert not runtime.rank.handle_request(
        prepared, LLMGenerationResponse(), parallel_rank=0,
        token_broadcast=lambda values: calls.append(list(values)) or len(calls) <= calls_that_work,
    )  # fmt: skip
    assert runtime.rank.last_refusal.code is RefusalCode.ENGINE_FAILED
    assert len(calls) == calls_that_work + 1  # nothing is sampled or told after it
    chunks = drain(channel)
    assert [chunk.finished for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert answer(runtime, request("hi"))


def test_no_warm_up_while_a_request_is_open(runtime):
    runtime.warm_up()
    with runtime.rank.begin_generation(runtime.prepare(request("hi")), LLMGenerationResponse()):
        with pytest.raises(MisuseError, match="open request"):
            runtime.warm_up()
        with pytest.raises(MisuseError, match="open request"):
            runtime.rank.capture_decoding_cuda_graph()
    assert runtime.rank.capture_decoding_cuda_graph()
    assert answer(runtime, request("hi")).output_texts == ["Hello there"]


def test_steps_that_cannot_be_recorded_run_all_the_same(runtime, monkeypatch):
    def broken(*arguments):
        raise BackendError("nothing can be recorded.")

    with monkeypatch.context() as patch:
        patch.setattr(runtime.rank.executor, "decode", broken)
        assert runtime.rank.capture_decoding_cuda_graph() is False
    assert answer(runtime, request("hi")).output_texts == ["Hello there"]


def test_a_closed_runtime_says_so(tmp_path):
    closed = fake_runtime(tmp_path / "engine")
    channel = StreamChannel()
    closed.rank.begin_generation(closed.prepare(request("hi", channels=[channel])), LLMGenerationResponse())
    closed.close()
    closed.close()
    assert drain(channel)[-1].finished
    with pytest.raises(MisuseError, match="closed"):
        closed.handle_request(request("hi"), LLMGenerationResponse())
