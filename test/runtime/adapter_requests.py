"""A small engine with room for adapters, requests for them, and the answers of merged weights."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from adapters_for_tests import merged
from family_engines import LIMITS, ROWS, checkpoint
from reference_decoder import ReferenceDecoder
from reference_llama import read_folder

from edgellm_ros.builder.adapters import AdapterLimits
from edgellm_ros.builder.build import build_engine
from edgellm_ros.runtime.request import (
    LLMGenerationRequest,
    LLMGenerationResponse,
    Request,
    SamplingParameters,
)

RANK, SLOTS, STEPS = 4, 2, 6


def attention(module: str) -> bool:
    return module.endswith(("q_proj", "v_proj"))


def greedy(reference: ReferenceDecoder, prompt: list[int], steps: int) -> list[int]:
    ids = list(prompt)
    for _ in range(steps):
        ids.append(int(reference.logits(ids)[-1].argmax()))
    return ids[len(prompt) :]


@cache
def engine(folder: Path) -> Path:
    return build_engine(checkpoint("llama"), folder / "engine", limits=LIMITS, lora=AdapterLimits(RANK, SLOTS))


def asked(*names: str, prompt=ROWS[0], **fields) -> LLMGenerationRequest:
    fields = {"max_generate_length": STEPS, "sampling": SamplingParameters(temperature=0), **fields}
    return LLMGenerationRequest(
        [Request(lora_weights_name=name, ignore_eos=True) for name in names],
        pre_tokenized_input_ids=[list(prompt) for _ in names],
        **fields,
    )


def ids(runtime, request, **options) -> list[list[int]]:
    response = LLMGenerationResponse()
    assert runtime.handle_request(request, response, **options), runtime.last_refusal
    return response.output_ids


@cache
def expected(folder: Path, name: str) -> list[int]:
    config, tensors = read_folder(checkpoint("llama"))
    weights = merged(tensors, folder / name) if name else tensors
    return greedy(ReferenceDecoder(config, weights), ROWS[0], STEPS)
