"""Prefix reuse in whole requests: answers do not change, and less is computed."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from cache_model import audit
from runtime_helpers import answer, drain, fake_runtime, item, outcome, request, stepped

from edgellm_ros.backends.fake import FakeMode, FakeScript, Fault
from edgellm_ros.errors import BackendError, EdgeLLMError, RefusalCode, RequestError
from edgellm_ros.runtime.boundary import AdmitDecision
from edgellm_ros.runtime.cache_policy import CacheCommitPolicy, CacheLookupPolicy
from edgellm_ros.runtime.context_cache import REPLAYED_TOKENS, ContextCacheConfig
from edgellm_ros.runtime.mixed_rows import chunk_end
from edgellm_ros.runtime.rank_runtime import LLMRankRuntime
from edgellm_ros.runtime.request import FinishReason, LLMGenerationResponse, Message, Request, SamplingParameters
from edgellm_ros.runtime.scheduler import RequestEngine, RequestEngineConfig
from edgellm_ros.runtime.streaming import StreamChannel

SYSTEM = "You are the gripper of a small arm. Answer with one move, no more. " * 2
DRAWN = SamplingParameters(temperature=1.1, top_k=30)
SEEDED = FakeScript(mode=FakeMode.SEEDED)


def turn(text: str, *, system: str = SYSTEM, **fields: Any) -> Request:
    return Request((Message("system", system), Message("user", text)), max_generate_length=40, **fields)


@pytest.fixture
def cached(tmp_path):
    with fake_runtime(tmp_path / "cached", SEEDED, context_cache=ContextCacheConfig(), prefill_chunk=32) as runtime:
        yield runtime
        audit(runtime.rank._reuse.context_cache)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    with fake_runtime(tmp_path_factory.mktemp("plain") / "engine", SEEDED, prefill_chunk=32) as runtime:
        yield runtime


def test_a_repeated_prompt_gives_the_same_and_computes_its_end_alone(cached, plain):
    asked = request(turn("open", sampling=DRAWN, sampling_seed=4))
    first, second = answer(cached, asked), answer(cached, asked)
    assert outcome(first) == outcome(second) == outcome(answer(plain, asked))
    assert first.reused_token_counts == [0]
    assert second.reused_token_counts == [first.input_token_counts[0] - REPLAYED_TOKENS]
    metrics = cached.rank.get_prefill_metrics()
    assert metrics.reused_tokens == second.reused_token_counts[0]
    assert metrics.reused_tokens + metrics.computed_tokens == sum(first.input_token_counts + second.input_token_counts)


@pytest.mark.parametrize("most", [4, 16, 24, 64, 256])
def test_the_last_chunk_of_a_prompt_is_not_short(most):
    for length in range(1, 300):
        start, chunks = 0, []
        while start < length:
            end = chunk_end(start, most, length)
            assert start < end <= min(length, start + most)
            chunks.append(end - start)
            start = end
        assert len(chunks) == -(-length // most)  # no more of them than there must be
        assert chunks[-1] >= min(length, 16) or most < 16


def test_without_a_cache_nothing_is_reused_and_there_are_no_counters(plain):
    assert answer(plain, request("hi")).reused_token_counts == [0]
    assert plain.rank.get_context_cache_metrics() is None and not plain.rank.reuses_context


def test_the_next_turn_reuses_the_answer_that_was_generated(tmp_path):
    script = FakeScript(answers=["a first answer that is a good deal longer than one block"])
    with fake_runtime(tmp_path / "engine", script, context_cache=ContextCacheConfig()) as runtime:
        first = answer(runtime, request(turn("open"), context_cache_replay_tail_length=-1))
        history = (*turn("open").messages, Message("assistant", first.output_texts[0]), Message("user", "close"))
        second = answer(runtime, request(Request(history), context_cache_replay_tail_length=-1))
        known = first.input_token_counts[0] + len(first.output_ids[0]) - 1  # the last token is not in the cache
        assert second.reused_token_counts == [known // 16 * 16]


def test_prompt_only_keeps_no_answer(tmp_path):
    script = FakeScript(answers=["a first answer that is a good deal longer than one block"])
    with fake_runtime(tmp_path / "engine", script, context_cache=ContextCacheConfig()) as runtime:
        asked = request(turn("open"), context_cache_commit_policy=CacheCommitPolicy.PREFILL_STATE_ONLY)
        first = answer(runtime, asked)
        history = (*turn("open").messages, Message("assistant", first.output_texts[0]), Message("user", "close"))
        second = answer(runtime, request(Request(history)))
        assert second.reused_token_counts == [first.input_token_counts[0] // 16 * 16]


@pytest.mark.parametrize("per_sequence", [False, True])
def test_a_bypass_reuses_and_keeps_nothing(cached, per_sequence):
    bypass = {"context_cache_lookup_policy": CacheLookupPolicy.BYPASS}
    asked = request(turn("open", **bypass)) if per_sequence else request(turn("open"), **bypass)
    assert [answer(cached, asked).reused_token_counts for _ in range(2)] == [[0], [0]]
    assert cached.rank.get_context_cache_metrics().current_records == 0
    answer(cached, request(turn("open")))
    assert answer(cached, asked).reused_token_counts == [0]


def test_sequences_of_one_batch_share_what_the_first_of_them_ran(cached, plain):
    items = [turn(text, sampling=DRAWN, sampling_seed=seed) for seed, text in enumerate(["a", "bb", "ccc"])]
    together = answer(cached, request(*items))
    shared = together.input_token_counts[0] // 16 * 16 - 16
    assert together.reused_token_counts[0] == 0 and all(n >= shared for n in together.reused_token_counts[1:])
    for index, entry in enumerate(items):
        assert outcome(together, index) == outcome(answer(plain, request(entry)))


@pytest.mark.parametrize("order", range(4))
def test_joiners_hit_the_cache_and_give_what_they_give_alone(cached, plain, order):
    generator = random.Random(order)
    items = [turn("x" * (index + 1), sampling=DRAWN, sampling_seed=index) for index in range(4)]
    steps = {generator.randrange(6) + 6 * place: index for place, index in enumerate(generator.sample([1, 2, 3], 3))}
    results = {}

    def let_join(session, step):
        if step in steps:
            index = steps[step]
            asked = cached.prepare(request(items[index]))
            assert session.admit_request(asked, index, index + 1) is AdmitDecision.ADMITTED
        results.update(session.take_completed_at_or_above(1))

    long = dataclasses.replace(items[0], max_generate_length=60, ignore_eos=True)
    stepped(cached, request(long), let_join)
    assert sorted(results) == [1, 2, 3]
    for index, result in results.items():
        assert result.reused_length >= 96
        assert result.effective_prefill_length + result.reused_length == len(result.raw_input_ids)
        alone = answer(plain, request(items[index]))
        assert (result.output_ids, result.finish_reason) == (alone.output_ids[0], alone.finish_reasons[0])


@pytest.mark.parametrize("step", [0, 1, 5])
def test_a_cancelled_answer_is_not_kept_but_its_prompt_is(cached, step):
    channel = StreamChannel()

    def cancel(session, index):
        if index == step:
            channel.cancel()

    asked = request(turn("open", ignore_eos=True), channels=[channel])
    response = stepped(cached, asked, cancel)
    assert response.finish_reasons == [FinishReason.CANCELLED]
    assert cached.rank.get_context_cache_metrics().published_tokens == response.input_token_counts[0] // 16 * 16


def test_a_prompt_that_was_cancelled_before_its_end_is_not_kept(cached):
    channel = StreamChannel()
    channel.cancel()
    response = answer(cached, request(turn("open"), channels=[channel]))
    assert response.finish_reasons == [FinishReason.CANCELLED] and len(drain(channel)) == 1
    assert cached.rank.get_context_cache_metrics().current_records == 0
    assert cached.rank.get_prefill_metrics().reused_tokens == 0


@pytest.mark.parametrize("fault", [Fault.NAN, Fault.RAISE, Fault.OUT_OF_MEMORY])
def test_what_a_failing_engine_computed_is_not_kept(tmp_path, fault):
    script = FakeScript(mode=FakeMode.SEEDED, fault=fault, fault_step=0)
    with fake_runtime(tmp_path / "engine", script, context_cache=ContextCacheConfig()) as runtime:
        response = answer(runtime, request(turn("open")))
        assert response.finish_reasons == [FinishReason.ERROR]
        assert runtime.rank.get_context_cache_metrics().current_records == 0


def test_a_prefix_after_which_no_token_came_is_forgotten(cached, monkeypatch):
    answer(cached, request(turn("open")))
    executor = cached.rank.executor
    with monkeypatch.context() as patch:
        patch.setattr(executor, "prefill", lambda row, ids, start, **_: (len(ids), -1))
        assert answer(cached, request(turn("close"))).finish_reasons == [FinishReason.ERROR]
    assert cached.rank.get_context_cache_metrics().current_records == 0
    assert answer(cached, request(turn("close"))).finish_reasons != [FinishReason.ERROR]


def _fail(*_: object) -> None:
    raise BackendError("a copy failed.")


def test_a_prefix_that_cannot_be_copied_is_computed_instead(cached, plain, monkeypatch):
    asked = request(turn("open"))
    wanted = outcome(answer(plain, asked))
    answer(cached, asked)
    monkeypatch.setattr(cached.rank.executor.cache, "import_block", _fail)
    response = answer(cached, asked)
    assert outcome(response) == wanted and response.reused_token_counts == [0]
    assert cached.rank.get_context_cache_metrics().forced_cold_sequences == 1
    assert answer(cached, asked).reused_token_counts == [0]


def test_an_answer_that_cannot_be_kept_is_given_all_the_same(cached, plain, monkeypatch):
    monkeypatch.setattr(cached.rank.executor.cache, "export_block", _fail)
    asked = request(turn("open"))
    assert outcome(answer(cached, asked)) == outcome(answer(plain, asked))
    counts = cached.rank.get_context_cache_metrics()
    assert (counts.current_records, counts.failed_copies, counts.poisoned) == (0, 2, False)


@pytest.mark.parametrize("stepwise", [False, True], ids=["founder", "joiner"])
def test_a_poisoned_cache_ends_the_sequence_and_refuses_later_ones(cached, monkeypatch, stepwise):
    answer(cached, request(turn("open")))
    results = {}

    def poison() -> None:
        monkeypatch.setattr(cached.rank.executor.cache, "import_block", _fail)
        monkeypatch.setattr(cached.rank._reuse.context_cache, "_synchronize", _fail)

    def let_join(session, step):
        if step == 1:
            poison()
            session.admit_request(cached.prepare(request(turn("close"))), 1, 2)
        if step == 4:
            with pytest.raises(RequestError, match="load the engine again"):
                session.admit_request(cached.prepare(request(turn("close"))), 2, 3)
        results.update(session.take_completed_at_or_above(1))

    if stepwise:
        founder = dataclasses.replace(turn("x", system="short"), ignore_eos=True)
        response = stepped(cached, request(founder), let_join)
        assert response.finish_reasons == [FinishReason.LENGTH]
        assert results[1].finish_reason is FinishReason.ERROR and "load the engine again" in results[1].refusal.message
    else:
        poison()
        response = answer(cached, request(turn("close")))
        assert response.finish_reasons == [FinishReason.ERROR] and "load the engine again" in response.messages[0]
    assert not cached.handle_request(request(turn("move")), LLMGenerationResponse())
    assert cached.last_refusal.code is RefusalCode.ENGINE_FAILED
    assert cached.rank.get_context_cache_metrics().poisoned


def test_a_scheduler_hits_the_cache_and_says_how_much(cached, plain):
    asked = [request(turn(text, sampling=DRAWN, sampling_seed=3)) for text in ("a", "b", "c", "d")]
    engine = RequestEngine(cached, RequestEngineConfig(max_batch_size=3))
    handles = [engine.submit(entry) for entry in asked]
    responses = [handle.get(20) for handle in handles]
    assert engine.shutdown(timeout=20)
    assert sum(response.reused_token_counts[0] > 0 for response in responses) == 3
    for entry, response in zip(asked, responses, strict=True):
        assert outcome(response) == outcome(answer(plain, entry))


@pytest.mark.parametrize(
    ("fields", "options", "word"),
    [
        ({"save_system_prompt_kv_cache": True}, {}, "save_system_prompt_kv_cache"),
        ({}, {"token_broadcast": lambda ids: True}, "token_broadcast"),
    ],
    ids=["system prompt store", "several ranks"],
)
def test_what_does_not_go_with_the_cache_is_refused(cached, fields, options, word):
    prepared = cached.prepare(request(turn("open"), **fields))
    assert cached.rank.begin_generation(prepared, LLMGenerationResponse(), **options) is None
    assert cached.rank.last_refusal.code is RefusalCode.UNSUPPORTED and word in cached.rank.last_refusal.message
    assert answer(cached, request(turn("open"))).finish_reasons


def test_policies_of_the_wrong_kind_are_refused(plain):
    with pytest.raises(RequestError, match=r"context_cache_lookup_policy.*BYPASS"):
        request("hi", context_cache_lookup_policy="bypass")
    with pytest.raises(RequestError, match="context_cache_lookup_policy"):
        item("hi", context_cache_lookup_policy=1)
    with pytest.raises(RequestError, match="context_cache_commit_policy"):
        request("hi", context_cache_commit_policy=None)
    with pytest.raises(RequestError, match="replay_tail"):
        request("hi", context_cache_replay_tail_length=-2)
    with pytest.raises(EdgeLLMError, match="ContextCacheConfig"):
        LLMRankRuntime(plain.rank.directory.path, context_cache={"enabled": True})


def test_warming_up_and_recording_leave_the_cache_alone(cached):
    answer(cached, request(turn("open")))
    records = cached.rank.get_context_cache_metrics().current_records
    cached.warm_up()
    cached.rank.capture_decoding_cuda_graph()
    assert cached.rank.get_context_cache_metrics().current_records == records
    assert answer(cached, request(turn("open"))).reused_token_counts[0] > 0
