"""SmolVLA: the first layers of a SmolVLM2, and an expert that reads their keys and values (arXiv 2506.01844).

Every second expert layer attends to the prefix and to itself; the others attend to the prefix alone, through key and
value projections of their own, with queries that count their positions from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import CheckpointError
from ..families.config_values import MOST_HEADS, MOST_LAYERS, real_number, require, whole_number
from ..lowerings.base import real
from ..vision_families.layers import Layers
from .stack import (
    Stack,
    StackShape,
    embed_with_time,
    interval_bias,
    prefix_inputs,
    prefix_pass,
    rope_constants,
    rope_inputs,
)

TEXT, EXPERT = "text.", "expert."
ROPE_THETA = 10_000.0  # whatever the language model's own; the policy was trained so


@dataclass(frozen=True)
class SmolVLAConfig:
    """Dimensions of both piles and of the adapters between robot and expert."""

    text: StackShape
    expert: StackShape
    self_attention_every: int  # 0: every layer attends to itself
    horizon: int
    padded_state: int
    padded_action: int
    min_period: float
    max_period: float
    steps: int

    def crosses(self, layer: int) -> bool:
        """Whether an expert layer sees the prefix alone."""
        return self.self_attention_every > 0 and layer % self.self_attention_every != 0

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the two action graphs, by the names that they use."""
        width, hidden = self.expert.hidden_size, self.text.hidden_size
        crossing = {layer: self.text.keys for layer in range(self.expert.layers) if self.crosses(layer)}
        linears = {
            "action_in_proj": (width, self.padded_action),
            "action_out_proj": (self.padded_action, width),
            "action_time_mlp_in": (width, 2 * width),
            "action_time_mlp_out": (width, width),
            "state_proj": (hidden, self.padded_state),
        }
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in linears.items():
            shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        return {
            **shapes,
            **self.text.tensors(),
            **self.text.norm_tensors(),
            **self.expert.tensors(keys_from=crossing),
            **self.expert.norm_tensors(),
            f"{EXPERT}norm.weight": (width,),
        }


