"""SmolLM2 built for TensorRT answers token for token as transformers does, run by ONNX Runtime."""

from __future__ import annotations

import pytest
from reference_files import read

from benchmarks.peers.gguf_llama import smollm2_gguf
from edgellm_ros.builder.build import build_engine
from edgellm_ros.engine_format import BuilderLimits
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.request import LLMGenerationRequest, LLMGenerationResponse, Request, SamplingParameters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TOKENS = 24
PROMPTS = 4


@pytest.mark.parametrize("lowering", ["tensorrt", "tensorrt_legacy"])
def test_a_batch_of_chat_prompts_equals_transformers(lowering, tmp_path):
    rows = read("smollm2_tokens.json")["prompts"][:PROMPTS]
    limits = BuilderLimits(PROMPTS, 128, 256)
    engine = build_engine(smollm2_gguf(), tmp_path / "engine", lowering=lowering, limits=limits)
    runtime = LLMInferenceRuntime(engine, backend="onnxruntime", prefill_chunk=16)
    request = LLMGenerationRequest(
        requests=[Request(ignore_eos=True) for _ in rows],
        sampling=SamplingParameters(temperature=0.0),
        max_generate_length=TOKENS,
        pre_tokenized_input_ids=[row["input_ids"] for row in rows],
    )
    response = LLMGenerationResponse()
    assert runtime.handle_request(request, response), runtime.last_refusal
    runtime.close()
    assert response.output_ids == [row["output_ids"][:TOKENS] for row in rows]
