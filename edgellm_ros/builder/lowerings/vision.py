"""What an image tower needs beyond the functions of a decoder, for each engine library.

Towers keep no cache and see all of an image at once, so their nodes are simpler than a decoder's. Eight bits for ONNX
Runtime are not those of a decoder: where hundreds of rows meet a matrix, integer products of whole matrices
(activations quantised as they come, one scale for each output) are several times faster than products in blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from ...backends.integer_probe import INTEGER_PRODUCTS
from ..graph import Graph
from ..graph_parts import AttentionShape, Parameter, StoredTensor, Value
from ..weights import Weight
from .base import attention_by_parts, real, whole
from .onnxruntime import MICROSOFT

LARGEST_INTEGER = 127
ZERO = 128  # of pixels of 0 to 255


class VisionLowering(Protocol):
    """The nodes of one engine library. Holds no state: that is the graph's.

    ``levels``: how pixels of 0 to 255 come in; ``cuts_levels``: they may be cut into patches before they are numbers.
    """

    levels: str
    cuts_levels: bool

    def centred_levels(self, graph: Graph, levels: Value) -> Value:
        """Pixels of 0 to 255 as elements ``(level - ZERO) / ZERO``."""
        ...

    def linear(self, graph: Graph, x: Value, weight: Weight, bias: Weight | None, *, uneven: bool = False) -> Value:
        """``x @ weight.T + bias`` at the precision of the graph; x [...,columns].

        ``uneven``: no norm has brought the rows of x to one size, and a few numbers may be far larger than the rest.
        """
        ...

    def layer_norm(self, graph: Graph, x: Value, weight: Weight, bias: Weight, epsilon: float) -> Value:
        """Mean and variance over the last axis."""
        ...

    def gelu(self, graph: Graph, x: Value) -> Value:
        """GELU with the error function."""
        ...

    def attention(self, graph: Graph, query: Value, key: Value, value: Value, heads: int, head_dim: int) -> Value:
        """Every position sees every other; all [N,S,heads*head_dim], queries scaled already."""
        ...

    def rotate(self, graph: Graph, x: Value, cosine: Value, sine: Value, heads: int, head_dim: int) -> Value:
        """Rotate the halves of each head; x [N,S,heads*head_dim], tables [N,S,head_dim/2]."""
        ...


def heads_apart(graph: Graph, x: Value, heads: int, head_dim: int) -> Value:
    """[N,S,heads*head_dim] as [N,heads,S,head_dim]."""
    (x,) = graph.node("Reshape", [x, whole(graph, 0, 0, heads, head_dim)])
    return graph.node("Transpose", [x], perm=[0, 2, 1, 3])[0]


def heads_together(graph: Graph, x: Value, width: int) -> Value:
    """[N,heads,S,head_dim] as [N,S,width]."""
    (x,) = graph.node("Transpose", [x], perm=[0, 2, 1, 3])
    return graph.node("Reshape", [x, whole(graph, 0, 0, width)])[0]


def attention_in_parts(
    graph: Graph, query: Value, key: Value, value: Value, heads: int, head_dim: int, bias: Value
) -> Value:
    """As ``VisionLowering.attention``, with ``bias`` added to the scores [N,heads,S,S]."""
    shape = AttentionShape(heads, heads, head_dim, None)
    query, value = heads_apart(graph, query, heads, head_dim), heads_apart(graph, value, heads, head_dim)
    (keys,) = graph.node("Transpose", [heads_apart(graph, key, heads, head_dim)], perm=[0, 1, 3, 2])
    return heads_together(graph, attention_by_parts(graph, query, keys, value, bias, shape), heads * head_dim)


class OnnxRuntimeVision:
    """Operators of ONNX Runtime's own domain."""

    levels = "uint8"
    cuts_levels = True

    def centred_levels(self, graph: Graph, levels: Value) -> Value:
        """See ``VisionLowering``: exact in every precision, and of nodes that no library leaves to the CPU."""
        (x,) = graph.node("Cast", [levels], to=graph.element)
        return graph.node("Sub", [graph.mul(x, real(graph, 1 / ZERO)), real(graph, 1.0)])[0]

    def linear(self, graph: Graph, x: Value, weight: Weight, bias: Weight | None, *, uneven: bool = False) -> Value:
        """See ``VisionLowering``."""
        if graph.precision.stored_bits(weight.name) >= 16:
            return graph.linear(x, weight, bias)
        graph.metadata[INTEGER_PRODUCTS] = "1"
        rows, columns = weight.shape
        integers = StoredTensor(f"{weight.name}.int8", "int8", (columns, rows))
        scales = StoredTensor(f"{weight.name}.scale", "float32", (rows,))

        def bands(part: int) -> Iterator[tuple[np.ndarray, ...]]:
            for start, stop in weight.bands():
                yield (quantize_rows(weight.read_checked(start, stop))[part],)

        graph.parameters.append(Parameter(weight.name, (integers,), lambda: ((b.T,) for (b,) in bands(0)), axis=1))
        graph.parameters.append(Parameter(weight.name, (scales,), lambda: bands(1)))
        if uneven:
            return self._in_two_parts(graph, x, integers, scales, bias)
        inputs = [x, Value(integers.name), Value(scales.name), None, None if bias is None else graph.parameter(bias)]
        return graph.node("DynamicQuantizeMatMul", inputs, domain=MICROSOFT)[0]

    def _in_two_parts(
        self, graph: Graph, x: Value, integers: StoredTensor, scales: StoredTensor, bias: Weight | None
    ) -> Value:
        """What one quantisation leaves over is quantised by itself: the inputs have sixteen bits, the weights eight."""

        def product(part: Value, step: Value, zero: Value, *last: Value | None) -> Value:
            inputs = [part, Value(integers.name), step, Value(scales.name), zero, *last]
            return graph.node("MatMulIntegerToFloat", inputs, domain=MICROSOFT)[0]

        rounded, scale, zero = graph.node("DynamicQuantizeLinear", [x], outputs=[None, None, None])
        (large,) = graph.node("DequantizeLinear", [rounded, scale, zero])
        (small,) = graph.node("Sub", [x, large])  # up to half of ``scale`` either way, so its own needs no search
        step, middle = graph.mul(scale, real(graph, 1 / 255)), graph.constant(np.array(128, dtype=np.uint8))
        (rest,) = graph.node("QuantizeLinear", [small, step, middle])
        last = () if bias is None else (None, graph.parameter(bias))
        return graph.add(product(rounded, scale, zero), product(rest, step, middle, *last))

    def layer_norm(self, graph: Graph, x: Value, weight: Weight, bias: Weight, epsilon: float) -> Value:
        """See ``VisionLowering``."""
        parts = [x, graph.parameter(weight), graph.parameter(bias)]
        return graph.node("LayerNormalization", parts, axis=-1, epsilon=epsilon)[0]

    def gelu(self, graph: Graph, x: Value) -> Value:
        """See ``VisionLowering``."""
        return graph.node("Gelu", [x])[0]

    def attention(self, graph: Graph, query: Value, key: Value, value: Value, heads: int, head_dim: int) -> Value:
        """See ``VisionLowering``."""
        parts = [query, key, value]
        return graph.node("MultiHeadAttention", parts, domain=MICROSOFT, num_heads=heads, scale=1.0)[0]

    def rotate(self, graph: Graph, x: Value, cosine: Value, sine: Value, heads: int, head_dim: int) -> Value:
        """See ``VisionLowering``."""
        return graph.node("RotaryEmbedding", [x, cosine, sine], num_heads=heads)[0]


