"""Llama and what shares its layers to the letter: SmolLM, SmolLM2, Llama 2 and 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .base import DecoderConfig, Family, LayerPlan
from .config_values import choice, real_number, switch
from .frame import Frame
from .rope_kinds import single_rope

DEFAULTS = {"hidden_act": "silu", "rope_theta": 10000.0, "rms_norm_eps": 1e-6}
ROPE = "default"  # the kind of a family that has one


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    """See ``Family``."""
    config = {**DEFAULTS, **config}
    frame = Frame(config)
    bias = switch(config, "attention_bias", False)
    return frame.decoder(
        LLAMA.name,
        {ROPE: single_rope(config, frame.head_dim, frame.maximum)},
        [LayerPlan(ROPE)] * frame.layers,
        norm_epsilon=real_number(config, "rms_norm_eps"),
        activation=choice(config, "hidden_act", {"silu": "silu"}),
        query_key_value_bias=bias,
        output_bias=bias,
        mlp_bias=switch(config, "mlp_bias", False),
    )


LLAMA = Family("llama", ("LlamaForCausalLM",), parse)
