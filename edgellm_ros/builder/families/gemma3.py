"""Gemma 3 text: five sliding layers to one full one, each type with its own rope, queries and keys normalised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .base import DecoderConfig, Family, LayerPlan
from .config_values import choice, optional_number, real_number, require, whole_number
from .frame import Frame
from .gemma import GELU, gemma_traits
from .rope_kinds import FULL, SLIDING, rope_of_layer_types

DEFAULTS = {
    "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rms_norm_eps": 1e-6,
    "head_dim": 256, "tie_word_embeddings": True, "max_position_embeddings": 131072, "query_pre_attn_scalar": 256,
    "sliding_window": 4096, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208,
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
}  # fmt: skip


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    """See ``Family``; without ``layer_types`` every ``sliding_window_pattern``-th layer is full."""
    config = {**DEFAULTS, **config}
    require(config, "attn_logit_softcapping", None, "this architecture does not cap its scores")
    frame = Frame(config)
    key = "sliding_window_pattern" if "sliding_window_pattern" in config else "_sliding_window_pattern"
    pattern = whole_number(config, key, 6)
    types = frame.layer_types() or [SLIDING if (layer + 1) % pattern else FULL for layer in range(frame.layers)]
    window = frame.sliding_window()
    return frame.decoder(
        GEMMA3.name,
        rope_of_layer_types(config, frame.head_dim, frame.maximum),
        [LayerPlan("sliding", window) if kind == SLIDING else LayerPlan("full") for kind in types],
        activation=choice(config, "hidden_activation", GELU),
        sandwich_norms=True,
        query_key_norm=True,
        attention_scale=real_number(config, "query_pre_attn_scalar") ** -0.5,
        logit_softcap=optional_number(config, "final_logit_softcapping"),
        **gemma_traits(frame),
    )


GEMMA3 = Family("gemma3", ("Gemma3ForCausalLM",), parse)
