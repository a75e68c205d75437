"""A chat with SmolLM2 goes on as it would without prefix reuse, and most of each prompt is not computed again."""

from __future__ import annotations

import pytest

from benchmarks.peers.gguf_llama import smollm2_gguf
from edgellm_ros.builder.build import build_engine
from edgellm_ros.engine_format import BuilderLimits
from edgellm_ros.runtime.context_cache import ContextCacheConfig
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.request import (
    LLMGenerationRequest,
    LLMGenerationResponse,
    Message,
    Request,
    SamplingParameters,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SYSTEM = Message("system", "You are the voice of a small robot arm on a table. You answer in short sentences. " * 3)
QUESTIONS = ("Name a colour.", "What is a robot arm?", "List three fruits.")


@pytest.fixture
def runtimes(request, tmp_path):
    """Without and with reuse."""
    limits = BuilderLimits(1, 512, 640)
    engine = build_engine(smollm2_gguf(), tmp_path / "engine", precision=request.param, limits=limits)
    made = [LLMInferenceRuntime(engine, backend="onnxruntime", context_cache=c) for c in (None, ContextCacheConfig())]
    yield made
    for runtime in made:
        runtime.close()


def ask(runtime: LLMInferenceRuntime, *messages: Message, temperature: float = 0.0) -> LLMGenerationResponse:
    request = LLMGenerationRequest(
        requests=[Request(messages)],
        sampling=SamplingParameters(temperature=temperature),
        sampling_seed=3,
        max_generate_length=12,
        context_cache_replay_tail_length=-1,
    )
    response = LLMGenerationResponse()
    assert runtime.handle_request(request, response), runtime.last_refusal
    return response


@pytest.mark.parametrize("runtimes", ["int8"], indirect=True)
def test_questions_after_one_system_prompt_are_answered_alike_and_again(runtimes):
    plain, cached = runtimes
    for question, temperature in zip(QUESTIONS, (0.0, 0.8, 0.0), strict=True):
        messages = (SYSTEM, Message("user", question))
        wanted = ask(plain, *messages, temperature=temperature)
        for _ in range(2):
            assert ask(cached, *messages, temperature=temperature).output_ids == wanted.output_ids


@pytest.mark.parametrize("runtimes", ["fp32"], indirect=True)
def test_a_chat_goes_on_alike(runtimes):
    plain, cached = runtimes
    history = [SYSTEM]
    for turn, question in enumerate(QUESTIONS):
        history.append(Message("user", question))
        wanted, found = ask(plain, *history), ask(cached, *history)
        assert found.output_ids == wanted.output_ids
        if turn:
            assert found.input_token_counts[0] - found.reused_token_counts[0] < 50
        history.append(Message("assistant", found.output_texts[0]))
