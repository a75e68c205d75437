"""pi0 and pi0.5: PaliGemma, and a Gemma expert that attends to its keys and values (arXiv 2410.24164, 2504.16054).

pi0 has the state as a row before the actions and time inside each action's embedding. pi0.5 reads its state as words,
and time sets scale, shift and gate of every norm of the expert: these depend on time alone, so a graph of their own
gives them once for each moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import CheckpointError
from ..families.config_values import MOST_HEADS, MOST_LAYERS, real_number, require, whole_number
from ..graph_parts import Value
from ..lowerings.base import whole
from ..vision_families.layers import Layers
from ..weight_views import constant_weight
from ..weights import stack_rows
from .stack import (
    Stack,
    StackShape,
    embed_with_time,
    interval_bias,
    prefix_inputs,
    prefix_pass,
    rope_inputs,
    table_rows,
)

TEXT, EXPERT = "text.", "expert."
ROPE_THETA = 10_000.0


@dataclass(frozen=True)
class PiConfig:
    """Dimensions of both piles and of the adapters; ``adaptive`` is pi0.5."""

    text: StackShape
    expert: StackShape
    adaptive: bool
    horizon: int
    padded_state: int
    padded_action: int
    min_period: float
    max_period: float
    steps: int

    @property
    def sites(self) -> tuple[str, ...]:
        """The expert's norms in the order of their use."""
        layers = [self.expert.layer(index) for index in range(self.expert.layers)]
        pairs = [f"{layer}{name}" for layer in layers for name in ("input_layernorm", "post_attention_layernorm")]
        return (*pairs, f"{EXPERT}norm")

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the action graphs, by the names that they use."""
        width = self.expert.hidden_size
        linears = {"action_in_proj": (width, self.padded_action), "action_out_proj": (self.padded_action, width)}
        if self.adaptive:
            linears |= {"time_mlp_in": (width, width), "time_mlp_out": (width, width)}
            linears |= {f"{site}.dense": (3 * width, width) for site in self.sites}
        else:
            linears |= {"action_time_mlp_in": (width, 2 * width), "action_time_mlp_out": (width, width)}
            linears["state_proj"] = (width, self.padded_state)
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in linears.items():
            shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        norms = {} if self.adaptive else {f"{site}.weight": (width,) for site in self.sites}
        return {**shapes, **self.text.tensors(), **self.text.norm_tensors(), **self.expert.tensors(), **norms}


def parse(config: Mapping[str, Any], text: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> PiConfig:
    """From the policy's configuration, the text part of PaliGemma's, and the shapes of the expert's tensors.

    ``shapes`` has the names that the graphs use; which of pi0 and pi0.5 a checkpoint is, its tensors say.

    :raises CheckpointError: a value is missing or out of range, or the tensors are of both kinds or of neither.
    """
    adaptive, plain = "time_mlp_in.weight" in shapes, "state_proj.weight" in shapes
    if adaptive == plain:
        found = "both time_mlp_in and state_proj" if adaptive else "neither time_mlp_in nor state_proj"
        raise CheckpointError(f"the checkpoint has {found}; want those of pi0.5 or those of pi0.")
    require(config, "use_relative_actions", False, "actions are absolute here")
    hidden, layers = whole_number(text, "hidden_size"), whole_number(text, "num_hidden_layers", largest=MOST_LAYERS)
    heads = whole_number(text, "num_attention_heads", largest=MOST_HEADS)
    shared: dict[str, Any] = {
        "layers": layers,
        "heads": heads,
        "kv_heads": whole_number(text, "num_key_value_heads", heads, largest=MOST_HEADS),
        "head_dim": whole_number(text, "head_dim", hidden // heads),
        "epsilon": real_number(text, "rms_norm_eps", 1e-6),
        "activation": "gelu_tanh",
        "norm_offset": 1.0,
    }
    gate = shapes.get(f"{EXPERT}layers.0.mlp.gate_proj.weight")
    if gate is None or len(gate) != 2:
        raise CheckpointError(f"the expert's first layer has a gate_proj of shape {gate!r}; want a matrix.")
    return PiConfig(
        StackShape(TEXT, hidden_size=hidden, intermediate_size=whole_number(text, "intermediate_size"), **shared),
        StackShape(EXPERT, hidden_size=gate[1], intermediate_size=gate[0], **shared),
        adaptive,
        horizon=whole_number(config, "chunk_size"),
        padded_state=whole_number(config, "max_state_dim"),
        padded_action=whole_number(config, "max_action_dim"),
        min_period=real_number(config, "min_period", 4e-3),
        max_period=real_number(config, "max_period", 4.0),
        steps=whole_number(config, "num_inference_steps", 10),
    )


def build_prefix(layers: Layers, config: PiConfig) -> None:
    """``prefix_embeds`` [1,P,hidden] in, what every layer of the expert reads out."""
    layers.graph.input("prefix_embeds", "float32", [1, "seen", config.text.hidden_size])
    prefix_pass(Stack(layers, config.text), layers.graph.as_element("prefix_embeds"))


def build_time(layers: Layers, config: PiConfig) -> None:
    """``time_embedding`` [1,width] in, ``modulation`` [1,sites,3*width] out: 1 + scale, shift and gate of each norm."""
    graph, width, sites = layers.graph, config.expert.hidden_size, config.sites
    graph.input("time_embedding", "float32", [1, width])
    x = graph.silu(layers.linear(graph.as_element("time_embedding"), "time_mlp_in"))
    x = graph.silu(layers.linear(x, "time_mlp_out"))
    names = [f"{site}.dense" for site in sites]
    weights, biases = ([layers.weights[f"{name}.{kind}"] for name in names] for kind in ("weight", "bias"))
    x = layers.reshape(graph.linear(x, stack_rows(weights), stack_rows(biases)), 1, len(sites), 3 * width)
    ones = np.zeros((1, 1, 3 * width), dtype=graph.element)
    ones[..., :width] = 1
    graph.output(graph.add(x, graph.constant(ones)), "modulation", graph.element, [1, len(sites), 3 * width])


def build_action(layers: Layers, config: PiConfig) -> None:
    """``x_t`` [1,H,padded] and time in, ``velocity`` [1,H,padded] out; pi0 takes ``state`` [1,padded] too."""
    graph, shape, horizon = layers.graph, config.expert, config.horizon
    rows = horizon if config.adaptive else horizon + 1
    graph.input("x_t", "float32", [1, horizon, config.padded_action])
    norms = _Norms(layers, config)
    if config.adaptive:
        x = layers.linear(graph.as_element("x_t"), "action_in_proj")
    else:
        graph.input("time_embedding", "float32", [1, 1, shape.hidden_size])
        graph.input("state", "float32", [1, config.padded_state])
        state = layers.reshape(layers.linear(graph.as_element("state"), "state_proj"), 1, 1, shape.hidden_size)
        (x,) = graph.node("Concat", [state, embed_with_time(layers)], axis=1)
    stack, tables, bias = Stack(layers, shape), rope_inputs(graph, "rope", rows, shape.head_dim), None
    for index in range(shape.layers):
        prefix = shape.layer(index)
        y, gate = norms.apply(x, f"{prefix}input_layernorm")
        keys, values = prefix_inputs(graph, index, shape.kv_heads, shape.head_dim)
        own = stack.turned(*stack.keys_and_values(y, index, tables))
        (keys,) = graph.node("Concat", [keys, own[0]], axis=3)
        (values,) = graph.node("Concat", [values, own[1]], axis=2)
        bias = bias or interval_bias(graph, rows, keys)
        x = norms.residual(x, stack.attend(stack.queries(y, index, tables), keys, values, bias, index), gate)
        y, gate = norms.apply(x, f"{prefix}post_attention_layernorm")
        x = norms.residual(x, stack.mlp(y, index), gate)
    x, _ = norms.apply(x, f"{EXPERT}norm")
    if rows != horizon:
        (x,) = graph.node("Slice", [x, whole(graph, 1), whole(graph, rows), whole(graph, 1)])
    velocity = layers.linear(x, "action_out_proj")
    graph.output(velocity, "velocity", "float32", [1, horizon, config.padded_action])


class _Norms:
    """The expert's norms: plain, or with scale, shift and gate that come in as ``modulation``."""

    def __init__(self, layers: Layers, config: PiConfig) -> None:
        self._layers, self._config = layers, config
        self._stack = Stack(layers, config.expert)
        self._sites: dict[str, tuple[Value, ...]] = {}
        graph, width = layers.graph, config.expert.hidden_size
        if config.adaptive:
            table = graph.input("modulation", graph.element, [1, len(config.sites), 3 * width])
            rows = table_rows(graph, table, 3 * len(config.sites), width)
            for index, site in enumerate(config.sites):
                self._sites[site] = tuple(rows[3 * index : 3 * index + 3])

    def apply(self, x: Value, name: str) -> tuple[Value, Value | None]:
        """The normalised x, and the gate of what will be added to it."""
        if not self._config.adaptive:
            return self._stack.norm(x, name), None
        graph, shape = self._layers.graph, self._config.expert
        scale, shift, gate = self._sites[name]
        unit = graph.rms_norm(x, constant_weight(f"{name}.ones", np.ones(shape.hidden_size, np.float32)), shape.epsilon)
        return graph.add(graph.mul(unit, scale), shift), gate

    def residual(self, x: Value, y: Value, gate: Value | None) -> Value:
        """``x + y * gate``."""
        graph = self._layers.graph
        return graph.add(x, y if gate is None else graph.mul(y, gate))
