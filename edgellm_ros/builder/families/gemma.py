"""Gemma, the first: embeddings are scaled, norms multiply by one plus their weight, the gate is a GELU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .base import DecoderConfig, Family, LayerPlan
from .config_values import choice, real_number, switch
from .frame import Frame
from .llama import ROPE
from .rope_kinds import single_rope

DEFAULTS = {
    "hidden_act": "gelu_pytorch_tanh", "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "head_dim": 256,
    "tie_word_embeddings": True, "max_position_embeddings": 8192,
}  # fmt: skip
GELU = {"gelu_pytorch_tanh": "gelu_tanh"}


def gemma_traits(frame: Frame) -> dict[str, Any]:
    """What all generations of Gemma have in common."""
    bias = switch(frame.config, "attention_bias", False)
    return {
        "norm_epsilon": real_number(frame.config, "rms_norm_eps"),
        "norm_offset": 1.0,
        "embedding_scale": frame.hidden_size**0.5,
        "query_key_value_bias": bias,
        "output_bias": bias,
    }


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    """See ``Family``; early files say ``gelu`` and mean its tanh form."""
    config = {**DEFAULTS, **config}
    key = "hidden_act" if config.get("hidden_activation") is None else "hidden_activation"
    frame = Frame(config)
    return frame.decoder(
        GEMMA.name,
        {ROPE: single_rope(config, frame.head_dim, frame.maximum)},
        [LayerPlan(ROPE)] * frame.layers,
        activation=choice(config, key, {**GELU, "gelu": "gelu_tanh"}),
        **gemma_traits(frame),
    )


GEMMA = Family("gemma", ("GemmaForCausalLM",), parse)
