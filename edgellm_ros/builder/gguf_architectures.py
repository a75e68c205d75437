"""What llama.cpp calls an architecture, told in Hugging Face terms: names of tensors and keys of ``config.json``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import CheckpointError
from .gguf_file import GGUFEntry
from .gguf_metadata import GGUFMetadata

ROPE_FACTORS = "rope_freqs.weight"  # Llama 3's frequency factors, stored as a tensor

Entries = Mapping[str, GGUFEntry]
Settings = Callable[[GGUFMetadata, str, Mapping[str, Any]], dict[str, Any]]

_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SANDWICH_NAMES = {
    **_LAYER_NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# keys under which a file says that its numbers are other ones, and the values that say they are not
_NEUTRAL_SCALING = {"attn_factor": 1.0, "yarn_attn_factor": 1.0, "yarn_ext_factor": 1.0, "yarn_log_multiplier": 0.0}
_OTHER_NUMBERS = ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")
_LAYER_NAME = re.compile(r"blk\.(0|[1-9]\d{0,5})\.(\w+)\.(weight|bias)")


def _llama(metadata: GGUFMetadata, prefix: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _gemma2(metadata: GGUFMetadata, prefix: str, config: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "sliding_window": metadata.positive(prefix + "attention.sliding_window", 4096),
        "query_pre_attn_scalar": _query_scalar(config, layers_of_largest=46),
    }
    for name, key in (("attn_logit_softcapping",) * 2, ("final_logit_softcapping",) * 2):
        if prefix + key in metadata:
            settings[name] = metadata.real(prefix + key)
    return settings


def _gemma3(metadata: GGUFMetadata, prefix: str, config: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "sliding_window": None,
        "query_pre_attn_scalar": _query_scalar(config, layers_of_largest=62),
        "rope_local_base_freq": metadata.real(prefix + "rope.freq_base_swa", 10000.0),
        "rope_theta": metadata.real(prefix + "rope.freq_base", 1e6),
    }
    window, pattern = prefix + "attention.sliding_window", prefix + "attention.sliding_window_pattern"
    if window in metadata and metadata.number(window) > 0:
        settings["sliding_window"] = metadata.number(window)
    if isinstance(metadata.values.get(pattern), list):
        slides = metadata.items(pattern, bool)
        settings["layer_types"] = ["sliding_attention" if layer else "full_attention" for layer in slides]
    elif pattern in metadata:
        settings["sliding_window_pattern"] = metadata.positive(pattern)
    if prefix + "final_logit_softcapping" in metadata:
        settings["final_logit_softcapping"] = metadata.real(prefix + "final_logit_softcapping")
    return settings


def _query_scalar(config: Mapping[str, Any], *, layers_of_largest: int) -> int:
    """What queries are divided by the root of; no key holds it, and the largest model of a generation is its own."""
    if config["num_hidden_layers"] == layers_of_largest:
        return int(config["hidden_size"] // config["num_attention_heads"])
    return int(config["head_dim"])


@dataclass(frozen=True)
class Architecture:
    """One value of ``general.architecture``.

    ``interleaved``: llama.cpp keeps the two halves of each query and key head in turn, row by row. ``norm_offset``
    is what it added to the weights of norms. ``settings`` gives the keys that only this one has.
    """

    name: str
    model_type: str
    interleaved: bool = False
    norm_offset: float = 0.0
    layer_names: Mapping[str, str] = field(default_factory=lambda: _LAYER_NAMES)
    settings: Settings = _llama

    def huggingface_name(self, name: str) -> str:
        """The Hugging Face name of a tensor; a name that is not known stays, so that the family reports it."""
        if name in _OUTER_NAMES:
            return _OUTER_NAMES[name]
        found = _LAYER_NAME.fullmatch(name)
        if found and found.group(2) in self.layer_names:
            return f"model.layers.{int(found.group(1))}.{self.layer_names[found.group(2)]}.{found.group(3)}"
        return name


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", interleaved=True),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2"),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3"),
    "gemma": Architecture("GemmaForCausalLM", "gemma", norm_offset=1.0),
    "gemma2": Architecture(
        "Gemma2ForCausalLM", "gemma2", norm_offset=1.0, layer_names=_SANDWICH_NAMES, settings=_gemma2
    ),
    "gemma3": Architecture(
        "Gemma3ForCausalLM", "gemma3_text", norm_offset=1.0, layer_names=_SANDWICH_NAMES, settings=_gemma3
    ),
}


def architecture_of(metadata: GGUFMetadata) -> Architecture:
    """:raises CheckpointError: not one that is built; the sentence lists those that are."""
    name = metadata.text("general.architecture", "")
    if name not in ARCHITECTURES:
        raise CheckpointError(f"{metadata.path} has the architecture {name!r}; want one of {', '.join(ARCHITECTURES)}.")
    return ARCHITECTURES[name]


def read_config(metadata: GGUFMetadata, entries: Entries, rope_factors: list[float] | None) -> dict[str, Any]:
    """The keys of ``config.json``; ``rope_factors`` is the content of ``ROPE_FACTORS`` where the file has it.

    :raises CheckpointError: a key is missing, of another type, or says that the model is of a kind that is not built.
    """
    architecture = architecture_of(metadata)
    prefix = metadata.text("general.architecture", "") + "."
    hidden_size = metadata.positive(prefix + "embedding_length")
    heads = metadata.positive(prefix + "attention.head_count")
    head_dim = metadata.positive(prefix + "attention.key_length", hidden_size // heads or None)
    for key in ("attention.value_length", "rope.dimension_count"):
        if metadata.number(prefix + key, head_dim) != head_dim:
            raise metadata.fail(prefix + key, f"the head size {head_dim}")
    for key in _OTHER_NUMBERS:
        if prefix + key in metadata:
            raise metadata.fail(prefix + key, "none for this architecture")
    if not metadata.switch(prefix + "attention.causal", True):
        raise metadata.fail(prefix + "attention.causal", "true: a query sees only what stands before it")
    embedding = entries.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{metadata.path} lacks tensor 'token_embd.weight'; fetch the file again.")
    config: dict[str, Any] = {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": metadata.number(prefix + "feed_forward_length"),
        "num_hidden_layers": metadata.number(prefix + "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.number(prefix + "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": metadata.real(prefix + "attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.real(prefix + "rope.freq_base", 10000.0),
        "max_position_embeddings": metadata.number(prefix + "context_length"),
        "tie_word_embeddings": "output.weight" not in entries,
        "rope_scaling": _rope_scaling(metadata, prefix, rope_factors),
    }
    if architecture.model_type in ("llama", "qwen3", "gemma"):
        config["attention_bias"] = "blk.0.attn_q.bias" in entries
    config |= architecture.settings(metadata, prefix, config)
    for ours, theirs in (("bos_token_id", "bos_token_id"), ("pad_token_id", "padding_token_id")):
        if f"tokenizer.ggml.{theirs}" in metadata:
            config[ours] = metadata.number(f"tokenizer.ggml.{theirs}")
    return config


def _rope_scaling(metadata: GGUFMetadata, prefix: str, factors: list[float] | None) -> dict[str, Any] | None:
    scaling = prefix + "rope.scaling."
    factor = next((key for key in (scaling + "factor", prefix + "rope.scale_linear") if key in metadata), None)
    kind = metadata.text(scaling + "type", "none" if factor is None else "linear")
    if factors is not None:
        if kind != "none":
            raise metadata.fail(scaling + "type", f"none beside the tensor {ROPE_FACTORS!r}")
        return {"rope_type": "frequency_factors", "factors": factors}
    if kind == "none":
        return None
    for name, neutral in _NEUTRAL_SCALING.items():
        if metadata.real(scaling + name, neutral) != neutral:
            raise metadata.fail(scaling + name, f"{neutral} or none")
    found: dict[str, Any] = {"rope_type": kind, "factor": metadata.real(factor or scaling + "factor")}
    if scaling + "original_context_length" in metadata:
        found["original_max_position_embeddings"] = metadata.number(scaling + "original_context_length")
    for name in ("beta_fast", "beta_slow"):
        if f"{scaling}yarn_{name}" in metadata:
            found[name] = metadata.real(f"{scaling}yarn_{name}")
    return found
