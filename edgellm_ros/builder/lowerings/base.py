"""What a lowering must answer, and what most of them answer alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from ..elements import scalar
from ..graph import Graph
from ..graph_parts import AttentionShape, Value
from ..weights import Weight

ATTEND = ("attend_start", "attend_end")  # inputs of a graph with blocks
BATCH, SEQUENCE, ROWS, CAPACITY, PREFIX = "batch", "sequence", "rows", "capacity", "prefix"


class Lowering(Protocol):
    """Turns the functions of ``Graph`` into nodes of one engine library. Holds no state: that is the graph's."""

    name: str
    opsets: Mapping[str, int]  # domain -> version
    ir_version: int
    precisions: Sequence[str]
    varying_adapter_rows: bool  # whether a run may read fewer places for adapters than there are
    rounds_inputs: bool  # whether the inputs of quantised matrices are rounded too, as the engine runs

    def declare_inputs(self, graph: Graph, hidden_size: int, rope: Mapping[str, int]) -> Value:
        """Declare every input but the caches; ``rope`` maps kind to table width. Returns ``inputs_embeds``."""
        ...

    def linear(self, graph: Graph, x: Value, weight: Weight, bias: Weight | None) -> Value:
        """See ``Graph.linear``."""
        ...

    def rms_norm(self, graph: Graph, x: Value, weight: Weight, epsilon: float) -> Value:
        """See ``Graph.rms_norm``."""
        ...

    def gelu_tanh(self, graph: Graph, x: Value) -> Value:
        """See ``Graph.gelu_tanh``."""
        ...

    def attention(
        self, graph: Graph, query: Value, key: Value, value: Value, layer: int, shape: AttentionShape
    ) -> Value:
        """See ``Graph.attention``; declares the caches of the layer."""
        ...

    def gather_positions(self, graph: Graph, x: Value, index: Value) -> Value:
        """See ``Graph.gather_positions``."""
        ...


def whole(graph: Graph, *numbers: int) -> Value:
    """A constant vector of int64."""
    return graph.constant(np.array(numbers, dtype=np.int64))


def real(graph: Graph, number: float) -> Value:
    """A constant scalar element."""
    return graph.constant(scalar(number, graph.element))


def dimension(graph: Graph, x: Value, axis: int) -> Value:
    """Length of one axis, an int64 scalar. TensorRT 8 ignores the bounds that ``Shape`` itself may have."""
    (shape,) = graph.node("Shape", [x])
    return graph.node("Gather", [shape, graph.constant(np.array(axis, dtype=np.int64))], axis=0)[0]


def declare_common_inputs(graph: Graph, hidden_size: int, rope: Mapping[str, int]) -> Value:
    """The inputs that every lowering has, in the order of ``engine_format``; returns ``inputs_embeds`` as elements."""
    graph.input("inputs_embeds", "float32", [BATCH, SEQUENCE, hidden_size])
    for kind, width in rope.items():
        for table in (f"rope_cos_{kind}", f"rope_sin_{kind}"):
            graph.input(table, "float32", [BATCH, SEQUENCE, width])
    graph.input("past_length", "int32", [BATCH])
    graph.input("last_token_index", "int32", [BATCH, ROWS])
    for bound in ATTEND if graph.blocks else ():
        graph.input(bound, "int32", [BATCH, SEQUENCE])
    return graph.as_element("inputs_embeds")


def gather_positions(graph: Graph, x: Value, index: Value) -> Value:
    """GatherND over the sequence axis, row by row of the batch."""
    (wide,) = graph.node("Cast", [index], to="int64")
    (pairs,) = graph.node("Unsqueeze", [wide, whole(graph, 2)])
    return graph.node("GatherND", [x, pairs], batch_dims=1)[0]


def split_heads(graph: Graph, x: Value, heads: int, head_dim: int) -> Value:
    """[B,S,heads*head_dim] as [B,S,heads,head_dim]."""
    return graph.node("Reshape", [x, whole(graph, 0, 0, heads, head_dim)])[0]


def merge_heads(graph: Graph, x: Value, shape: AttentionShape) -> Value:
    """[B,heads,S,head_dim] as [B,S,heads*head_dim]."""
    (rows,) = graph.node("Transpose", [x], perm=[0, 2, 1, 3])
    return graph.node("Reshape", [rows, whole(graph, 0, 0, shape.heads * shape.head_dim)])[0]


def query_positions(graph: Graph) -> Value:
    """Position of every query, int32 [B,S], from ``past_length``; once per graph."""
    if "query_positions" not in graph.remembered:
        length = dimension(graph, Value("inputs_embeds"), 1)
        count = [graph.constant(np.array(number, dtype=np.int64)) for number in (0, 1)]
        (index,) = graph.node("Range", [count[0], length, count[1]])
        (index,) = graph.node("Cast", [index], to="int32")
        (past,) = graph.node("Unsqueeze", [Value("past_length"), whole(graph, 1)])
        graph.remembered["query_positions"] = graph.add(past, index)
    return graph.remembered["query_positions"]


def visible(graph: Graph, key_positions: Value, window: int) -> Value:
    """Which keys each query sees, bool [B,1,S,T]; key_positions int32 [B or 1,1,1,T]. Not beyond itself, and
    ``window`` back where that is not 0; or, in a graph with blocks, from ``attend_start`` to before ``attend_end`` and
    ``window`` back.
    """
    (queries,) = graph.node("Unsqueeze", [query_positions(graph), whole(graph, 1, 3)])
    if graph.blocks:
        start, end = (graph.node("Unsqueeze", [Value(bound), whole(graph, 1, 3)])[0] for bound in ATTEND)
        (seen,) = graph.node("Less", [key_positions, end])
        (seen,) = graph.node("And", [seen, graph.node("GreaterOrEqual", [key_positions, start])[0]])
    else:
        (seen,) = graph.node("LessOrEqual", [key_positions, queries])
    if window:
        reach = graph.constant(np.array(window, dtype=np.int32))
        (first,) = graph.node("Sub", [queries, reach])
        (near,) = graph.node("Greater", [key_positions, first])
        (seen,) = graph.node("And", [seen, near])
    return seen


def attention_by_parts(
    graph: Graph, query: Value, keys: Value, values: Value, bias: Value, shape: AttentionShape
) -> Value:
    """Attention without an attention operator: [B,heads,S,head_dim].

    query [B,heads,S,head_dim]; keys [B,kv_heads,head_dim,T], turned already; values [B,kv_heads,T,head_dim]; bias
    [B,1,S,T]. Queries of one key head are multiplied together, so that no key is copied.
    """
    grouped = whole(graph, 0, shape.kv_heads, -1, shape.head_dim)
    (rows,) = graph.node("Reshape", [query, grouped])
    (scores,) = graph.node("MatMul", [rows, keys])
    (scores,) = graph.node("Reshape", [scores, whole(graph, 0, shape.heads, -1, 0)])
    if shape.softcap:
        scores = graph.softcap(scores, shape.softcap)
    (weights,) = graph.node("Softmax", [graph.add(scores, bias)], axis=-1)
    (weights,) = graph.node("Reshape", [weights, whole(graph, 0, shape.kv_heads, -1, 0)])
    (rows,) = graph.node("MatMul", [weights, values])
    return graph.node("Reshape", [rows, whole(graph, 0, shape.heads, -1, shape.head_dim)])[0]


def bias_of(graph: Graph, seen: Value) -> Value:
    """0 where a key is seen, a large negative number elsewhere."""
    return graph.node("Where", [seen, real(graph, 0.0), real(graph, -1e9 if graph.element == "float32" else -6e4)])[0]
