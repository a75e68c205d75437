"""TensorRT from 10.15 on and TensorRT-RTX: standard operators of opset 24, in the forms that its importer takes.

Beside the common inputs a graph has, for each layer i, ``past_key_i`` and ``past_value_i`` [B,kv_heads,L,head_dim]
with L the capacity of the engine, and as outputs ``present_key_i`` and ``present_value_i``: the same memory, to which
the chunk is written at ``past_length``. All S positions of a chunk are written, padding too, so ``past_length`` + S
is at most L in every row; what padding leaves there is never seen, and is overwritten by the next chunk.

* The mask is explicit: how a cached chunk aligns under ``is_causal`` differs between versions, and an importer may
  ignore ``nonpad_kv_seqlen`` without a word.
* ``scale`` is 1, since the importer multiplies queries and the whole cache by its square root.
* The importer has no soft cap: such layers are attention by parts, over the same cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..graph import Graph
from ..graph_parts import AttentionShape, Dimension, Parameter, StoredTensor, Value
from ..quantize import BLOCK, int8_bands
from ..quantize_int4 import int4_bands, pack
from ..weights import Weight
from .base import (
    BATCH,
    attention_by_parts,
    bias_of,
    declare_common_inputs,
    gather_positions,
    merge_heads,
    split_heads,
    visible,
)


class TensorRTLowering:
    """See the module."""

    name = "tensorrt"
    opsets: Mapping[str, int] = {"": 24}
    ir_version = 11
    precisions: Sequence[str] = ("fp32", "fp16", "bf16", "int8", "int4")
    varying_adapter_rows = False
    rounds_inputs = False

    def declare_inputs(self, graph: Graph, hidden_size: int, rope: Mapping[str, int]) -> Value:
        """See ``Lowering``."""
        return declare_common_inputs(graph, hidden_size, rope)

    def linear(self, graph: Graph, x: Value, weight: Weight, bias: Weight | None) -> Value:
        """See ``Lowering``."""
        bits = graph.precision.stored_bits(weight.name)
        matrix = graph.transposed_parameter(weight) if bits >= 16 else self._quantised(graph, weight, bits)
        (y,) = graph.node("MatMul", [x, matrix])
        return y if bias is None else graph.add(y, graph.parameter(bias))

    def _quantised(self, graph: Graph, weight: Weight, bits: int) -> Value:
        """[columns, rows], dequantised in blocks along the columns; symmetric, as the importer wants."""
        rows, columns = weight.shape
        if bits == 4 and rows % 2:
            bits = 8  # two rows share a byte
        block = graph.precision.block if bits == 4 else BLOCK
        blocks = -(-columns // block)
        integers = StoredTensor(f"{weight.name}.int{bits}", f"int{bits}", (columns, rows))
        scales = StoredTensor(f"{weight.name}.scale", "float32", (blocks, rows))

        def bands() -> Iterator[tuple[np.ndarray, ...]]:
            if bits == 8:
                for values, scale in int8_bands(weight):
                    yield values.reshape(len(values), -1)[:, :columns].T, scale.T
                return
            moments = graph.moments.get(weight.name)
            for values, scale, _ in int4_bands(weight, block, moments, symmetric=True):
                yield pack(values.reshape(len(values), -1)[:, :columns].T), scale.T

        graph.parameters.append(Parameter(weight.name, (integers, scales), bands, axis=1))
        return graph.node("DequantizeLinear", [Value(integers.name), Value(scales.name)], axis=0, block_size=block)[0]

    def rms_norm(self, graph: Graph, x: Value, weight: Weight, epsilon: float) -> Value:
        """See ``Lowering``."""
        return graph.node("RMSNormalization", [x, graph.parameter(weight)], axis=-1, epsilon=epsilon)[0]

    def gelu_tanh(self, graph: Graph, x: Value) -> Value:
        """See ``Lowering``."""
        return graph.node("Gelu", [x], approximate="tanh")[0]

    def attention(
        self, graph: Graph, query: Value, key: Value, value: Value, layer: int, shape: AttentionShape
    ) -> Value:
        """See ``Lowering``."""
        query = self._heads(graph, query, shape.heads, shape, shape.rope)
        keys = self._append(graph, self._heads(graph, key, shape.kv_heads, shape, shape.rope), f"key_{layer}", shape)
        values = self._append(graph, self._heads(graph, value, shape.kv_heads, shape, None), f"value_{layer}", shape)
        if shape.softcap:
            (turned,) = graph.node("Transpose", [keys], perm=[0, 1, 3, 2])
            output = attention_by_parts(graph, query, turned, values, self._bias(graph, shape.window), shape)
        else:
            mask = self._mask(graph, shape.window)
            (output,) = graph.node("Attention", [query, keys, values, mask], scale=1.0)
        return merge_heads(graph, output, shape)

    def _heads(self, graph: Graph, x: Value, heads: int, shape: AttentionShape, rope: str | None) -> Value:
        """[B,S,heads*head_dim] as [B,heads,S,head_dim], rotated."""
        (x,) = graph.node("Transpose", [split_heads(graph, x, heads, shape.head_dim)], perm=[0, 2, 1, 3])
        if rope is None:
            return x
        return graph.node(
            "RotaryEmbedding", [x, graph.as_element(f"rope_cos_{rope}"), graph.as_element(f"rope_sin_{rope}")]
        )[0]

    def _append(self, graph: Graph, new: Value, name: str, shape: AttentionShape) -> Value:
        """Write the chunk into the cache, in place; returns the cache."""
        cache: list[Dimension] = [BATCH, shape.kv_heads, graph.capacity, shape.head_dim]
        past = graph.input(f"past_{name}", graph.element, cache)
        graph.declare_output(f"present_{name}", graph.element, cache)
        if "write_index" not in graph.remembered:
            (graph.remembered["write_index"],) = graph.node("Cast", [Value("past_length")], to="int64")
        return graph.node(
            "TensorScatter", [past, new, graph.remembered["write_index"]], outputs=[f"present_{name}"], axis=-2
        )[0]

    def _mask(self, graph: Graph, window: int) -> Value:
        name = f"mask_{window}"
        if name not in graph.remembered:
            keys = np.arange(graph.capacity, dtype=np.int32).reshape(1, 1, 1, -1)
            graph.remembered[name] = visible(graph, graph.constant(keys), window)
        return graph.remembered[name]

    def _bias(self, graph: Graph, window: int) -> Value:
        name = f"bias_{window}"
        if name not in graph.remembered:
            graph.remembered[name] = bias_of(graph, self._mask(graph, window))
        return graph.remembered[name]

    def gather_positions(self, graph: Graph, x: Value, index: Value) -> Value:
        """See ``Lowering``."""
        return gather_positions(graph, x, index)
