"""Qwen3: Qwen2 with normalised queries and keys instead of biases, and heads of their own size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import qwen2
from .base import DecoderConfig, Family
from .config_values import choice, real_number, switch
from .frame import Frame
from .llama import ROPE
from .qwen2 import window_layers
from .rope_kinds import single_rope

DEFAULTS = {**qwen2.DEFAULTS, "head_dim": 128}


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    """See ``Family``."""
    config = {**DEFAULTS, **config}
    frame = Frame(config)
    bias = switch(config, "attention_bias", False)
    return frame.decoder(
        QWEN3.name,
        {ROPE: single_rope(config, frame.head_dim, frame.maximum)},
        window_layers(frame),
        norm_epsilon=real_number(config, "rms_norm_eps"),
        activation=choice(config, "hidden_act", {"silu": "silu"}),
        query_key_value_bias=bias,
        output_bias=bias,
        query_key_norm=True,
    )


QWEN3 = Family("qwen3", ("Qwen3ForCausalLM",), parse)
