"""GR00T N1.7: the first layers of a Qwen3-VL, and a diffusion transformer that looks at what they give.

What the transformer's layers see of pictures and words does not change while it denoises, so their keys and values are
made once, with the prefix. Layers look at the words and at the pictures in turn: each gets the rows that it sees and no
others. A checkpoint has matrices for many robots; a graph has those of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..graph_parts import AttentionShape, Value
from ..lowerings.base import attention_by_parts, whole
from ..vision_families.layers import Layers
from ..weight_views import constant_weight, entry, reshaped, rows_between, turned
from ..weights import Weight, stack_rows
from .stack import PREFIX, Stack, StackShape, interval_bias, rope_inputs, table_rows

TEXT = "text."
EPSILON, LAST_EPSILON = 1e-5, 1e-6  # of layer norms, and of the one before the projection out
TIME_CHANNELS = 256  # that the transformer's own embedding of time takes
BLOCK, MIXER = "model.transformer_blocks.", "vl_self_attention.transformer_blocks."


@dataclass(frozen=True)
class GrootConfig:
    """Dimensions; ``embodiment`` is the robot's number among ``embodiments``."""

    text: StackShape
    rope_section: tuple[int, ...]
    planes: int  # that the image tower gives beside its rows
    normed: bool  # the backbone's rows go through a norm
    mixers: int  # layers in which these rows see each other once more
    mixer_heads: int
    layers: int
    heads: int
    head_dim: int
    words_every: int  # of the layers that look back, one in so many looks at words
    hidden: int  # of the embodiment's own networks
    rows: int
    padded_state: int
    padded_action: int
    positions: int  # of the learned table; 0: there is none
    embodiments: int
    embodiment: int
    steps: int
    buckets: int

    @property
    def width(self) -> int:
        """Of the diffusion transformer."""
        return self.heads * self.head_dim

    def looks_back(self, layer: int) -> str | None:
        """What a layer looks at: ``text``, ``image``, or None for the actions themselves."""
        if layer % 2:
            return None
        return "text" if layer % (2 * self.words_every) == 0 else "image"

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the graphs."""
        given, width, hidden, robots = self.text.hidden_size, self.width, self.hidden, self.embodiments
        linears: dict[str, tuple[int, int]] = {
            "model.timestep_encoder.timestep_embedder.linear_1": (width, TIME_CHANNELS),
            "model.timestep_encoder.timestep_embedder.linear_2": (width, width),
            "model.proj_out_1": (2 * width, width),
            "model.proj_out_2": (hidden, width),
        }
        norms = ["vlln"] if self.normed else []
        for layer in range(self.mixers):
            linears |= _block(f"{MIXER}{layer}.", given, given)
            norms += [f"{MIXER}{layer}.norm1", f"{MIXER}{layer}.norm3"]
        for layer in range(self.layers):
            linears |= _block(f"{BLOCK}{layer}.", width, given if self.looks_back(layer) else width)
            linears[f"{BLOCK}{layer}.norm1.linear"] = (2 * width, width)
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in linears.items():
            shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        for name in norms:
            shapes |= {f"{name}.weight": (given,), f"{name}.bias": (given,)}
        for name, (inputs, outputs) in {
            "state_encoder.layer1": (self.padded_state, hidden), "state_encoder.layer2": (hidden, width),
            "action_encoder.W1": (self.padded_action, width), "action_encoder.W2": (2 * width, width),
            "action_encoder.W3": (width, width),
            "action_decoder.layer1": (hidden, hidden), "action_decoder.layer2": (hidden, self.padded_action),
        }.items():  # fmt: skip
            shapes |= {f"{name}.W": (robots, inputs, outputs), f"{name}.b": (robots, outputs)}
        if self.positions:
            shapes["position_embedding.weight"] = (self.positions, width)
        return {**shapes, **self.text.tensors(), **self.text.norm_tensors()}


def _block(prefix: str, width: int, seen: int) -> Mapping[str, tuple[int, int]]:
    return {
        f"{prefix}attn1.to_q": (width, width), f"{prefix}attn1.to_k": (width, seen),
        f"{prefix}attn1.to_v": (width, seen), f"{prefix}attn1.to_out.0": (width, width),
        f"{prefix}ff.net.0.proj": (4 * width, width), f"{prefix}ff.net.2": (width, 4 * width),
    }  # fmt: skip


def build_prefix(layers: Layers, config: GrootConfig) -> None:
    """Pictures and words in their places in, keys and values of each layer that looks at them out.

    ``prefix_embeds`` and ``deepstack_0``, … [1,P,hidden]; ``text_rows`` and ``image_rows``: which of the P are what.
    """
    graph, shape = layers.graph, config.text
    graph.input("prefix_embeds", "float32", [1, PREFIX, shape.hidden_size])
    stack, x = Stack(layers, shape), graph.as_element("prefix_embeds")
    tables, bias = rope_inputs(graph, "rope", PREFIX, shape.head_dim), None
    for index in range(shape.layers):
        y = stack.norm(x, f"{shape.layer(index)}input_layernorm")
        keys, values = stack.turned(*stack.keys_and_values(y, index, tables))
        bias = bias or interval_bias(graph, PREFIX, keys)
        x = graph.add(x, stack.attend(stack.queries(y, index, tables), keys, values, bias, index))
        x = graph.add(x, stack.mlp(stack.norm(x, f"{shape.layer(index)}post_attention_layernorm"), index))
        if index < config.planes:
            graph.input(f"deepstack_{index}", "float32", [1, PREFIX, shape.hidden_size])
            x = graph.add(x, graph.as_element(f"deepstack_{index}"))
    if config.normed:
        x = layers.layer_norm(x, "vlln", EPSILON)
    for index in range(config.mixers):
        x = _mixed(layers, x, f"{MIXER}{index}.", config.mixer_heads, shape.hidden_size // config.mixer_heads)
    rows = {kind: graph.input(f"{kind}_rows", "int32", [kind]) for kind in ("text", "image")}
    seen = {kind: graph.node("Gather", [x, index], axis=1)[0] for kind, index in rows.items()}
    for index in range(config.layers):
        kind = config.looks_back(index)
        if kind is None:
            continue
        name = f"{BLOCK}{index}.attn1."
        fused = layers.linear(seen[kind], f"{name}to_k", f"{name}to_v")
        key, value = (
            layers.reshape(part, 0, 0, config.heads, config.head_dim) for part in graph.split(fused, [config.width] * 2)
        )
        for part, order, layout in (("key", (0, 2, 3, 1), (config.head_dim, kind)),
                                    ("value", (0, 2, 1, 3), (kind, config.head_dim))):  # fmt: skip
            turned_part = layers.transpose(key if part == "key" else value, *order)
            graph.output(turned_part, f"{kind}_{part}_{index}", graph.element, [1, config.heads, *layout])


def _mixed(layers: Layers, x: Value, prefix: str, heads: int, head_dim: int) -> Value:
    """A layer in which all rows see each other."""
    graph = layers.graph
    y = _attention_to_itself(layers, layers.layer_norm(x, f"{prefix}norm1", EPSILON), prefix, heads, head_dim)
    x = graph.add(x, y)
    return graph.add(x, _feed_forward(layers, layers.layer_norm(x, f"{prefix}norm3", EPSILON), prefix))


def _attention_to_itself(layers: Layers, y: Value, prefix: str, heads: int, head_dim: int) -> Value:
    names = (f"{prefix}attn1.to_{part}" for part in "qkv")
    width = heads * head_dim
    fused = layers.linear(y, *names, scale=head_dim**-0.5)
    return layers.linear(
        layers.attention(layers.graph.split(fused, [width] * 3), heads, head_dim), f"{prefix}attn1.to_out.0"
    )


def _feed_forward(layers: Layers, y: Value, prefix: str) -> Value:
    inner = layers.graph.gelu_tanh(layers.linear(y, f"{prefix}ff.net.0.proj"))
    return layers.linear(inner, f"{prefix}ff.net.2")


def build_time(layers: Layers, config: GrootConfig) -> None:
    """``time_embedding`` [1,width+256] in; ``modulation`` [1,2*layers+3,width] out.

    For each layer and for the end 1 + scale and shift, then what the action encoder makes of time.
    """
    graph, width, steps = layers.graph, config.width, config.layers + 1
    graph.input("time_embedding", "float32", [1, width + TIME_CHANNELS])
    own, common = graph.split(graph.as_element("time_embedding"), [width, TIME_CHANNELS])
    root = "model.timestep_encoder.timestep_embedder.linear_"
    common = graph.silu(layers.linear(graph.silu(layers.linear(common, f"{root}1")), f"{root}2"))
    names = [f"{BLOCK}{layer}.norm1.linear" for layer in range(config.layers)]
    stacked = []
    for kind in ("weight", "bias"):
        last = layers.weights[f"model.proj_out_1.{kind}"]  # this one has the shift first
        ordered = [rows_between(last, width, 2 * width), rows_between(last, 0, width)]
        stacked.append(stack_rows([layers.weights[f"{name}.{kind}"] for name in names] + ordered))
    common = layers.reshape(graph.linear(common, *stacked), 1, 2 * steps, width)
    ones = np.zeros((1, 2 * steps, 1), dtype=graph.element)
    ones[:, ::2] = 1
    common = graph.add(common, graph.constant(ones))
    matrix, bias = _own(layers, config, "action_encoder.W2")
    late = turned(rows_between(matrix, width, 2 * width))
    own = layers.reshape(layers.product(own, late, bias), 1, 1, width)
    (both,) = graph.node("Concat", [common, own], axis=1)
    graph.output(both, "modulation", graph.element, [1, 2 * steps + 1, width])


def _own(layers: Layers, config: GrootConfig, name: str) -> tuple[Weight, Weight]:
    """The robot's matrix [inputs, outputs] and bias."""
    matrix, bias = (entry(layers.weights[f"{name}.{kind}"], config.embodiment) for kind in "Wb")
    return matrix, bias


