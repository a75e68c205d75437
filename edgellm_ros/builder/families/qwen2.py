"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values, and a window on the layers above a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .base import DecoderConfig, Family, LayerPlan
from .config_values import choice, real_number, switch, whole_number
from .frame import Frame
from .llama import ROPE
from .rope_kinds import SLIDING, single_rope

DEFAULTS = {
    "hidden_act": "silu", "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768,
    "sliding_window": 4096, "max_window_layers": 28,
}  # fmt: skip


def window_layers(frame: Frame) -> list[LayerPlan]:
    """All full, unless ``use_sliding_window``: then ``layer_types`` or ``max_window_layers`` says which are not.

    :raises CheckpointError: a key has a value that is not built.
    """
    window = frame.sliding_window() if switch(frame.config, "use_sliding_window", False) else 0
    if not window:
        return [LayerPlan(ROPE)] * frame.layers
    types = frame.layer_types()
    if types is None:
        first = whole_number(frame.config, "max_window_layers", least=0)
        return [LayerPlan(ROPE, window if layer >= first else 0) for layer in range(frame.layers)]
    return [LayerPlan(ROPE, window if kind == SLIDING else 0) for kind in types]


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    """See ``Family``."""
    config = {**DEFAULTS, **config}
    frame = Frame(config)
    return frame.decoder(
        QWEN2.name,
        {ROPE: single_rope(config, frame.head_dim, frame.maximum)},
        window_layers(frame),
        norm_epsilon=real_number(config, "rms_norm_eps"),
        activation=choice(config, "hidden_act", {"silu": "silu"}),
        query_key_value_bias=True,
    )


QWEN2 = Family("qwen2", ("Qwen2ForCausalLM",), parse)
