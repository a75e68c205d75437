"""The text part of a vision-language checkpoint builds as a text model, whatever its tensors are called."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from family_engines import LIMITS, ROWS, TOLERANCE, distance
from reference_decoder import ReferenceDecoder
from seam_runner import ragged_logits
from tiny_families import TINY_FAMILIES

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import RandomCheckpoint, tiny_tokenizer_files, write_safetensors
from edgellm_ros.engine_format import open_engine_directory
from edgellm_ros.errors import CheckpointError

MROPE = {"type": "mrope", "mrope_section": [2, 3, 3]}
# architecture, family of its text part, key of the text configuration, prefix of text and of other tensors
WHOLES = {
    "Qwen2-VL as published": ("Qwen2VLForConditionalGeneration", "qwen2", None, "model.", "visual."),
    "Qwen2.5-VL since transformers 5": (
        "Qwen2_5_VLForConditionalGeneration", "qwen2", "text_config", "model.language_model.", "model.visual.",
    ),
    "Qwen3-VL": (
        "Qwen3VLForConditionalGeneration", "qwen3", "text_config", "model.language_model.", "model.visual.",
    ),
    "Gemma 3 as published": (
        "Gemma3ForConditionalGeneration", "gemma3", "text_config", "language_model.model.", "vision_tower.",
    ),
    "SmolVLM": ("SmolVLMForConditionalGeneration", "llama-3", "text_config", "model.text_model.", "model.connector."),
    "InternVL3": ("InternVLChatModel", "qwen2", "llm_config", "language_model.model.", "mlp1."),
}  # fmt: skip


def write_whole(folder: Path, name: str) -> tuple[Path, ReferenceDecoder]:
    """A checkpoint of text and vision tensors, and the reference of its text part."""
    architecture, family, key, text_prefix, other_prefix = WHOLES[name]
    text = {key: value for key, value in TINY_FAMILIES[family].items() if key != "architectures"}
    checkpoint = RandomCheckpoint(TINY_FAMILIES[family], 5)
    tensors = {tensor: checkpoint.read_rows(tensor, 0, shape[0]) for tensor, shape in checkpoint.shapes.items()}
    reference = ReferenceDecoder(
        TINY_FAMILIES[family], {key: value.astype(np.float64) for key, value in tensors.items()}
    )
    if "Qwen" in architecture:
        text["rope_scaling"] = MROPE
    config = {"architectures": [architecture], "vision_config": {"depth": 2}}
    config |= text if key is None else {key: text}
    head = "language_model.lm_head." if text_prefix == "language_model.model." else "lm_head."
    stored = {}
    for tensor, values in tensors.items():
        renamed = tensor.replace("lm_head.", head) if tensor.startswith("lm_head") else text_prefix + tensor[6:]
        stored[renamed] = values
    stored[f"{other_prefix}blocks.0.weight"] = np.ones((3, 5), dtype=np.float32)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for file, content in tiny_tokenizer_files(293).items():
        (folder / file).write_bytes(content)
    write_safetensors(
        folder / "model.safetensors",
        {tensor: values.shape for tensor, values in stored.items()},
        lambda tensor, start, stop: stored[tensor][start:stop],
    )
    return folder, reference


@pytest.mark.parametrize("name", WHOLES)
def test_the_text_part_answers_as_a_text_model_of_those_weights(name, tmp_path):
    folder, reference = write_whole(tmp_path / "whole", name)
    engine = build_engine(folder, tmp_path / "engine", limits=LIMITS, text_only=True)
    directory = open_engine_directory(engine)
    assert directory.config.extra["text_part_of"] == WHOLES[name][0]
    assert directory.manifest.source.endswith("its text part")
    assert distance(ragged_logits(engine, ROWS), [reference.logits(ids) for ids in ROWS]) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.experts.0.weight", r"model\.experts\.0\.weight' that this architecture does not use"),
        ("model.language_model.norm.weight", r"which both are 'model\.norm\.weight'; fetch it again"),
    ],
)
def test_a_tensor_too_many_is_refused(tmp_path, name, said):
    folder, _ = write_whole(tmp_path / "whole", "Gemma 3 as published")
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header[name] = header.pop("vision_tower.blocks.0.weight")
    text = json.dumps(header).encode()
    text = text.ljust(math.ceil(len(text) / 8) * 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises(CheckpointError, match=said):
        build_engine(folder, tmp_path / "engine", limits=LIMITS, text_only=True)
