"""Transformer layers without a cache of their own: the pass over a policy's prefix, and the expert that reads it.

The prefix pass gives for every layer what the expert needs of it, ready to use: keys [1,kv_heads,head_dim,P], turned,
and values [1,kv_heads,P,head_dim]. The expert's pass joins its own to them in every step; nothing of the prefix is
computed twice. What a row sees is an interval from 0: ``attend_end`` [1,S] int32, exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..graph import Graph
from ..graph_parts import AttentionShape, Value
from ..lowerings.base import attention_by_parts, bias_of, whole
from ..vision_families.layers import Layers
from ..weights import Weight, scaled, shifted

PREFIX = "prefix"
MOST_KEYS = 16384
MOST_PIECES = 32  # of a split whose places ONNX Runtime hands to a GPU without a copy from the host


@dataclass(frozen=True)
class StackShape:
    """Dimensions of a pile of decoder layers; ``root`` is where its tensors' names begin."""

    root: str
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    activation: str = "silu"
    norm_offset: float = 0.0  # norms multiply by offset + weight
    query_key_norm: bool = False

    @property
    def queries(self) -> int:
        """Width of all queries."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all keys, and of all values."""
        return self.kv_heads * self.head_dim

    def layer(self, index: int) -> str:
        """Where the names of a layer's tensors begin."""
        return f"{self.root}layers.{index}."

    def tensors(self, *, keys_from: Mapping[int, int] | None = None) -> dict[str, tuple[int, ...]]:
        """Shapes by name; ``keys_from`` gives the input width of layers whose keys come from elsewhere."""
        hidden, inner = self.hidden_size, self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {}
        for index in range(self.layers):
            width = (keys_from or {}).get(index, hidden)
            prefix = self.layer(index)
            shapes |= {
                f"{prefix}self_attn.q_proj.weight": (self.queries, hidden),
                f"{prefix}self_attn.k_proj.weight": (self.keys, width),
                f"{prefix}self_attn.v_proj.weight": (self.keys, width),
                f"{prefix}self_attn.o_proj.weight": (hidden, self.queries),
                f"{prefix}mlp.gate_proj.weight": (inner, hidden),
                f"{prefix}mlp.up_proj.weight": (inner, hidden),
                f"{prefix}mlp.down_proj.weight": (hidden, inner),
            }
            if self.query_key_norm:
                shapes |= {f"{prefix}self_attn.{kind}_norm.weight": (self.head_dim,) for kind in "qk"}
        return shapes

    def norm_tensors(self) -> dict[str, tuple[int, ...]]:
        """The plain norms of every layer."""
        return {
            f"{self.layer(index)}{name}.weight": (self.hidden_size,)
            for index in range(self.layers)
            for name in ("input_layernorm", "post_attention_layernorm")
        }