def _product(layers: Layers, config: GrootConfig, x: Value, name: str) -> Value:
    matrix, bias = _own(layers, config, name)
    return layers.product(x, turned(matrix), bias)


def _network(layers: Layers, config: GrootConfig, x: Value, name: str) -> Value:
    """Two layers of the robot's own."""
    (inner,) = layers.graph.node("Relu", [_product(layers, config, x, f"{name}.layer1")])
    return _product(layers, config, inner, f"{name}.layer2")


def _centred(layers: Layers, config: GrootConfig, x: Value, name: str, epsilon: float) -> Value:
    """A layer norm without weights."""
    values = (("ones", np.ones), ("zeros", np.zeros))
    weight, bias = (constant_weight(f"{name}.{kind}", make(config.width, np.float32)) for kind, make in values)
    return layers.lowering.layer_norm(layers.graph, x, weight, bias, epsilon)


def build_action(layers: Layers, config: GrootConfig) -> None:
    """``x_t`` [1,H,padded], ``state`` [1,padded], ``modulation`` and what the prefix gave; ``velocity`` out."""
    graph, width, rows, sites = layers.graph, config.width, config.rows, 2 * config.layers + 3
    graph.input("x_t", "float32", [1, rows, config.padded_action])
    graph.input("state", "float32", [1, config.padded_state])
    scales = table_rows(graph, graph.input("modulation", graph.element, [1, sites, width]), sites, width)
    x = _actions(layers, config, scales[-1])
    state = layers.reshape(_network(layers, config, graph.as_element("state"), "state_encoder"), 1, 1, width)
    (x,) = graph.node("Concat", [state, x], axis=1)
    for index in range(config.layers):
        prefix = f"{BLOCK}{index}."
        y = graph.mul(_centred(layers, config, x, f"{prefix}norm1", EPSILON), scales[2 * index])
        y = graph.add(y, scales[2 * index + 1])
        kind = config.looks_back(index)
        if kind is None:
            y = _attention_to_itself(layers, y, prefix, config.heads, config.head_dim)
        else:
            y = _attention_back(layers, config, y, index, kind)
        x = graph.add(x, y)
        x = graph.add(x, _feed_forward(layers, _centred(layers, config, x, f"{prefix}norm3", EPSILON), prefix))
    x = graph.mul(_centred(layers, config, x, "model.norm_out", LAST_EPSILON), scales[-3])
    x = layers.linear(graph.add(x, scales[-2]), "model.proj_out_2")
    (x,) = graph.node("Slice", [x, whole(graph, 1), whole(graph, rows + 1), whole(graph, 1)])
    graph.output(_network(layers, config, x, "action_decoder"), "velocity", "float32", [1, rows, config.padded_action])


