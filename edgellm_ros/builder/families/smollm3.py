"""SmolLM3: Llama with layers that know no positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import CheckpointError
from .base import DecoderConfig, Family, LayerPlan
from .config_values import choice, layer_list, real_number, switch, whole_number
from .frame import Frame
from .llama import ROPE
from .rope_kinds import SLIDING, single_rope

DEFAULTS = {
    "hidden_act": "silu", "rope_theta": 2e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "max_position_embeddings": 32768,
}  # fmt: skip


def parse(config: Mapping[str, Any]) -> DecoderConfig:
    """See ``Family``; an entry 1 of ``no_rope_layers`` marks a layer that does rotate."""
    config = {**DEFAULTS, **config}
    frame = Frame(config)
    interval = whole_number(config, "no_rope_layer_interval", 4)
    rotates = layer_list(config, "no_rope_layers", frame.layers, (0, 1))
    if rotates is None:
        rotates = [int((layer + 1) % interval != 0) for layer in range(frame.layers)]
    window = frame.sliding_window() if switch(config, "use_sliding_window", False) else 0
    types = frame.layer_types()
    slides = [kind == SLIDING for kind in types] if types else [not rope for rope in rotates]
    layers = [
        LayerPlan(ROPE if rope else None, window if slide else 0) for rope, slide in zip(rotates, slides, strict=True)
    ]
    if not any(rotates):
        raise CheckpointError("config.json: no_rope_layers rotates no layer; want at least one 1 in it.")
    bias = switch(config, "attention_bias", False)
    return frame.decoder(
        SMOLLM3.name,
        {ROPE: single_rope(config, frame.head_dim, frame.maximum)},
        layers,
        norm_epsilon=real_number(config, "rms_norm_eps"),
        activation=choice(config, "hidden_act", {"silu": "silu"}),
        query_key_value_bias=bias,
        output_bias=bias,
        mlp_bias=switch(config, "mlp_bias", False),
    )


SMOLLM3 = Family("smollm3", ("SmolLM3ForCausalLM",), parse)
