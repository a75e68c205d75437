"""One tiny configuration for each family and feature: odd sizes, and no two dimensions equal by accident."""

from __future__ import annotations

from typing import Any

COMMON: dict[str, Any] = {
    "vocab_size": 293,
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
WINDOW = 5


def _config(architecture: str, **settings: Any) -> dict[str, Any]:
    return {"architectures": [architecture], **COMMON, **settings}


TINY_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _config("LlamaForCausalLM", hidden_act="silu", tie_word_embeddings=True),
    "llama-3": _config(
        "LlamaForCausalLM", hidden_act="silu", tie_word_embeddings=False, rope_scaling=LLAMA3_SCALING,
        attention_bias=True, mlp_bias=True, rope_theta=500.0,
    ),
    "smollm3": _config(
        "SmolLM3ForCausalLM", hidden_act="silu", tie_word_embeddings=True, no_rope_layers=[1, 0, 1, 0],
        num_attention_heads=4, num_key_value_heads=4,
    ),
    "qwen2": _config("Qwen2ForCausalLM", hidden_act="silu", tie_word_embeddings=False, use_sliding_window=False),
    "qwen2-window": _config(
        "Qwen2ForCausalLM", hidden_act="silu", tie_word_embeddings=True, use_sliding_window=True,
        sliding_window=WINDOW, max_window_layers=1,
    ),
    "qwen3": _config(
        "Qwen3ForCausalLM", hidden_act="silu", tie_word_embeddings=True, num_attention_heads=4, num_key_value_heads=1,
        head_dim=24, rope_theta=1000000.0,
    ),
    "gemma": _config("GemmaForCausalLM", hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True),
    "gemma2": _config(
        "Gemma2ForCausalLM", hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True, sliding_window=WINDOW,
        attn_logit_softcapping=3.0, final_logit_softcapping=2.0, query_pre_attn_scalar=10,
    ),
    "gemma3": _config(
        "Gemma3ForCausalLM", hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True, sliding_window=WINDOW,
        sliding_window_pattern=3, query_pre_attn_scalar=10, rope_theta=100000.0, rope_local_base_freq=100.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0}, attn_logit_softcapping=None,
        final_logit_softcapping=None,
    ),
}  # fmt: skip
