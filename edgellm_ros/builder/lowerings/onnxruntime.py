"""ONNX Runtime: the only place that knows its own operators (domain com.microsoft) and what is fast there.

* ``GroupQueryAttention`` takes the capacity of the cache as the total length, because ``query_seqlens`` says how
  many positions each row adds; its cost follows the length in use. Rotation stays outside: inside, it would derive
  positions from lengths, and positions with gaps could not be told.
* ``FusedMatMul(transB=1)`` reads matrices as checkpoints store them; it is as fast as a transposed copy.
* ``MatMulNBits`` needs ``accuracy_level=4`` (integer dot products) and integer zero points, else it is ten times
  slower.
* fp16 is for the CUDA provider, whose ``GroupQueryAttention`` has no ``query_seqlens`` and computes in no float32:
  there every row of a chunk adds all its positions, padding too, and only one row at a time more than one. A small
  model's step is as long as it has kernels, so there sums and norms are one node, and packed queries, keys and values
  are rotated inside the attention: by our tables, in which the row of a position is found through ``position_ids``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...errors import CheckpointError
from ..graph import Graph
from ..graph_parts import AttentionShape, Dimension, Parameter, StoredTensor, Value
from ..quantize import BLOCK, int8_bands
from ..quantize_int4 import int4_bands, pack
from ..weights import Weight
from .base import BATCH, CAPACITY, bias_of, declare_common_inputs, dimension, gather_positions, visible, whole

MICROSOFT = "com.microsoft"
HEAD_MULTIPLE = 8  # of GroupQueryAttention
ROTATED_HEAD_MULTIPLE = 16  # where it rotates


class OnnxRuntimeLowering:
    """See the module."""

    name = "onnxruntime"
    opsets: Mapping[str, int] = {"": 23, MICROSOFT: 1}
    ir_version = 11
    precisions: Sequence[str] = ("fp32", "fp16", "int8", "int4")
    varying_adapter_rows = True
    rounds_inputs = True

    def declare_inputs(self, graph: Graph, hidden_size: int, rope: Mapping[str, int]) -> Value:
        """See ``Lowering``."""
        embeddings = declare_common_inputs(graph, hidden_size, rope)
        if _ragged(graph):
            graph.input("query_length", "int32", [BATCH])
        return embeddings

    def linear(self, graph: Graph, x: Value, weight: Weight, bias: Weight | None) -> Value:
        """See ``Lowering``."""
        bits = graph.precision.stored_bits(weight.name)
        if bits >= 16:
            (y,) = graph.node("FusedMatMul", [x, graph.parameter(weight)], domain=MICROSOFT, transB=1)
        else:
            y = self._quantised(graph, x, weight, bits)
        return y if bias is None else graph.add(y, graph.parameter(bias))

    def _quantised(self, graph: Graph, x: Value, weight: Weight, bits: int) -> Value:
        rows, columns = weight.shape
        block = graph.precision.block if bits == 4 else BLOCK
        blocks = -(-columns // block)
        tensors = [
            StoredTensor(f"{weight.name}.int{bits}", "uint8", (rows, blocks, block * bits // 8)),
            StoredTensor(f"{weight.name}.scale", "float32", (rows, blocks)),
        ]
        if bits == 4:
            tensors.append(StoredTensor(f"{weight.name}.zero", "uint8", (rows, -(-blocks // 2))))
        graph.parameters.append(Parameter(weight.name, tuple(tensors), lambda: _bands(graph, weight, bits, block)))
        return graph.node(
            "MatMulNBits",
            [x, *(Value(tensor.name) for tensor in tensors)],
            domain=MICROSOFT,
            K=columns,
            N=rows,
            bits=bits,
            block_size=block,
            accuracy_level=4,
        )[0]

    def rms_norm(self, graph: Graph, x: Value, weight: Weight, epsilon: float) -> Value:
        """See ``Lowering``."""
        parts = graph.take_back(x, "Add") if graph.element == "float16" else None
        if parts is not None:
            inputs = [*(Value(name) for name in parts.inputs), graph.parameter(weight)]
            return graph.node(
                "SkipSimplifiedLayerNormalization",
                inputs,
                outputs=[None, "", "", x.name],
                domain=MICROSOFT,
                epsilon=epsilon,
            )[0]
        return graph.node("RMSNormalization", [x, graph.parameter(weight)], axis=-1, epsilon=epsilon)[0]

    def gelu_tanh(self, graph: Graph, x: Value) -> Value:
        """See ``Lowering``."""
        return graph.node("Gelu", [x], approximate="tanh")[0]

    def attention(
        self, graph: Graph, query: Value, key: Value, value: Value, layer: int, shape: AttentionShape
    ) -> Value:
        """See ``Lowering``.

        :raises CheckpointError: a head size that the operator does not take.
        """
        if shape.head_dim % HEAD_MULTIPLE:
            raise CheckpointError(
                f"head_dim is {shape.head_dim}; the lowering {self.name} wants a multiple of {HEAD_MULTIPLE}: build it "
                "with another lowering."
            )
        packed = None
        if graph.blocks and graph.element == "float16":
            raise CheckpointError(
                f"this architecture lets image tokens see each other, and the lowering {self.name} has no such mask in "
                "fp16; build it with --lowering tensorrt, or as fp32 or int8."
            )
        if graph.element == "float16" and shape.rope is not None and shape.head_dim % ROTATED_HEAD_MULTIPLE == 0:
            packed = graph.take_back(query, "Split")
        if packed is None:
            query = self._rotate(graph, query, shape.heads, shape.rope)
            key = self._rotate(graph, key, shape.kv_heads, shape.rope)
        projected: list[Value | None] = [query, key, value] if packed is None else [Value(packed.inputs[0]), None, None]
        cache: list[Dimension] = [BATCH, shape.kv_heads, CAPACITY, shape.head_dim]
        past = [graph.input(f"past_{kind}_{layer}", graph.element, cache) for kind in ("key", "value")]
        present = [f"present_{kind}_{layer}" for kind in ("key", "value")]
        for name in present:
            graph.declare_output(name, graph.element, cache)
        last_position, total = self._lengths(graph, past[0])
        rest: list[Value | None] = []  # inputs from 7 on: rotary tables, positions, bias, sink, scales, norms, lengths
        if graph.blocks:
            rest = [*[None] * 3, self._bias(graph, past[0], shape.window)]
        elif _ragged(graph):
            rest = [*[None] * 9, Value("query_length")]
        elif packed is not None:
            rest = self._inner_rope(graph, str(shape.rope))
        return graph.node(
            "GroupQueryAttention",
            [*projected, *past, last_position, total, *rest],
            outputs=[None, *present],
            domain=MICROSOFT,
            num_heads=shape.heads,
            kv_num_heads=shape.kv_heads,
            scale=1.0,
            do_rotary=int(packed is not None),
            **self._optional_attributes(graph, shape),
        )[0]

    def _rotate(self, graph: Graph, x: Value, heads: int, rope: str | None) -> Value:
        if rope is None:
            return x
        tables = [graph.as_element(f"rope_{table}_{rope}") for table in ("cos", "sin")]
        return graph.node("RotaryEmbedding", [x, *tables], num_heads=heads)[0]

    def _optional_attributes(self, graph: Graph, shape: AttentionShape) -> dict[str, float]:
        """Window and soft cap; how many keys the window must let through is noted for the runtime to check."""
        attributes: dict[str, float] = {}
        if shape.softcap:
            attributes["softcap"] = shape.softcap
        if graph.blocks:
            attributes["causal"] = 0  # the bias tells all
        elif shape.window:
            attributes["local_window_size"] = shape.window
            graph.metadata |= {"sliding_window": str(shape.window), "local_window_size": str(shape.window)}
        return attributes

    def _lengths(self, graph: Graph, cache: Value) -> tuple[Value, Value]:
        """Index of each row's last position, int32 [B], and the capacity, an int32 scalar; once per graph."""
        if "last_position" not in graph.remembered:
            if _ragged(graph):
                (length,) = graph.node("Add", [Value("past_length"), Value("query_length")])
                one = graph.constant(np.array(1, dtype=np.int32))
                (graph.remembered["last_position"],) = graph.node("Sub", [length, one])
            else:
                graph.remembered["last_position"] = graph.add(Value("past_length"), self._last_of_chunk(graph))
            (shape,) = graph.node("Shape", [cache], start=2, end=3)
            (capacity,) = graph.node("Squeeze", [shape])
            (graph.remembered["capacity"],) = graph.node("Cast", [capacity], to="int32")
        return graph.remembered["last_position"], graph.remembered["capacity"]

    def _bias(self, graph: Graph, cache: Value, window: int) -> Value:
        """What each position of the chunk sees of the cache, float32 [B,1,S,capacity]; once per graph and window.

        The operator takes such a bias for one row, or for one position of each.
        """
        name = f"bias_{window}"
        if name not in graph.remembered:
            ends = [graph.constant(np.array(number, dtype=np.int64)) for number in (0, 1)]
            (keys,) = graph.node("Range", [ends[0], dimension(graph, cache, 2), ends[1]])
            (keys,) = graph.node("Cast", [keys], to="int32")
            (keys,) = graph.node("Reshape", [keys, whole(graph, 1, 1, 1, -1)])
            graph.remembered[name] = bias_of(graph, visible(graph, keys, window))
        return graph.remembered[name]

    def _inner_rope(self, graph: Graph, kind: str) -> list[Value | None]:
        """Tables with a row for each position of the call, and which row is whose; once per graph and kind.

        The operator wants as many rows as the cache has positions; those behind the call's own are never read.
        """
        found: list[Value | None] = []
        for table in (f"rope_cos_{kind}", f"rope_sin_{kind}"):
            name = f"rows of {table}"
            if name not in graph.remembered:
                width = next(info.shape[2] for info in graph.inputs if info.name == table)
                assert isinstance(width, int)
                (rows,) = graph.node("Reshape", [graph.as_element(table), whole(graph, -1, width)])
                filler = graph.constant(np.zeros((graph.capacity, width), dtype=graph.element))
                (graph.remembered[name],) = graph.node("Concat", [rows, filler], axis=0)
            found.append(graph.remembered[name])
        if "row_of_position" not in graph.remembered:
            (shape,) = graph.node("Shape", [Value("inputs_embeds")])
            (sizes,) = graph.node("Slice", [shape, whole(graph, 0), whole(graph, 2)])
            (count,) = graph.node("ReduceProd", [sizes], keepdims=0)
            ends = [graph.constant(np.array(number, dtype=np.int64)) for number in (0, 1)]
            (index,) = graph.node("Range", [ends[0], count, ends[1]])
            (graph.remembered["row_of_position"],) = graph.node("Reshape", [index, sizes])
        return [*found, graph.remembered["row_of_position"]]

    def _last_of_chunk(self, graph: Graph) -> Value:
        """S - 1, int32 [1], made by a Range: on a GPU that is a kernel, where a Cast would be a copy from the host."""
        length = dimension(graph, Value("inputs_embeds"), 1)
        one = graph.constant(np.array(1, dtype=np.int64))
        (last,) = graph.node("Sub", [length, one])
        (index,) = graph.node("Range", [last, length, one])
        return graph.node("Cast", [index], to="int32")[0]

    def gather_positions(self, graph: Graph, x: Value, index: Value) -> Value:
        """See ``Lowering``."""
        return gather_positions(graph, x, index)


def _bands(graph: Graph, weight: Weight, bits: int, block: int) -> Iterator[tuple[np.ndarray, ...]]:
    """What ``MatMulNBits`` takes, band by band; eight bits have its own zero point of 128, four have theirs."""
    if bits == 8:
        for integers, scale in int8_bands(weight):
            yield integers.view(np.uint8) ^ np.uint8(0x80), scale
        return
    for integers, scale, zero in int4_bands(weight, block, graph.moments.get(weight.name), symmetric=False):
        yield pack(integers), scale, pack(zero)


def _ragged(graph: Graph) -> bool:
    """Whether rows of one call may add different numbers of positions."""
    return graph.element == "float32" and not graph.blocks
