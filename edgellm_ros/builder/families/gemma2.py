"""Gemma 2: sliding and full layers in turn, four norms a layer, soft caps on scores and logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .base import DecoderConfig, Family, LayerPlan
from .config_values import choice, optional_number, real_number
from .frame import Frame
from .gemma import GELU, gemma_traits
from .llama import ROPE
from .rope_kinds import FULL, SLIDING, single_rope

DEFAULTS = {
    "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "head_dim": 256,
    "tie_word_embeddings": True, "max_position_embeddings": 8192, "query_pre_attn_scalar": 256,
    "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
}  # fmt: skip


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    """See ``Family``; without ``layer_types`` the even layers slide."""
    config = {**DEFAULTS, **config}
    frame = Frame(config)
    types = frame.layer_types() or [FULL if layer % 2 else SLIDING for layer in range(frame.layers)]
    window = frame.sliding_window()
    return frame.decoder(
        GEMMA2.name,
        {ROPE: single_rope(config, frame.head_dim, frame.maximum)},
        [LayerPlan(ROPE, window if kind == SLIDING else 0) for kind in types],
        activation=choice(config, "hidden_activation", GELU),
        sandwich_norms=True,
        attention_scale=real_number(config, "query_pre_attn_scalar") ** -0.5,
        attention_softcap=optional_number(config, "attn_logit_softcapping"),
        logit_softcap=optional_number(config, "final_logit_softcapping"),
        **gemma_traits(frame),
    )


GEMMA2 = Family("gemma2", ("Gemma2ForCausalLM",), parse)
