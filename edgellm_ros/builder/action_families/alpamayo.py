"""Alpamayo-R1: an expert of the language model's shape that plans waypoints over its keys and values.

The language model is an engine of its own, which says its reasoning first; layer by layer the expert reads what that
left in the cache. A waypoint enters as sines and cosines of its acceleration, its curvature and the moment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..graph_parts import Value
from ..vision_families.layers import Layers
from .stack import Stack, StackShape, interval_bias, prefix_inputs, rope_inputs

EXPERT = "expert."
TRUNK, ENTRY_EPSILON, NORM_EPSILON = "action_in_proj.encoder.trunk.", 1e-5, 1e-5


@dataclass(frozen=True)
class AlpamayoConfig:
    """Dimensions of the expert and of the way in; ``waves`` sines for each number, up to ``fastest`` turns a unit."""

    expert: StackShape
    waypoints: int
    entry_layers: int
    entry_width: int
    waves: int
    fastest: float
    steps: int

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the action graph."""
        width, entry = self.expert.hidden_size, self.entry_width
        shapes: dict[str, tuple[int, ...]] = {
            "action_in_proj.norm.weight": (width,), "action_in_proj.norm.bias": (width,),
            "action_out_proj.weight": (2, width), "action_out_proj.bias": (2,), f"{EXPERT}norm.weight": (width,),
        }  # fmt: skip
        for place, (inputs, outputs) in self.entry_products().items():
            shapes |= {f"{TRUNK}{place}.weight": (outputs, inputs), f"{TRUNK}{place}.bias": (outputs,)}
            if place:
                shapes[f"{TRUNK}{place - 1}.weight"] = (entry,)
        return {**shapes, **self.expert.tensors(), **self.expert.norm_tensors()}

    def entry_products(self) -> dict[int, tuple[int, int]]:
        """Inputs and outputs of the way in, by place in the checkpoint; a norm stands before each but the first."""
        width, entry = self.expert.hidden_size, self.entry_width
        products = {0: (6 * self.waves, entry)}
        for index in range(self.entry_layers):
            products[3 + 3 * index] = entry, width if index + 1 == self.entry_layers else entry
        return products


def build_action(layers: Layers, config: AlpamayoConfig) -> None:
    """``x_t`` [1,W,2], ``time_embedding`` [1,1,2*waves] and the cache in; ``velocity`` [1,W,2] out."""
    graph, shape, rows = layers.graph, config.expert, config.waypoints
    graph.input("x_t", "float32", [1, rows, 2])
    graph.input("time_embedding", "float32", [1, 1, 2 * config.waves])
    tables, stack, bias = rope_inputs(graph, "rope", rows, shape.head_dim), Stack(layers, shape), None
    x = _entry(layers, config)
    for index in range(shape.layers):
        y = stack.norm(x, f"{shape.layer(index)}input_layernorm")
        keys, values = prefix_inputs(graph, index, shape.kv_heads, shape.head_dim)
        own = stack.turned(*stack.keys_and_values(y, index, tables))
        # Its own stand first, so that what is read of the cache may be longer than what it holds.
        (keys,) = graph.node("Concat", [own[0], keys], axis=3)
        (values,) = graph.node("Concat", [own[1], values], axis=2)
        bias = bias or interval_bias(graph, rows, keys)
        x = graph.add(x, stack.attend(stack.queries(y, index, tables), keys, values, bias, index))
        x = graph.add(x, stack.mlp(stack.norm(x, f"{shape.layer(index)}post_attention_layernorm"), index))
    velocity = layers.linear(stack.norm(x, f"{EXPERT}norm"), "action_out_proj")
    graph.output(velocity, "velocity", "float32", [1, rows, 2])


def _entry(layers: Layers, config: AlpamayoConfig) -> Value:
    """The embedding of the waypoints, [1,W,width]."""
    graph, rows = layers.graph, config.waypoints
    moment = graph.constant(np.array([1, rows, 2 * config.waves], dtype=np.int64))
    (time,) = graph.node("Expand", [graph.as_element("time_embedding"), moment])
    (x,) = graph.node("Concat", [_sines(layers, config), time], axis=2)
    for place in config.entry_products():
        if place:
            x = layers.rms_norm(x, f"{TRUNK}{place - 1}", ENTRY_EPSILON)
        x = layers.linear(x, f"{TRUNK}{place}")
        if place != 3 * config.entry_layers:
            x = graph.silu(x)
    return layers.layer_norm(x, "action_in_proj.norm", NORM_EPSILON)


def _sines(layers: Layers, config: AlpamayoConfig) -> Value:
    """Of both numbers of each waypoint, [1,W,4*waves]; in float32, since the fastest turn far in a unit."""
    graph, rows, waves = layers.graph, config.waypoints, config.waves
    speeds = (config.fastest ** np.linspace(0, 1, waves)).astype(np.float32)
    (x,) = graph.node("Unsqueeze", [Value("x_t"), graph.constant(np.array([3], dtype=np.int64))])
    angles = graph.mul(x, graph.constant(speeds.reshape(1, 1, 1, waves)))
    angles = graph.mul(graph.mul(angles, _number(layers, 2.0)), _number(layers, np.pi))
    parts = [graph.node(kind, [angles])[0] for kind in ("Sin", "Cos")]
    (both,) = graph.node("Concat", parts, axis=3)  # [1,W,2,2*waves]
    both = layers.reshape(graph.mul(both, _number(layers, 2**0.5)), 1, rows, 4 * waves)
    return both if graph.element == "float32" else graph.node("Cast", [both], to=graph.element)[0]


def _number(layers: Layers, value: float) -> Value:
    return layers.graph.constant(np.array(value, dtype=np.float32))