class Stack:
    """Writes layers of one pile into a graph."""

    def __init__(self, layers: Layers, shape: StackShape) -> None:
        self.layers, self.shape, self.graph = layers, shape, layers.graph

    def norm(self, x: Value, name: str) -> Value:
        """Root mean square, times offset + ``name``.weight."""
        return self.graph.rms_norm(x, self._norm_weight(name), self.shape.epsilon)

    def _norm_weight(self, name: str) -> Weight:
        return shifted(self.layers.weights[f"{name}.weight"], self.shape.norm_offset)

    def queries(self, x: Value, index: int, tables: tuple[Value, Value]) -> Value:
        """Scaled and rotated queries [1,heads,S,head_dim] of a layer's normalised input."""
        shape, prefix = self.shape, f"{self.shape.layer(index)}self_attn."
        factor = shape.head_dim**-0.5
        query = self.layers.linear(x, f"{prefix}q_proj", scale=1.0 if shape.query_key_norm else factor)
        if shape.query_key_norm:
            weight = scaled(self._norm_weight(f"{prefix}q_norm"), factor)
            query = self.graph.head_norm(query, weight, shape.epsilon, shape.heads)
        return self._heads(self._rotate(query, tables, shape.heads), shape.heads)

    def keys_and_values(self, x: Value, index: int, tables: tuple[Value, Value]) -> tuple[Value, Value]:
        """Rotated keys and plain values, [1,S,kv_heads*head_dim] each, of a layer's normalised input."""
        shape, prefix = self.shape, f"{self.shape.layer(index)}self_attn."
        key, value = (self.layers.linear(x, f"{prefix}{kind}_proj") for kind in "kv")
        if shape.query_key_norm:
            key = self.graph.head_norm(key, self._norm_weight(f"{prefix}k_norm"), shape.epsilon, shape.kv_heads)
        return self._rotate(key, tables, shape.kv_heads), value

    def turned(self, key: Value, value: Value) -> tuple[Value, Value]:
        """As attention takes them: keys [1,kv_heads,head_dim,S], values [1,kv_heads,S,head_dim]."""
        kv_heads = self.shape.kv_heads
        split = [self.layers.reshape(x, 0, 0, kv_heads, self.shape.head_dim) for x in (key, value)]
        return self.layers.transpose(split[0], 0, 2, 3, 1), self.layers.transpose(split[1], 0, 2, 1, 3)

    def attend(self, query: Value, keys: Value, values: Value, bias: Value, index: int) -> Value:
        """Attention and its output projection, [1,S,hidden]."""
        shape = self.shape
        attention = AttentionShape(shape.heads, shape.kv_heads, shape.head_dim, None)
        rows = attention_by_parts(self.graph, query, keys, values, bias, attention)
        joined = self.layers.reshape(self.layers.transpose(rows, 0, 2, 1, 3), 0, 0, shape.queries)
        return self.layers.linear(joined, f"{shape.layer(index)}self_attn.o_proj")

    def mlp(self, x: Value, index: int) -> Value:
        """Gated, [1,S,hidden]."""
        prefix = f"{self.shape.layer(index)}mlp."
        fused = self.layers.linear(x, f"{prefix}gate_proj", f"{prefix}up_proj")
        gate, up = self.graph.split(fused, [self.shape.intermediate_size] * 2)
        gate = self.layers.activation(gate, self.shape.activation)
        return self.layers.linear(self.graph.mul(gate, up), f"{prefix}down_proj")

    def _rotate(self, x: Value, tables: tuple[Value, Value], heads: int) -> Value:
        return self.layers.lowering.rotate(self.graph, x, *tables, heads, self.shape.head_dim)

    def _heads(self, x: Value, heads: int) -> Value:
        return self.layers.transpose(self.layers.reshape(x, 0, 0, heads, self.shape.head_dim), 0, 2, 1, 3)