class TensorRTVision(OnnxRuntimeVision):
    """Standard operators of opset 24."""

    cuts_levels = False  # the importer wants a cast right behind an input of bytes

    def linear(self, graph: Graph, x: Value, weight: Weight, bias: Weight | None, *, uneven: bool = False) -> Value:
        """See ``VisionLowering``."""
        return graph.linear(x, weight, bias)

    def attention(self, graph: Graph, query: Value, key: Value, value: Value, heads: int, head_dim: int) -> Value:
        """See ``VisionLowering``."""
        parts = [heads_apart(graph, x, heads, head_dim) for x in (query, key, value)]
        (output,) = graph.node("Attention", parts, scale=1.0)
        return heads_together(graph, output, heads * head_dim)

    def rotate(self, graph: Graph, x: Value, cosine: Value, sine: Value, heads: int, head_dim: int) -> Value:
        """See ``VisionLowering``: on four axes, as the importer wants it."""
        (turned,) = graph.node("RotaryEmbedding", [heads_apart(graph, x, heads, head_dim), cosine, sine])
        return heads_together(graph, turned, heads * head_dim)


class TensorRTLegacyVision(TensorRTVision):
    """Primitives of opset 17."""

    levels = "float32"

    def layer_norm(self, graph: Graph, x: Value, weight: Weight, bias: Weight, epsilon: float) -> Value:
        """See ``VisionLowering``: sums in float32, since the square of an activation may be beyond float16."""
        wide = x if graph.element == "float32" else graph.node("Cast", [x], to="float32")[0]
        (mean,) = graph.node("ReduceMean", [wide], axes=[-1], keepdims=1)
        (centred,) = graph.node("Sub", [wide, mean])
        (variance,) = graph.node("ReduceMean", [graph.mul(centred, centred)], axes=[-1], keepdims=1)
        small = graph.constant(np.array(epsilon, dtype=np.float32))
        (size,) = graph.node("Sqrt", [graph.add(variance, small)])
        (unit,) = graph.node("Div", [centred, size])
        if graph.element != "float32":
            (unit,) = graph.node("Cast", [unit], to=graph.element)
        return graph.add(graph.mul(unit, graph.parameter(weight)), graph.parameter(bias))

    def gelu(self, graph: Graph, x: Value) -> Value:
        """See ``VisionLowering``."""
        (bent,) = graph.node("Erf", [graph.mul(x, real(graph, 0.5**0.5))])
        half = graph.mul(x, real(graph, 0.5))
        return graph.mul(half, graph.add(bent, real(graph, 1.0)))

    def attention(self, graph: Graph, query: Value, key: Value, value: Value, heads: int, head_dim: int) -> Value:
        """See ``VisionLowering``."""
        return attention_in_parts(graph, query, key, value, heads, head_dim, real(graph, 0.0))

    def rotate(self, graph: Graph, x: Value, cosine: Value, sine: Value, heads: int, head_dim: int) -> Value:
        """See ``VisionLowering``."""
        (x,) = graph.node("Reshape", [x, whole(graph, 0, 0, heads, head_dim)])
        cosine, sine = (graph.node("Unsqueeze", [table, whole(graph, 2)])[0] for table in (cosine, sine))
        left, right = graph.split(x, [head_dim // 2] * 2)
        (first,) = graph.node("Sub", [graph.mul(left, cosine), graph.mul(right, sine)])
        second = graph.add(graph.mul(right, cosine), graph.mul(left, sine))
        (x,) = graph.node("Concat", [first, second], axis=-1)
        return graph.node("Reshape", [x, whole(graph, 0, 0, heads * head_dim)])[0]


VISION_LOWERINGS: dict[str, VisionLowering] = {
    "onnxruntime": OnnxRuntimeVision(),
    "tensorrt": TensorRTVision(),
    "tensorrt_legacy": TensorRTLegacyVision(),
}


def quantize_rows(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float32 [n,columns] as int8 of -127..127 under one float32 scale a row."""
    largest = np.abs(values).max(axis=1)
    scales = np.where(largest > 0, largest / np.float32(LARGEST_INTEGER), np.float32(1)).astype(np.float32)
    return np.rint(values / scales[:, None]).astype(np.int8), scales
