"""TensorRT 8.5 to 10.14: primitives of opset 17, and a cache that the graph reads but never writes.

Beside the common inputs a graph has, for each layer i, ``past_key_i`` and ``past_value_i`` [P,B,kv_heads,head_dim]:
the first P positions of a cache laid out time first, [capacity,rows,kv_heads,head_dim], which with B = rows is the
start of its memory. P is any length from 1 to the capacity that is at least every row's ``past_length``; what lies
beyond a row's own is not seen. Outputs ``new_key_i`` and ``new_value_i`` [B,S,kv_heads,head_dim] are the chunk's own,
rotated: position j of row b belongs at [past_length[b] + j, b] of the cache, and those of padding nowhere. So the
cache is not copied, and a step costs what the length in use does, not the capacity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..graph import Graph
from ..graph_parts import AttentionShape, Dimension, Value
from ..weights import Weight
from .base import (
    BATCH,
    PREFIX,
    SEQUENCE,
    attention_by_parts,
    bias_of,
    declare_common_inputs,
    dimension,
    gather_positions,
    merge_heads,
    query_positions,
    real,
    split_heads,
    visible,
    whole,
)

_UNSEEN = 1 << 30  # a position after every query


class TensorRTLegacyLowering:
    """See the module."""

    name = "tensorrt_legacy"
    opsets: Mapping[str, int] = {"": 17}
    ir_version = 8
    precisions: Sequence[str] = ("fp32", "fp16", "bf16")
    varying_adapter_rows = False
    rounds_inputs = False

    def declare_inputs(self, graph: Graph, hidden_size: int, rope: Mapping[str, int]) -> Value:
        """See ``Lowering``."""
        return declare_common_inputs(graph, hidden_size, rope)

    def linear(self, graph: Graph, x: Value, weight: Weight, bias: Weight | None) -> Value:
        """See ``Lowering``."""
        (y,) = graph.node("MatMul", [x, graph.transposed_parameter(weight)])
        return y if bias is None else graph.add(y, graph.parameter(bias))

    def rms_norm(self, graph: Graph, x: Value, weight: Weight, epsilon: float) -> Value:
        """See ``Lowering``: in float32 throughout, since the square of an activation may be beyond float16."""
        wide = x if graph.element == "float32" else graph.node("Cast", [x], to="float32")[0]
        (mean,) = graph.node("ReduceMean", [graph.mul(wide, wide)], axes=[-1], keepdims=1)
        small = graph.constant(np.array(epsilon, dtype=np.float32))
        (size,) = graph.node("Sqrt", [graph.add(mean, small)])
        (unit,) = graph.node("Div", [wide, size])
        if graph.element != "float32":
            (unit,) = graph.node("Cast", [unit], to=graph.element)
        return graph.mul(unit, graph.parameter(weight))

    def gelu_tanh(self, graph: Graph, x: Value) -> Value:
        """See ``Lowering``: x * sigmoid(2 u) with u = sqrt(2/pi) * (x + 0.044715 x^3)."""
        inner = graph.add(graph.mul(graph.mul(x, x), real(graph, 0.044715)), real(graph, 1.0))
        doubled = graph.mul(graph.mul(x, inner), real(graph, 2 * (2 / np.pi) ** 0.5))
        return graph.mul(x, graph.node("Sigmoid", [doubled])[0])

    def attention(
        self, graph: Graph, query: Value, key: Value, value: Value, layer: int, shape: AttentionShape
    ) -> Value:
        """See ``Lowering``."""
        query, key = self._rotate(graph, query, shape.heads, shape), self._rotate(graph, key, shape.kv_heads, shape)
        value = split_heads(graph, value, shape.kv_heads, shape.head_dim)
        (query,) = graph.node("Transpose", [query], perm=[0, 2, 1, 3])
        # keys come out turned for the product: [B,kv_heads,head_dim,T], values as [B,kv_heads,T,head_dim]
        keys = self._extend(graph, f"key_{layer}", key, shape, ([1, 2, 3, 0], [0, 2, 3, 1]), 3)
        values = self._extend(graph, f"value_{layer}", value, shape, ([1, 2, 0, 3], [0, 2, 1, 3]), 2)
        output = attention_by_parts(graph, query, keys, values, self._bias(graph, shape.window), shape)
        return merge_heads(graph, output, shape)

    def _rotate(self, graph: Graph, x: Value, heads: int, shape: AttentionShape) -> Value:
        """[B,S,heads*head_dim] as [B,S,heads,head_dim], the halves of each head rotated."""
        x = split_heads(graph, x, heads, shape.head_dim)
        if shape.rope is None:
            return x
        cosine, sine = (self._table(graph, f"rope_{table}_{shape.rope}") for table in ("cos", "sin"))
        left, right = graph.split(x, [shape.head_dim // 2] * 2)
        (first,) = graph.node("Sub", [graph.mul(left, cosine), graph.mul(right, sine)])
        second = graph.add(graph.mul(right, cosine), graph.mul(left, sine))
        return graph.node("Concat", [first, second], axis=-1)[0]

    def _table(self, graph: Graph, name: str) -> Value:
        """A rope table with an axis for the heads; once per graph."""
        if name not in graph.remembered:
            (graph.remembered[name],) = graph.node("Unsqueeze", [graph.as_element(name), whole(graph, 2)])
        return graph.remembered[name]

    def _extend(
        self, graph: Graph, name: str, new: Value, shape: AttentionShape, turns: tuple[list[int], list[int]], axis: int
    ) -> Value:
        """The prefix of the cache with the chunk behind it, each turned first; the chunk also goes out."""
        cache: list[Dimension] = [PREFIX, BATCH, shape.kv_heads, shape.head_dim]
        past = graph.input(f"past_{name}", graph.element, cache)
        graph.output(new, f"new_{name}", graph.element, [BATCH, SEQUENCE, shape.kv_heads, shape.head_dim])
        parts = [graph.node("Transpose", [part], perm=turn)[0] for part, turn in zip((past, new), turns, strict=True)]
        return graph.node("Concat", parts, axis=axis)[0]

    def _key_positions(self, graph: Graph) -> Value:
        """Position of every key, int32 [B,1,1,P+S]; a slot of the prefix that its row has not reached is unseen."""
        if "key_positions" not in graph.remembered:
            length = dimension(graph, Value("past_key_0"), 0)
            count = [graph.constant(np.array(number, dtype=np.int64)) for number in (0, 1)]
            (index,) = graph.node("Range", [count[0], length, count[1]])
            (index,) = graph.node("Cast", [index], to="int32")
            (past,) = graph.node("Unsqueeze", [Value("past_length"), whole(graph, 1)])
            (reached,) = graph.node("Less", [index, past])
            (slots,) = graph.node("Where", [reached, index, graph.constant(np.array(_UNSEEN, dtype=np.int32))])
            (positions,) = graph.node("Concat", [slots, query_positions(graph)], axis=1)
            (graph.remembered["key_positions"],) = graph.node("Unsqueeze", [positions, whole(graph, 1, 2)])
        return graph.remembered["key_positions"]

    def _bias(self, graph: Graph, window: int) -> Value:
        name = f"bias_{window}"
        if name not in graph.remembered:
            graph.remembered[name] = bias_of(graph, visible(graph, self._key_positions(graph), window))
        return graph.remembered[name]

    def gather_positions(self, graph: Graph, x: Value, index: Value) -> Value:
        """See ``Lowering``."""
        return gather_positions(graph, x, index)