def parse(config: Mapping[str, Any], language: Mapping[str, Any]) -> SmolVLAConfig:
    """From the policy's configuration and that of its language model (``text_config`` of ``vlm/config.json``).

    :raises CheckpointError: a value is missing, out of range, or of a kind that is not built.
    """
    require(config, "add_image_special_tokens", False, "pictures stand without marks around them")
    require(config, "adapt_to_pi_aloha", False, "joints keep their sign and the gripper its unit")
    require(config, "use_delta_joint_actions_aloha", False, "actions are absolute")
    require(language, "attention_bias", False, "projections have no bias")
    hidden = whole_number(language, "hidden_size")
    heads = whole_number(language, "num_attention_heads", largest=MOST_HEADS)
    layers = whole_number(language, "num_hidden_layers", largest=MOST_LAYERS)
    kept = config.get("num_vlm_layers")
    if isinstance(kept, int) and not isinstance(kept, bool) and kept > 0:
        layers = min(layers, kept)
    experts = config.get("num_expert_layers") or 0
    if experts not in (-1, 0, layers):
        raise CheckpointError(
            f"config.json: num_expert_layers is {experts!r} where the language model keeps {layers}; want one expert "
            "layer for each."
        )
    mode = config.get("attention_mode", "cross_attn")
    if mode not in ("cross_attn", "self_attn"):
        raise CheckpointError(f"config.json: attention_mode is {mode!r}; want cross_attn or self_attn.")
    every = config.get("self_attn_every_n_layers", 2)
    every = every if isinstance(every, int) and every > 0 and mode == "cross_attn" else 0
    if mode == "cross_attn" and not every:
        raise CheckpointError("config.json: self_attn_every_n_layers is off; want layers that attend to the actions.")
    width = int(hidden * real_number(config, "expert_width_multiplier"))
    shared: dict[str, Any] = {
        "layers": layers,
        "heads": heads,
        "kv_heads": whole_number(language, "num_key_value_heads", heads, largest=MOST_HEADS),
        "head_dim": whole_number(language, "head_dim", hidden // heads),
        "epsilon": real_number(language, "rms_norm_eps"),
    }
    return SmolVLAConfig(
        text=StackShape(
            TEXT, hidden_size=hidden, intermediate_size=whole_number(language, "intermediate_size"), **shared
        ),
        expert=StackShape(EXPERT, hidden_size=width, intermediate_size=_gated_width(width), **shared),
        self_attention_every=every,
        horizon=whole_number(config, "chunk_size"),
        padded_state=whole_number(config, "max_state_dim"),
        padded_action=whole_number(config, "max_action_dim"),
        min_period=real_number(config, "min_period"),
        max_period=real_number(config, "max_period"),
        steps=whole_number(config, "num_steps"),
    )


def _gated_width(width: int) -> int:
    """Two thirds of four times the width, up to a multiple of 256."""
    return -(-4 * int(2 * width / 3) // 256) * 256


def build_prefix(layers: Layers, config: SmolVLAConfig) -> None:
    """``prefix_embeds`` [1,P-1,hidden] and ``state`` [1,padded] in; what each expert layer reads out.

    Pictures and words are scaled by the root of their width; the state comes last. The expert's own projections are
    applied already.
    """
    graph, hidden = layers.graph, config.text.hidden_size
    graph.input("prefix_embeds", "float32", [1, "seen", hidden])
    graph.input("state", "float32", [1, config.padded_state])
    scaled = graph.mul(graph.as_element("prefix_embeds"), real(graph, hidden**0.5))
    state = layers.reshape(layers.linear(graph.as_element("state"), "state_proj"), 1, 1, hidden)
    (x,) = graph.node("Concat", [scaled, state], axis=1)
    expert = Stack(layers, config.expert)
    crossing = {layer: expert for layer in range(config.expert.layers) if config.crosses(layer)}
    prefix_pass(Stack(layers, config.text), x, crossing)


def build_action(layers: Layers, config: SmolVLAConfig) -> None:
    """``x_t`` [1,H,padded] and ``time_embedding`` [1,1,width] in, ``velocity`` [1,H,padded] out."""
    graph, shape, horizon = layers.graph, config.expert, config.horizon
    graph.input("x_t", "float32", [1, horizon, config.padded_action])
    graph.input("time_embedding", "float32", [1, 1, shape.hidden_size])
    append = rope_inputs(graph, "rope", horizon, shape.head_dim)
    alone = rope_constants(graph, shape.head_dim, np.arange(horizon), ROPE_THETA)
    x = embed_with_time(layers)
    stack, bias = Stack(layers, shape), None
    zero = graph.constant(np.zeros((1, 1, 1, 1), dtype=graph.element))
    for index in range(shape.layers):
        y = stack.norm(x, f"{shape.layer(index)}input_layernorm")
        keys, values = prefix_inputs(graph, index, shape.kv_heads, shape.head_dim)
        if config.crosses(index):
            y = stack.attend(stack.queries(y, index, alone), keys, values, zero, index)
        else:
            own = stack.turned(*stack.keys_and_values(y, index, append))
            (keys,) = graph.node("Concat", [keys, own[0]], axis=3)
            (values,) = graph.node("Concat", [values, own[1]], axis=2)
            bias = bias or interval_bias(graph, horizon, keys)
            y = stack.attend(stack.queries(y, index, append), keys, values, bias, index)
        x = graph.add(x, y)
        x = graph.add(x, stack.mlp(stack.norm(x, f"{shape.layer(index)}post_attention_layernorm"), index))
    velocity = layers.linear(stack.norm(x, f"{EXPERT}norm"), "action_out_proj")
    graph.output(velocity, "velocity", "float32", [1, horizon, config.padded_action])
