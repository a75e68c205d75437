"""A Llama checkpoint of odd shape answers as transformers does, and every part of it counts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from reference_files import HERE, read
from safetensors import safe_open
from safetensors.numpy import save_file

from edgellm_ros.builder.build import build_engine
from edgellm_ros.engine_format import BuilderLimits
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.request import LLMGenerationRequest, LLMGenerationResponse, Request, SamplingParameters

CHECKPOINT = HERE / "tiny_llama"
REFERENCE = read("tiny_llama/reference.json")
VARIANTS = {variant["name"]: variant for variant in REFERENCE["variants"]}
LIMITS = BuilderLimits(4, 128, 256)
COMPARED = 50  # log probabilities a request may ask for
TOLERANCE = 2e-4


def copy_of_checkpoint(folder: Path, rope: dict | None = None) -> Path:
    folder = folder / "checkpoint"
    shutil.copytree(CHECKPOINT, folder)
    if rope is not None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["rope_parameters"] = rope
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def answer(engine: Path, prompts: list[list[int]], tokens: int, **runtime_options: object) -> LLMGenerationResponse:
    runtime = LLMInferenceRuntime(engine, backend="onnxruntime", threads=1, **runtime_options)
    try:
        request = LLMGenerationRequest(
            requests=[Request(ignore_eos=True) for _ in prompts],
            sampling=SamplingParameters(temperature=0.0),
            max_generate_length=tokens,
            num_logprobs=COMPARED,
            pre_tokenized_input_ids=prompts,
        )
        response = LLMGenerationResponse()
        assert runtime.handle_request(request, response), runtime.last_refusal
        return response
    finally:
        runtime.close()


def logprob_error(response: LLMGenerationResponse, index: int, logits: list[float]) -> float:
    """Largest distance of the first answer token's log probabilities to the reference's."""
    values = np.array(logits)
    wanted = values - np.log(np.exp(values - values.max()).sum()) - values.max()
    found = response.logprobs[index][0]
    assert len(found) >= COMPARED
    return max(abs(entry.logprob - wanted[entry.token_id]) for entry in found)


def full_shards(folder: Path) -> dict[str, Path]:
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    return {name: folder / file for name, file in index["weight_map"].items()}


@pytest.mark.parametrize("name", VARIANTS)
def test_answers_equal_those_of_transformers(name, tmp_path):
    variant = VARIANTS[name]
    engine = build_engine(copy_of_checkpoint(tmp_path, variant["rope_parameters"]), tmp_path / "engine", limits=LIMITS)
    rows = variant["answers"]
    response = answer(engine, [row["input_ids"] for row in rows], REFERENCE["tokens"])
    assert response.output_ids == [row["output_ids"] for row in rows]
    assert max(logprob_error(response, index, row["first_logits"]) for index, row in enumerate(rows)) < TOLERANCE


@pytest.mark.parametrize("prefill_chunk", [1, 7, 16, 128])
def test_reading_the_prompt_in_chunks_changes_nothing(prefill_chunk, tmp_path):
    engine = build_engine(CHECKPOINT, tmp_path / "engine", limits=LIMITS)
    rows = VARIANTS["default"]["answers"]
    for row in rows:
        response = answer(engine, [row["input_ids"]], REFERENCE["tokens"], prefill_chunk=prefill_chunk)
        assert response.output_ids == [row["output_ids"]]
        assert logprob_error(response, 0, row["first_logits"]) < TOLERANCE


def test_int8_weights_stay_near_the_reference(tmp_path):
    engine = build_engine(CHECKPOINT, tmp_path / "engine", precision="int8", limits=LIMITS)
    rows = VARIANTS["default"]["answers"]
    response = answer(engine, [row["input_ids"] for row in rows], 1)
    worst = max(logprob_error(response, index, row["first_logits"]) for index, row in enumerate(rows))
    assert TOLERANCE < worst < 1.0  # quantised indeed, and no more than that


def test_unscaled_rotary_positions_would_be_noticed(tmp_path):
    engine = build_engine(CHECKPOINT, tmp_path / "engine", limits=LIMITS)
    prompts = [row["input_ids"] for row in VARIANTS["default"]["answers"]]
    response = answer(engine, prompts, 1)
    for name in ("linear", "llama3", "yarn"):
        rows = VARIANTS[name]["answers"]
        assert max(logprob_error(response, index, row["first_logits"]) for index, row in enumerate(rows)) > 0.05, name


WEIGHTS = [
    f"model.layers.{layer}.{part}.weight"
    for layer, parts in enumerate(
        (
            ("self_attn.q_proj", "mlp.gate_proj", "input_layernorm"),
            ("self_attn.k_proj", "self_attn.v_proj", "mlp.up_proj"),
            ("self_attn.o_proj", "mlp.down_proj", "post_attention_layernorm"),
        )
    )
    for part in parts
] + ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_wrong_weight_is_noticed(name, tmp_path):
    checkpoint = copy_of_checkpoint(tmp_path)
    scale_tensor(full_shards(checkpoint)[name], name, 0.875)
    engine = build_engine(checkpoint, tmp_path / "engine", limits=LIMITS)
    rows = VARIANTS["default"]["answers"]
    response = answer(engine, [row["input_ids"] for row in rows], 1)
    assert max(logprob_error(response, index, row["first_logits"]) for index, row in enumerate(rows)) > 10 * TOLERANCE


def scale_tensor(shard: Path, name: str, factor: float) -> None:
    """Write a bf16 shard again in float32 with one tensor multiplied."""
    tensors = {}
    content = shard.read_bytes()
    header_size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + header_size])
    for key, entry in header.items():
        if key != "__metadata__":
            start, end = (8 + header_size + offset for offset in entry["data_offsets"])
            halves = np.frombuffer(content[start:end], dtype=np.uint16).astype(np.uint32)
            values = (halves << 16).view(np.float32).reshape(entry["shape"])
            tensors[key] = values * np.float32(factor if key == name else 1)
    save_file(tensors, shard)
    with safe_open(shard, "numpy") as check:
        assert name in check.keys()  # noqa: SIM118 - not a mapping
