"""Blocking, by hand, through the scheduler, as joiners: whoever drives, every sequence gives the same."""

from __future__ import annotations

import random

import family_engines
import numpy as np
import pytest
from compositions import Composition, play
from runtime_audit import audit
from runtime_helpers import WAIT, answer, check_stream, drain, fake_runtime, item, outcome, request, stepped
from tiny_families import TINY_FAMILIES

from benchmarks.peers.gguf_llama import smollm2_gguf
from edgellm_ros.backends.fake import FakeMode, FakeScript
from edgellm_ros.builder.build import build_engine
from edgellm_ros.engine_format import BuilderLimits
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.request import FinishReason, LLMGenerationResponse, SamplingParameters
from edgellm_ros.runtime.scheduler import RequestEngine, RequestEngineConfig
from edgellm_ros.runtime.streaming import StreamChannel

DRAWN = SamplingParameters(temperature=1.1, top_k=50, top_p=0.95)
PENALISED = SamplingParameters(temperature=0.7, min_p=0.02, repetition_penalty=1.2, frequency_penalty=0.3)
ITEMS = [
    item("go home", sampling=DRAWN, sampling_seed=3, max_generate_length=10, ignore_eos=True),
    item("what is there, on the table?", sampling=PENALISED, sampling_seed=9, max_generate_length=14),
    item("x", max_generate_length=7, stop_strings=("e", "a", "qu"), logit_bias={101: 9.0, 32: -100.0}),
    item("and now", max_generate_length=12, ignore_eos=True),
]
LOGPROBS = 3


def blocking(runtime: LLMInferenceRuntime) -> list[LLMGenerationResponse]:
    channels = [StreamChannel(1 + index) for index in range(len(ITEMS))]
    whole = answer(runtime, request(*ITEMS, num_logprobs=LOGPROBS, channels=channels))
    for index, channel in enumerate(channels):
        check_stream(drain(channel), whole, index)
    return [alone(whole, index) for index in range(len(ITEMS))]


def by_hand(runtime: LLMInferenceRuntime) -> list[LLMGenerationResponse]:
    whole = stepped(runtime, request(*ITEMS, num_logprobs=LOGPROBS))
    return [alone(whole, index) for index in range(len(ITEMS))]


def joining(runtime: LLMInferenceRuntime) -> list[LLMGenerationResponse]:
    found = play(runtime, ITEMS, Composition({0: 0, 1: 2, 2: 3, 3: 5}), num_logprobs=LOGPROBS)
    return [found[index] for index in range(len(ITEMS))]


def scheduled(runtime: LLMInferenceRuntime) -> list[LLMGenerationResponse]:
    engine = RequestEngine(runtime, RequestEngineConfig(max_batch_size=3))
    try:
        channels = [StreamChannel() for _ in ITEMS]
        handles = [
            engine.submit(request(entry, num_logprobs=LOGPROBS), channel)
            for entry, channel in zip(ITEMS, channels, strict=True)
        ]
        responses = [handle.get(WAIT) for handle in handles]
    finally:
        assert engine.shutdown(timeout=WAIT)
    for response, channel in zip(responses, channels, strict=True):
        check_stream(drain(channel), response)
    return responses


MODES = (blocking, by_hand, joining, scheduled)


def alone(response: LLMGenerationResponse, index: int) -> LLMGenerationResponse:
    names = ("output_ids", "output_texts", "logprobs", "finish_reasons", "input_token_counts", "messages")
    return LLMGenerationResponse(**{name: [getattr(response, name)[index]] for name in names})


def check_equal(found: LLMGenerationResponse, wanted: LLMGenerationResponse, tolerance: float) -> None:
    assert outcome(found) == outcome(wanted)
    assert found.input_token_counts == wanted.input_token_counts and found.messages == wanted.messages
    for one, other in zip(found.logprobs[0], wanted.logprobs[0], strict=True):
        assert one[0].token_id == other[0].token_id
        np.testing.assert_allclose([entry.logprob for entry in one], [entry.logprob for entry in other], atol=tolerance)


def check_modes(runtime: LLMInferenceRuntime, tolerance: float) -> None:
    single = [answer(runtime, request(entry, num_logprobs=LOGPROBS)) for entry in ITEMS]
    for mode in MODES:
        for found, wanted in zip(mode(runtime), single, strict=True):
            check_equal(found, wanted, tolerance)


def check_compositions(runtime: LLMInferenceRuntime, count: int) -> None:
    """Random meetings in one batch, with one sequence cancelled."""
    wanted = [outcome(answer(runtime, request(entry))) for entry in ITEMS]
    for seed in range(count):
        generator = random.Random(seed)
        arrivals = {index: generator.randrange(6) for index in range(len(ITEMS))}
        cancelled, step = generator.randrange(len(ITEMS)), generator.randrange(1, 12)
        for index, response in play(runtime, ITEMS, Composition(arrivals, {cancelled: step})).items():
            ids, text, reason = outcome(response)
            if reason is FinishReason.CANCELLED:
                assert index == cancelled and wanted[index][0][: len(ids)] == ids
            else:
                assert (ids, text, reason) == wanted[index], (seed, index)


