"""What a lowering must answer, and what most of them answer alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from ..graph import AttentionShape, Graph, Value
from ..weights import Weight

BATCH, SEQUENCE, ROWS, CAPACITY = "batch", "sequence", "rows", "capacity"


class Lowering(Protocol):
    """Turns the functions of ``Graph`` into nodes of one engine library. Holds no state: that is the graph's."""

    name: str
    opsets: Mapping[str, int]  # domain -> version
    ir_version: int
    precisions: Sequence[str]

    def declare_inputs(self, graph: Graph, hidden_size: int, rope: Mapping[str, int]) -> Value:
        """Declare every input but the caches; ``rope`` maps kind to table width. Returns ``inputs_embeds``."""
        ...

    def linear(self, graph: Graph, x: Value, weight: Weight, bias: Weight | None) -> Value:
        """See ``Graph.linear``."""
        ...

    def rms_norm(self, graph: Graph, x: Value, weight: Weight, epsilon: float) -> Value:
        """See ``Graph.rms_norm``."""
        ...

    def rope(self, graph: Graph, x: Value, kind: str, heads: int, head_dim: int) -> Value:
        """See ``Graph.rope``."""
        ...

    def attention(
        self, graph: Graph, query: Value, key: Value, value: Value, layer: int, shape: AttentionShape
    ) -> Value:
        """See ``Graph.attention``; declares the caches of the layer."""
        ...

    def gather_positions(self, graph: Graph, x: Value, index: Value) -> Value:
        """See ``Graph.gather_positions``."""
        ...


def declare_common_inputs(graph: Graph, hidden_size: int, rope: Mapping[str, int]) -> Value:
    """The inputs that every lowering has, in the order of ``engine_format``; returns ``inputs_embeds``."""
    embeddings = graph.input("inputs_embeds", "float32", [BATCH, SEQUENCE, hidden_size])
    for kind, width in rope.items():
        for table in (f"rope_cos_{kind}", f"rope_sin_{kind}"):
            graph.input(table, "float32", [BATCH, SEQUENCE, width])
    graph.input("past_length", "int32", [BATCH])
    graph.input("query_length", "int32", [BATCH])
    graph.input("last_token_index", "int32", [BATCH, ROWS])
    return embeddings


def gather_positions(graph: Graph, x: Value, index: Value) -> Value:
    """GatherND over the sequence axis, row by row of the batch."""
    (wide,) = graph.node("Cast", [index], to="int64")
    (pairs,) = graph.node("Unsqueeze", [wide, graph.constant(np.array([2], dtype=np.int64))])
    return graph.node("GatherND", [x, pairs], batch_dims=1)[0]
