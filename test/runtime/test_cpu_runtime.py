"""The whole runtime on the CPU backend, with small random Llamas."""

from __future__ import annotations

import random

import numpy as np
import pytest
from reference_llama import ReferenceLlama, read_folder
from runtime_helpers import WAIT, answer, check_stream, drain, item, outcome, request, stepped

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import write_random_llama_checkpoint
from edgellm_ros.engine_format import BuilderLimits
from edgellm_ros.runtime.boundary import AdmitDecision
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.request import FinishReason, LLMGenerationRequest, Request, SamplingParameters
from edgellm_ros.runtime.scheduler import RequestEngine, RequestEngineConfig
from edgellm_ros.runtime.streaming import StreamChannel

LIMITS = BuilderLimits(max_batch_size=4, max_input_len=64, max_kv_cache_capacity=96)
DRAWN = SamplingParameters(temperature=0.9, top_k=50, top_p=0.95)
PENALISED = SamplingParameters(temperature=0.8, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2)
SOME = [
    item("pick up the cube", sampling=DRAWN, sampling_seed=1, max_generate_length=9, ignore_eos=True),
    item("go home", sampling=PENALISED, sampling_seed=2, max_generate_length=30, ignore_eos=True),
    item("x", max_generate_length=4, ignore_eos=True),
    item("what do you see?", sampling=DRAWN, sampling_seed=3, max_generate_length=20, logit_bias={70: 3.0}),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    checkpoint = write_random_llama_checkpoint(folder / "checkpoint", seed=5, num_hidden_layers=3)
    return build_engine(checkpoint, folder / "engine", limits=LIMITS), checkpoint


@pytest.fixture(scope="module")
def runtime(made):
    with LLMInferenceRuntime(made[0], threads=1) as opened:
        opened.warm_up()
        yield opened


@pytest.fixture(scope="module")
def alone(runtime):
    return [outcome(answer(runtime, request(entry))) for entry in SOME]


def prompt(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, 300, count).tolist()


def test_greedy_ids_equal_those_of_an_independent_forward_pass(runtime, made):
    reference = ReferenceLlama(*read_folder(made[1]))
    ids = prompt(21)
    asked = LLMGenerationRequest(
        (Request(ignore_eos=True),), sampling=SamplingParameters(temperature=0), max_generate_length=12,
        pre_tokenized_input_ids=[ids], num_logprobs=2,
    )  # fmt: skip
    response = answer(runtime, asked)
    history = list(ids)
    for token, candidates in zip(response.output_ids[0], response.logprobs[0], strict=True):
        logits = np.asarray(reference.logits(history)[-1], dtype=np.float64)
        assert token == int(logits.argmax())
        expected = logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        assert candidates[0].logprob == pytest.approx(expected, abs=1e-3)
        history.append(token)


@pytest.mark.parametrize("chunk", [1, 3, 16, 17, 64])
def test_the_chunk_length_of_prompts_changes_nothing(made, runtime, chunk):
    asked = LLMGenerationRequest(
        (Request(ignore_eos=True),), sampling=DRAWN, max_generate_length=8, pre_tokenized_input_ids=[prompt(43)]
    )
    with LLMInferenceRuntime(made[0], threads=1, prefill_chunk=chunk) as other:
        assert outcome(answer(other, asked)) == outcome(answer(runtime, asked))


def test_a_batch_gives_what_each_sequence_gives_alone(runtime, alone):
    """Rows leave at different steps, so the last row fills holes on the way."""
    channels = [StreamChannel() for _ in SOME]
    response = answer(runtime, request(*SOME, channels=channels))
    assert [outcome(response, index) for index in range(4)] == alone
    for index, channel in enumerate(channels):
        check_stream(drain(channel), response, index)


@pytest.mark.parametrize("order", range(4))
def test_joiners_give_what_they_give_alone(runtime, alone, order):
    generator = random.Random(order)
    steps = {arrival: generator.randrange(6) for arrival in (0, 2, 3)}
    results = {}

    def before_step(session, index):
        for arrival, step in steps.items():
            if step == index:
                decision = session.admit_request(runtime.prepare(request(SOME[arrival])), 10 + arrival, 100 + arrival)
                assert decision is AdmitDecision.ADMITTED
        for taken, result in session.take_completed_at_or_above(10).items():
            results[taken - 10] = outcome(session.materialize_result(result))

    founder = stepped(runtime, request(SOME[1]), before_step)
    assert outcome(founder) == alone[1]
    for taken, found in results.items():
        assert found == alone[taken]
    assert len(results) >= 2


def test_a_cancelled_neighbour_changes_nothing(runtime, alone):
    channels = [StreamChannel(), None, None, None]

    def before_step(session, index):
        if index == 2:
            channels[0].cancel()

    response = stepped(runtime, request(*SOME, channels=channels), before_step)
    assert response.finish_reasons[0] is FinishReason.CANCELLED
    assert [outcome(response, index) for index in (1, 2, 3)] == alone[1:]


def test_scheduled_requests_give_what_they_give_alone(runtime, alone):
    engine = RequestEngine(runtime, RequestEngineConfig(max_batch_size=4, step_timeout=30))
    try:
        handles = [engine.submit(request(SOME[index % 4])) for index in range(12)]
        assert [outcome(handle.get(WAIT)) for handle in handles] == alone * 3
    finally:
        assert engine.shutdown(timeout=WAIT)


def test_the_cache_is_filled_to_its_end(runtime):
    asked = LLMGenerationRequest(
        (Request(ignore_eos=True),), sampling=SamplingParameters(temperature=0), max_generate_length=500,
        pre_tokenized_input_ids=[prompt(64)],
    )  # fmt: skip
    response = answer(runtime, asked)
    assert len(response.output_ids[0]) == 96 - 64 - 1 and response.finish_reasons == [FinishReason.LENGTH]


def test_a_prompt_that_fills_the_cache_but_for_one_token(tmp_path, made):
    limits = BuilderLimits(max_batch_size=2, max_input_len=20, max_kv_cache_capacity=20)
    engine = build_engine(made[1], tmp_path / "engine", limits=limits)
    asked = LLMGenerationRequest(
        (Request(ignore_eos=True), Request(ignore_eos=True)), sampling=SamplingParameters(temperature=0),
        max_generate_length=9, pre_tokenized_input_ids=[prompt(18), prompt(17)],
    )  # fmt: skip
    with LLMInferenceRuntime(engine, threads=1) as small:
        assert [len(ids) for ids in answer(small, asked).output_ids] == [1, 2]


def test_description_names_what_runs(runtime):
    described = runtime.describe()
    assert described["backend"] == "onnxruntime" and described["max_kv_cache_capacity"] == 96
    assert described["memory"]["caches"] > 0


@pytest.mark.parametrize(
    "extreme",
    [
        {"temperature": 5e-324}, {"temperature": 1e-45}, {"temperature": 1e-6}, {"temperature": 100}, {"top_p": 5e-324},
        {"min_p": 1}, {"min_p": 5e-324}, {"top_k": 1 << 31}, {"repetition_penalty": 0.01}, {"repetition_penalty": 100},
        {"temperature": 1e-6, "repetition_penalty": 0.01, "top_p": 5e-324, "min_p": 1, "presence_penalty": -2},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_the_ends_of_every_range_can_be_drawn_with(runtime, extreme):
    """A number that 32 bits do not hold would look like an engine that fails."""
    asked = request(
        item("hi", sampling=SamplingParameters(**{"temperature": 1.0, **extreme}), ignore_eos=True),
        max_generate_length=5, num_logprobs=3,
    )  # fmt: skip
    response = answer(runtime, asked)
    assert response.finish_reasons == [FinishReason.LENGTH]
    assert all(entry.logprob <= 0 for row in response.logprobs[0] for entry in row)
