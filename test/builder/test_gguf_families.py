"""Each architecture of GGUF, written by the public package, is the model of the folder it was made from."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from reference_llama import read_folder
from tiny_families import TINY_FAMILIES

from edgellm_ros.builder.families import read_config
from edgellm_ros.builder.gguf_checkpoint import GGUFCheckpoint
from edgellm_ros.builder.random_weights import write_random_checkpoint

WINDOW = {"attention.sliding_window": 5}
TYPES = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
SWA = {"rope.freq_base_swa": 100.0}
OWN_SCALE = {"query_pre_attn_scalar": 16}
CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0}
# name -> (architecture of GGUF, family, what the folder says otherwise, further keys of the file)
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "qwen2": ("qwen2", "qwen2", {}, {}),
    "qwen3": ("qwen3", "qwen3", {}, {}),
    "gemma": ("gemma", "gemma", {}, {}),
    "gemma2": ("gemma2", "gemma2", OWN_SCALE, {**WINDOW, **CAPS}),
    "gemma2 of the largest size": (
        "gemma2", "gemma2", {"num_hidden_layers": 46, "query_pre_attn_scalar": 40 // 6},
        {**WINDOW, **CAPS},
    ),
    "gemma3": (
        "gemma3", "gemma3", OWN_SCALE,
        {**WINDOW, "attention.sliding_window_pattern": 3, **LINEAR, **SWA},
    ),
    "gemma3 layer by layer": (
        "gemma3", "gemma3", {**OWN_SCALE, "layer_types": TYPES},
        {**WINDOW, "attention.sliding_window_pattern": [False, True, True, False], **LINEAR, **SWA},
    ),
    "gemma3 without a word on its layers": (
        "gemma3", "gemma3",
        {**OWN_SCALE, "sliding_window_pattern": 6, "num_hidden_layers": 7, "rope_local_base_freq": 10000.0},
        {**WINDOW, **LINEAR},
    ),
}  # fmt: skip


def write(path: Path, architecture: str, config: dict[str, Any], tensors: dict[str, Any], keys: dict[str, Any]) -> Path:
    """As llama.cpp's converter does it: its names, one added to the norms of Gemma."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    for key, value in {"bos": config["bos_token_id"], "padding": config["pad_token_id"]}.items():
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", value)
    for key, value in keys.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
        add[type(value)](f"{architecture}.{key}", value)
    kind = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for name, values in tensors.items():
        offset = 1 if architecture.startswith("gemma") and name.endswith("norm.weight") else 0
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), (values + offset).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(("architecture", "family", "changes", "keys"), CASES.values(), ids=CASES)
def test_a_file_is_the_model_of_the_folder(
    tmp_path: Path, architecture: str, family: str, changes: dict[str, Any], keys: dict[str, Any]
) -> None:
    given = {**TINY_FAMILIES[family], **changes}
    config, tensors = read_folder(write_random_checkpoint(tmp_path / "folder", given))
    with closing(GGUFCheckpoint(write(tmp_path / "m.gguf", architecture, config, tensors, keys))) as checkpoint:
        found, wanted = read_config(checkpoint.config), read_config(config)
        for field in dataclasses.fields(wanted):
            if field.name != "name":
                assert getattr(found, field.name) == getattr(wanted, field.name), field.name
        assert set(checkpoint.shapes) == set(tensors)
        for name, values in tensors.items():
            np.testing.assert_allclose(checkpoint.read_rows(name, 0, len(values)), values, atol=1e-6, err_msg=name)