def test_all_modes_agree_on_the_scripted_engine(tmp_path):
    with fake_runtime(tmp_path / "engine", FakeScript(mode=FakeMode.SEEDED), prefill_chunk=16) as runtime:
        check_modes(runtime, 0.0)
        reasons = {outcome(response)[2] for response in blocking(runtime)}
        assert reasons >= {FinishReason.LENGTH, FinishReason.STOP_WORDS}


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_all_modes_agree_for_every_family(family, tmp_path):
    limits = BuilderLimits(max_batch_size=4, max_input_len=64, max_kv_cache_capacity=80)
    path = build_engine(family_engines.checkpoint(family), tmp_path / "engine", limits=limits)
    with LLMInferenceRuntime(path, threads=1, prefill_chunk=16, join_chunk=8) as runtime:
        check_modes(runtime, 1e-3)
        check_compositions(runtime, 6)


@pytest.mark.slow
def test_all_modes_agree_on_a_real_model(tmp_path):
    limits = BuilderLimits(max_batch_size=4, max_input_len=64, max_kv_cache_capacity=128)
    path = build_engine(smollm2_gguf(), tmp_path / "engine", limits=limits)
    with LLMInferenceRuntime(path, join_chunk=16) as runtime:
        check_modes(runtime, 1e-3)


# -- log probabilities and bias ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seeded(tmp_path_factory):
    with fake_runtime(tmp_path_factory.mktemp("seeded") / "engine", FakeScript(mode=FakeMode.SEEDED)) as runtime:
        yield runtime


@pytest.mark.parametrize("count", [0, 1, 50])
def test_log_probabilities_begin_with_the_chosen_token_and_fall(seeded, count):
    response = answer(seeded, request(*ITEMS, num_logprobs=count))
    for ids, rows in zip(response.output_ids, response.logprobs, strict=True):
        assert len(rows) == (len(ids) if count else 0)
        for token, candidates in zip(ids, rows, strict=False):
            assert candidates[0].token_id == token
            top = [entry.logprob for entry in candidates[1:]]
            assert len(top) == count and top == sorted(top, reverse=True)
            assert np.exp(top).sum() <= 1 + 1e-6
            assert candidates[0].logprob <= top[0] + 1e-6
            assert all(entry.piece == seeded.tokenizer.token_bytes(entry.token_id, False) for entry in candidates)


def test_neighbours_that_ask_for_none_change_no_log_probability(seeded):
    wanted = answer(seeded, request(ITEMS[0], num_logprobs=LOGPROBS)).logprobs[0]
    quiet = seeded.prepare(request(ITEMS[1]))

    def before_step(session, step):
        if step == 1:
            session.admit_request(quiet, 1, 11)

    found = stepped(seeded, request(ITEMS[0], num_logprobs=LOGPROBS), before_step).logprobs[0]
    assert found == wanted


def test_bias_forces_and_forbids_for_its_own_row_alone(seeded):
    free = [outcome(answer(seeded, request(entry))) for entry in ITEMS[:2]]
    common = max(set(free[0][0]), key=free[0][0].count)
    forced = item("go home", sampling=DRAWN, sampling_seed=3, max_generate_length=5, logit_bias={90: 100.0})
    forbidden = item("go home", sampling=DRAWN, sampling_seed=3, max_generate_length=10, ignore_eos=True,
                     logit_bias={common: -100.0})  # fmt: skip
    response = answer(seeded, request(forced, ITEMS[1], forbidden, ITEMS[0]))
    assert response.output_ids[0] == [90] * 5
    assert common not in response.output_ids[2]
    assert outcome(response, 1) == free[1] and outcome(response, 3) == free[0]


# -- cancelling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", range(4))
def test_any_row_may_be_cancelled_before_any_step(seeded, index):
    """Founders and joiners: a prefix of what it would have said, and nothing changes for the others."""
    wanted = [outcome(answer(seeded, request(entry))) for entry in ITEMS]
    for step in range(12):
        arrivals = {0: 0, 1: 0, 2: 1, 3: 3}
        found = play(seeded, ITEMS, Composition(arrivals, {index: step}))
        for other, response in found.items():
            if other != index:
                assert outcome(response) == wanted[other]
        ids, text, reason = outcome(found[index])
        assert wanted[index][0][: len(ids)] == ids and wanted[index][1].startswith(text)
        if reason is not FinishReason.CANCELLED:
            assert (ids, text, reason) == wanted[index]
        elif step > arrivals[index]:
            assert len(ids) <= step - arrivals[index] + 1


def test_the_audit_after_every_test_sees_an_open_request(seeded):
    opened = seeded.rank.begin_generation(seeded.prepare(request("a")), LLMGenerationResponse())
    with opened, pytest.raises(AssertionError, match="left open"):
        audit(seeded.rank)
    audit(seeded.rank)
