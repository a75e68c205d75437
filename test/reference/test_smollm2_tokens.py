"""SmolLM2 in float32 answers token for token as transformers does on the weights dequantised from the same GGUF."""

from __future__ import annotations

import numpy as np
import pytest
from reference_files import read

from benchmarks.peers.gguf_llama import smollm2_gguf
from edgellm_ros.builder.build import build_engine
from edgellm_ros.engine_format import BuilderLimits
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.request import (
    FinishReason,
    LLMGenerationRequest,
    LLMGenerationResponse,
    Message,
    Request,
    SamplingParameters,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REFERENCE = read("smollm2_tokens.json")
PROMPTS = REFERENCE["prompts"]
TOKENS = REFERENCE["tokens"]
BATCH = 4


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    engine = build_engine(
        smollm2_gguf(),
        tmp_path_factory.mktemp("smollm2") / "fp32",
        precision="fp32",
        limits=BuilderLimits(BATCH, 512, 512),
    )
    runtime = LLMInferenceRuntime(engine, backend="onnxruntime")
    yield runtime
    runtime.close()


def request(rows: list[dict], *, by_ids: bool, num_logprobs: int = 0) -> LLMGenerationRequest:
    """The reference's prompts, as ids or as messages that the runtime renders and tokenises."""
    return LLMGenerationRequest(
        requests=[
            Request(messages=() if by_ids else tuple(Message(**turn) for turn in row["messages"]), ignore_eos=True)
            for row in rows
        ],
        sampling=SamplingParameters(temperature=0.0),
        max_generate_length=TOKENS,
        num_logprobs=num_logprobs,
        pre_tokenized_input_ids=[row["input_ids"] for row in rows] if by_ids else [],
    )


def answers(runtime: LLMInferenceRuntime, wanted: LLMGenerationRequest) -> LLMGenerationResponse:
    response = LLMGenerationResponse()
    assert runtime.handle_request(wanted, response), runtime.last_refusal
    assert set(response.finish_reasons) == {FinishReason.LENGTH}
    return response


@pytest.mark.parametrize("index", range(len(PROMPTS)), ids=lambda index: f"prompt {index}")
def test_one_at_a_time(runtime, index):
    row = PROMPTS[index]
    response = answers(runtime, request([row], by_ids=True, num_logprobs=10))
    assert response.output_ids == [row["output_ids"]]
    for recorded in row["logits"]:
        found = {entry.token_id: entry.logprob for entry in response.logprobs[0][recorded["step"]]}
        best, *others = recorded["top_ids"][:8]
        distances = [found[best] - found[other] for other in others]
        wanted = [recorded["top_logits"][0] - logit for logit in recorded["top_logits"][1:8]]
        np.testing.assert_allclose(distances, wanted, atol=2e-3, rtol=0)


@pytest.mark.parametrize("first", range(0, len(PROMPTS), BATCH), ids=lambda first: f"prompts from {first}")
def test_as_a_ragged_batch_of_conversations(runtime, first):
    rows = PROMPTS[first : first + BATCH]
    response = answers(runtime, request(rows, by_ids=False))
    assert response.input_token_counts == [len(row["input_ids"]) for row in rows]
    assert response.output_ids == [row["output_ids"] for row in rows]


def test_reference_has_no_near_ties():
    """Float32 sums differ by about 1e-4 between libraries; a closer call would make equality a matter of luck."""
    assert len(PROMPTS) == 8
    assert all(len(row["output_ids"]) == TOKENS == 64 for row in PROMPTS)
    assert min(row["smallest_top2_gap"] for row in PROMPTS) > 1e-3