def rope_inputs(graph: Graph, name: str, length: str | int, head_dim: int) -> tuple[Value, Value]:
    """Declare tables ``name``_cos and ``name``_sin, float32 [1,length,head_dim/2]."""
    for table in ("cos", "sin"):
        graph.input(f"{name}_{table}", "float32", [1, length, head_dim // 2])
    return graph.as_element(f"{name}_cos"), graph.as_element(f"{name}_sin")


def rope_constants(graph: Graph, head_dim: int, positions: np.ndarray, theta: float) -> tuple[Value, Value]:
    """Tables [1,S,head_dim/2] of positions that never change."""
    angles = positions[:, None] / theta ** (np.arange(head_dim // 2) * 2.0 / head_dim)
    cosine, sine = (graph.constant(function(angles)[None].astype(graph.element)) for function in (np.cos, np.sin))
    return cosine, sine


def interval_bias(graph: Graph, length: str | int, keys: Value) -> Value:
    """Declare ``attend_end`` [1,S]; 0 where a row sees a key and a large negative number elsewhere, [1,1,S,T].

    ``keys`` [...,T] is any tensor whose last axis is that of all keys, ``MOST_KEYS`` of them at most. Their numbers are
    cut from a constant: on a GPU a range that follows from a shape is made on the host and copied, and a recording
    would keep the address that it was copied from.
    """
    ends = graph.input("attend_end", "int32", [1, length])
    (shape,) = graph.node("Shape", [keys])
    (count,) = graph.node("Gather", [shape, whole(graph, -1)], axis=0)
    numbers = graph.constant(np.arange(MOST_KEYS, dtype=np.int32))
    (index,) = graph.node("Slice", [numbers, whole(graph, 0), count])
    (ends,) = graph.node("Unsqueeze", [ends, whole(graph, 1, 3)])
    (seen,) = graph.node("Less", [index, ends])
    return bias_of(graph, seen)


def prefix_pass(stack: Stack, x: Value, project: Mapping[int, Stack] | None = None) -> None:
    """Write the pass over the prefix: x [1,P,hidden] in, keys and values of every layer out.

    ``project`` names layers whose keys and values go through the projections of another pile's layer of that index.
    """
    graph, shape = stack.graph, stack.shape
    tables = rope_inputs(graph, "rope", PREFIX, shape.head_dim)
    bias = None
    for index in range(shape.layers):
        y = stack.norm(x, f"{shape.layer(index)}input_layernorm")
        key, value = stack.keys_and_values(y, index, tables)
        keys, values = stack.turned(key, value)
        other = (project or {}).get(index)
        if other is None:
            given = keys, values
        else:
            given = other.turned(
                other.layers.linear(key, f"{other.shape.layer(index)}self_attn.k_proj"),
                other.layers.linear(value, f"{other.shape.layer(index)}self_attn.v_proj"),
            )
        layout: list[list[int | str]] = [
            [1, shape.kv_heads, shape.head_dim, PREFIX],
            [1, shape.kv_heads, PREFIX, shape.head_dim],
        ]
        for tensor, kind, sizes in zip(given, ("key", "value"), layout, strict=True):
            graph.output(tensor, f"prefix_{kind}_{index}", graph.element, sizes)
        if index + 1 == shape.layers:
            break  # nobody reads what the last layer would add
        bias = bias or interval_bias(graph, PREFIX, keys)
        query = stack.queries(y, index, tables)
        x = graph.add(x, stack.attend(query, keys, values, bias, index))
        x = graph.add(x, stack.mlp(stack.norm(x, f"{shape.layer(index)}post_attention_layernorm"), index))


def prefix_inputs(graph: Graph, index: int, kv_heads: int, head_dim: int) -> tuple[Value, Value]:
    """Declare what the prefix pass gave for a layer; returns keys and values."""
    keys = graph.input(f"prefix_key_{index}", graph.element, [1, kv_heads, head_dim, PREFIX])
    values = graph.input(f"prefix_value_{index}", graph.element, [1, kv_heads, PREFIX, head_dim])
    return keys, values


def table_rows(graph: Graph, table: Value, count: int, width: int) -> list[Value]:
    """The ``count`` rows [1,1,width] of a table [1,...,width], at most ``MOST_PIECES`` from one operator."""
    (table,) = graph.node("Reshape", [table, whole(graph, 1, count, width)])
    rows: list[Value] = []
    for start in range(0, count, MOST_PIECES):
        stop = min(start + MOST_PIECES, count)
        (part,) = graph.node("Slice", [table, *(whole(graph, bound) for bound in (start, stop, 1))])
        if stop - start == 1:
            return [*rows, part]
        sizes = whole(graph, *[1] * (stop - start))
        rows += graph.node("Split", [part, sizes], outputs=[None] * (stop - start), axis=1)
    return rows


def embed_with_time(layers: Layers) -> Value:
    """``x_t`` [1,H,padded] and ``time_embedding`` [1,1,width] through one MLP, [1,H,width]."""
    graph = layers.graph
    action = layers.linear(graph.as_element("x_t"), "action_in_proj")
    (shape,) = graph.node("Shape", [action])
    (time,) = graph.node("Expand", [graph.as_element("time_embedding"), shape])
    (both,) = graph.node("Concat", [action, time], axis=2)
    return layers.linear(graph.silu(layers.linear(both, "action_time_mlp_in")), "action_time_mlp_out")