def _actions(layers: Layers, config: GrootConfig, time: Value) -> Value:
    """The embedding of ``x_t`` at a time, [1,H,width]."""
    graph = layers.graph
    x = _product(layers, config, graph.as_element("x_t"), "action_encoder.W1")
    matrix, _ = _own(layers, config, "action_encoder.W2")
    x = graph.add(layers.product(x, turned(rows_between(matrix, 0, config.width))), time)
    x = _product(layers, config, graph.silu(x), "action_encoder.W3")
    if not config.positions:
        return x
    places = rows_between(layers.weights["position_embedding.weight"], 0, config.rows)
    return graph.add(x, graph.parameter(reshaped(places, 1, config.rows, config.width)))


def _attention_back(layers: Layers, config: GrootConfig, y: Value, index: int, kind: str) -> Value:
    graph, heads, size, name = layers.graph, config.heads, config.head_dim, f"{BLOCK}{index}.attn1."
    keys = graph.input(f"{kind}_key_{index}", graph.element, [1, heads, size, kind])
    values = graph.input(f"{kind}_value_{index}", graph.element, [1, heads, kind, size])
    query = layers.reshape(layers.linear(y, f"{name}to_q", scale=size**-0.5), 0, 0, heads, size)
    nothing = graph.constant(np.zeros((1, 1, 1, 1), dtype=graph.element))
    shape = AttentionShape(heads, heads, size, None)
    y = attention_by_parts(graph, layers.transpose(query, 0, 2, 1, 3), keys, values, nothing, shape)
    return layers.linear(layers.reshape(layers.transpose(y, 0, 2, 1, 3), 0, 0, config.width), f"{name}to_out.0")
