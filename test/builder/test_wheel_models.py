"""Models that come as wheels, from the package to an answer."""

from __future__ import annotations

import pytest

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.wheel_models import WHEEL_MODELS
from edgellm_ros.engine_format import BuilderLimits, open_engine_directory
from edgellm_ros.errors import MissingPackageError
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.request import (
    LLMGenerationRequest,
    LLMGenerationResponse,
    Message,
    Request,
    SamplingParameters,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LIMITS = BuilderLimits(1, 256, 512)


@pytest.fixture
def engine(request, tmp_path):
    """The int8 engine of the model of that name."""
    name = request.param
    try:
        WHEEL_MODELS[name].files()
    except MissingPackageError:
        pytest.skip(f"could not import '{WHEEL_MODELS[name].packages[0].replace('-', '_')}'")
    return build_engine(name, tmp_path / name, precision="int8", limits=LIMITS)


def answer(path, *, prompt="", text="", tokens=24):
    """What the model says to a prompt, or how it goes on with a text."""
    runtime = LLMInferenceRuntime(path)
    try:
        ids = [runtime.tokenizer.encode(text, add_special_tokens=True)] if text else []
        response = LLMGenerationResponse()
        request = LLMGenerationRequest(
            [Request(messages=() if text else (Message("user", prompt),))],
            sampling=SamplingParameters(temperature=0.0),
            max_generate_length=tokens,
            pre_tokenized_input_ids=ids,
        )
        assert runtime.handle_request(request, response), runtime.last_refusal
        return response.output_texts[0]
    finally:
        runtime.close()


@pytest.mark.parametrize("engine", ["smollm2"], indirect=True)
def test_smollm2_answers_a_question(engine):
    found = answer(engine, prompt="Why is the sky blue?", tokens=64)
    assert "sky" in found
    assert "scatter" in found
    assert open_engine_directory(engine).manifest.licence == "apache-2.0"


@pytest.mark.parametrize("engine", ["gemma3-270m"], indirect=True)
def test_gemma_goes_on_with_a_text(engine):
    assert "Paris" in answer(engine, text="The capital of France is the city of")
    assert "Berlin" in answer(engine, text="France: Paris. Italy: Rome. Germany:", tokens=4)
    config = open_engine_directory(engine).config
    assert config.extra["family"] == "gemma3"
    assert set(config.rope) == {"full", "sliding"}
