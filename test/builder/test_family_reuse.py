"""Every family answers the same with and without prefix reuse, sliding windows among them, on real engines."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from family_engines import checkpoint
from tiny_families import TINY_FAMILIES

from edgellm_ros import LLMGenerationRequest, LLMGenerationResponse, LLMInferenceRuntime, Request, SamplingParameters
from edgellm_ros.builder.build import build_engine
from edgellm_ros.engine_format import BuilderLimits
from edgellm_ros.runtime.boundary import AdmitDecision
from edgellm_ros.runtime.context_cache import ContextCacheConfig
from edgellm_ros.runtime.session import GenerationSession

LIMITS = BuilderLimits(max_batch_size=3, max_input_len=128, max_kv_cache_capacity=160)
SAMPLINGS = {"greedy": SamplingParameters(temperature=0.0), "drawn": SamplingParameters(temperature=1.0, top_p=0.95)}
CASES = [(family, "onnxruntime") for family in TINY_FAMILIES] + [
    ("qwen2-window", "tensorrt_legacy"),
    ("gemma3", "tensorrt"),
]


def tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 290, count).tolist()


A = tokens(75, 1)
PROMPTS = [A, A, A[:48], A[:40] + tokens(25, 2), A[:64] + tokens(33, 3), tokens(40, 4), A[:33]]


@pytest.fixture(scope="module")
def folder():
    with TemporaryDirectory(prefix="edgellm-reuse-") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def engine_of(folder):
    @cache
    def make(family: str, lowering: str) -> Path:
        path = folder / f"{family}-{lowering}"
        return build_engine(checkpoint(family), path, lowering=lowering, precision="fp32", limits=LIMITS)

    return make


def asked(ids: list[int], sampling: SamplingParameters, tokens: int = 20) -> LLMGenerationRequest:
    return LLMGenerationRequest(
        requests=[Request(ignore_eos=True)],
        sampling=sampling,
        sampling_seed=7,
        max_generate_length=tokens,
        num_logprobs=1,
        pre_tokenized_input_ids=[ids],
    )


def run(runtime: LLMInferenceRuntime, request: LLMGenerationRequest) -> LLMGenerationResponse:
    response = LLMGenerationResponse()
    assert runtime.handle_request(request, response), runtime.last_refusal
    return response


def logprobs(response: LLMGenerationResponse) -> list[float]:
    return [candidates[0].logprob for candidates in response.logprobs[0]]


@pytest.mark.parametrize(("family", "lowering"), CASES, ids=["-".join(case) for case in CASES])
def test_answers_are_equal_with_and_without_reuse(engine_of, family, lowering):
    path = engine_of(family, lowering)
    with (
        LLMInferenceRuntime(path, threads=1, prefill_chunk=32) as plain,
        LLMInferenceRuntime(path, threads=1, prefill_chunk=32, context_cache=ContextCacheConfig()) as cached,
    ):
        for sampling in SAMPLINGS.values():
            for ids in PROMPTS:
                wanted, found = run(plain, asked(ids, sampling)), run(cached, asked(ids, sampling))
                assert found.output_ids == wanted.output_ids
                np.testing.assert_allclose(logprobs(found), logprobs(wanted), atol=2e-4)
            # The next turn: what was generated is known too.
            turn = A + run(cached, asked(A, sampling)).output_ids[0] + tokens(9, 5)
            wanted, found = run(plain, asked(turn, sampling)), run(cached, asked(turn, sampling))
            assert found.output_ids == wanted.output_ids and found.reused_token_counts == [80]
        counts = cached.rank.get_context_cache_metrics()
        assert counts.reused_tokens > 600 and counts.failed_copies == counts.collisions == 0


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2-window"])
def test_joiners_on_a_real_engine_are_equal_too(engine_of, family):
    path = engine_of(family, "onnxruntime")
    greedy = SAMPLINGS["greedy"]
    with (
        LLMInferenceRuntime(path, threads=1, prefill_chunk=32) as plain,
        LLMInferenceRuntime(path, threads=1, prefill_chunk=32, context_cache=ContextCacheConfig()) as cached,
    ):
        founder = asked(A, greedy, 40)
        generation = cached.rank.begin_generation(founder, LLMGenerationResponse())
        assert generation is not None
        session = GenerationSession(cached.rank, generation)
        session.prime_from_prefill()
        results, step = {}, 0
        while not session.finished():
            if step in (3, 9):
                index = step // 3
                decision = session.admit_request(asked(PROMPTS[index + 1], greedy, 12), index, index + 1)
                assert decision is AdmitDecision.ADMITTED
            session.advance()
            results.update(session.take_completed_at_or_above(1))
            step += 1
        cached.rank.finish_generation(generation, founder, LLMGenerationResponse())
        for index, result in results.items():
            wanted = run(plain, asked(PROMPTS[index + 1], greedy, 12))
            assert result.output_ids == wanted.output_ids[0] and result.reused_length >= 32
        assert sorted(results) == [1, 3]
