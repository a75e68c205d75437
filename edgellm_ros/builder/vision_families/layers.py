"""What the towers write their graphs with: weights by name, norms, products, attention, over one ``Graph``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..graph import Graph
from ..graph_parts import Dimension, Value
from ..lowerings.base import real, whole
from ..lowerings.vision import VISION_LOWERINGS, attention_in_parts
from ..weight_views import first_rows_scaled, flattened
from ..weights import Weight, scaled, stack_rows
from .levels import Normalisation, folded

IMAGES, PATCHES = "images", "patches"  # dimensions that vary from run to run

Rotation = tuple[Value, Value]  # tables [N,S,head_dim/2]


class Layers:
    """One tower under construction; ``weights`` has every tensor of ``Tower.tensors``.

    With a ``normalisation`` pixel values are levels of 0 to 255, and the first product does what that says.
    """

    def __init__(self, graph: Graph, weights: Mapping[str, Weight], normalisation: Normalisation | None = None) -> None:
        self.graph, self.weights, self.normalisation = graph, weights, normalisation
        self.lowering = VISION_LOWERINGS[graph.lowering.name]

    def layer_norm(self, x: Value, name: str, epsilon: float) -> Value:
        """Tensors ``name``.weight and .bias."""
        return self.lowering.layer_norm(
            self.graph, x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], epsilon
        )

    def rms_norm(self, x: Value, name: str, epsilon: float) -> Value:
        """Tensor ``name``.weight."""
        return self.graph.rms_norm(x, self.weights[f"{name}.weight"], epsilon)

    def norm(self, x: Value, name: str, epsilon: float) -> Value:
        """A layer norm where the checkpoint has a bias for it, else a norm of root mean square."""
        return (self.layer_norm if f"{name}.bias" in self.weights else self.rms_norm)(x, name, epsilon)

    def linear(self, x: Value, *names: str, scale: float = 1.0, queries: int = 0, uneven: bool = False) -> Value:
        """One product for several projections of an input; ``scale`` goes to the first, or to its first rows.

        ``uneven``: no norm has brought the rows of the input to one size (see ``VisionLowering.linear``).
        """
        parts: list[list[Weight]] = []
        for kind in ("weight", "bias"):
            found = [self.weights[f"{name}.{kind}"] for name in names if f"{name}.{kind}" in self.weights]
            if found and found[0].name == f"{names[0]}.{kind}":
                found[0] = first_rows_scaled(found[0], queries, scale) if queries else scaled(found[0], scale)
            parts.append(found)
        matrices, biases = parts
        return self.product(x, stack_rows(matrices), stack_rows(biases) if biases else None, uneven=uneven)

    def product(self, x: Value, matrix: Weight, bias: Weight | None = None, *, uneven: bool = False) -> Value:
        """``x @ matrix.T + bias``; see ``linear``."""
        return self.lowering.linear(self.graph, x, matrix, bias, uneven=uneven)

    def pixels(self, *shape: Dimension) -> Value:
        """The input ``pixel_values``; to be cut into patches, and to meet ``patch_product`` next."""
        graph, lowering = self.graph, self.lowering
        if self.normalisation is None:
            graph.input("pixel_values", "float32", shape)
            return graph.as_element("pixel_values")
        levels = graph.input("pixel_values", lowering.levels, shape)
        return levels if lowering.cuts_levels else lowering.centred_levels(graph, levels)

    def patch_product(self, x: Value, name: str) -> Value:
        """The patches [N,S,values] times the kernel ``name``.weight [hidden,channels,...] of as many values."""
        graph = self.graph
        kernel, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        if self.normalisation is None:
            return graph.linear(x, flattened(kernel), bias)
        if self.lowering.cuts_levels:
            x = self.lowering.centred_levels(graph, x)
        return graph.linear(x, *folded(kernel, bias, self.normalisation, graph.element))

    def activation(self, x: Value, kind: str) -> Value:
        """``gelu``, ``gelu_tanh``, ``quick_gelu`` or ``silu``."""
        graph = self.graph
        if kind == "gelu_tanh":
            return graph.gelu_tanh(x)
        if kind == "gelu":
            return self.lowering.gelu(graph, x)
        if kind == "silu":
            return graph.silu(x)
        return graph.mul(x, graph.node("Sigmoid", [graph.mul(x, real(graph, 1.702))])[0])

    def reshape(self, x: Value, *shape: int) -> Value:
        """Another shape; 0 keeps a dimension, -1 takes the rest."""
        return self.graph.node("Reshape", [x, whole(self.graph, *shape)])[0]

    def transpose(self, x: Value, *order: int) -> Value:
        """Axes in another order."""
        return self.graph.node("Transpose", [x], perm=list(order))[0]

    def cut_patches(self, pixels: Value, channels: int, side: int, patch: int) -> Value:
        """[N,channels,side*patch,side*patch] as [N,side*side,channels*patch*patch], as a kernel takes them."""
        x = self.reshape(pixels, 0, channels, side, patch, side, patch)
        x = self.transpose(x, 0, 2, 4, 1, 3, 5)
        return self.reshape(x, 0, side * side, channels * patch * patch)

    def gather_blocks(self, x: Value, side: int, block: int, width: int) -> Value:
        """[N,side*side,width] as [N,(side/block)^2,block*block*width]: the rows of each square side by side."""
        count = side // block
        x = self.reshape(x, 0, count, block, count, block * width)
        x = self.transpose(x, 0, 1, 3, 2, 4)
        return self.reshape(x, 0, count * count, block * block * width)

    def attention(
        self,
        parts: Sequence[Value],
        heads: int,
        head_dim: int,
        rotation: Rotation | None = None,
    ) -> Value:
        """Queries, keys, values [N,S,heads*head_dim], the queries scaled already."""
        query, key, value = self._rotated(parts, heads, head_dim, rotation)
        return self.lowering.attention(self.graph, query, key, value, heads, head_dim)

    def attention_in_windows(
        self, parts: Sequence[Value], heads: int, head_dim: int, rotation: Rotation, windows: Windows
    ) -> Value:
        """The same, where a position sees those of its window alone."""
        graph, width = self.graph, heads * head_dim
        query, key, value = (
            self.reshape(graph.node("Gather", [x, windows.index], axis=1)[0], -1, windows.size, width)
            for x in self._rotated(parts, heads, head_dim, rotation)
        )
        output = attention_in_parts(graph, query, key, value, heads, head_dim, windows.bias(self, query))
        (shape,) = graph.node("Shape", [parts[0]])
        (images,) = graph.node("Slice", [shape, whole(graph, 0), whole(graph, 1)])
        (joined,) = graph.node("Concat", [images, whole(graph, -1, width)], axis=0)
        (rows,) = graph.node("Reshape", [output, joined])
        return graph.node("Gather", [rows, windows.place], axis=1)[0]

    def _rotated(
        self, parts: Sequence[Value], heads: int, head_dim: int, rotation: Rotation | None
    ) -> tuple[Value, Value, Value]:
        query, key, value = parts
        if rotation is not None:
            query, key = (self.lowering.rotate(self.graph, x, *rotation, heads, head_dim) for x in (query, key))
        return query, key, value


class Windows:
    """How the positions of an image lie in windows of ``size``, the smaller ones filled up.

    Inputs of the graph: ``window_index`` int32 [W*size], the position in each place (any where a window is filled
    up); ``window_mask`` float32 [W,size], 0 for a place that holds one and a large negative number elsewhere;
    ``window_place`` int32 [S], the place of each position.
    """

    def __init__(self, layers: Layers, size: int) -> None:
        graph = layers.graph
        self.size = size
        self.index = graph.input("window_index", "int32", ["places"])
        graph.input("window_mask", "float32", ["windows", size])
        self.place = graph.input("window_place", "int32", [PATCHES])

    def bias(self, layers: Layers, query: Value) -> Value:
        """The mask for every image: [N*W,1,1,size]; once per graph."""
        graph = layers.graph
        if "window_bias" not in graph.remembered:
            (shape,) = graph.node("Shape", [query])
            (count,) = graph.node("Slice", [shape, whole(graph, 0), whole(graph, 1)])
            mask = graph.as_element("window_mask")
            (own,) = graph.node("Shape", [mask])
            (windows,) = graph.node("Slice", [own, whole(graph, 0), whole(graph, 1)])
            (images,) = graph.node("Div", [count, windows])
            (wanted,) = graph.node("Concat", [images, windows, whole(graph, self.size)], axis=0)
            (full,) = graph.node("Expand", [mask, wanted])
            graph.remembered["window_bias"] = layers.reshape(full, -1, 1, 1, self.size)
        return graph.remembered["window_bias"]


def spread(graph: Graph, table: str, like: Value, width: int) -> Value:
    """A float32 input [S,width] as elements [N,S,width], with the N of ``like``; once per graph."""
    name = f"spread {table}"
    if name not in graph.remembered:
        (shape,) = graph.node("Shape", [like])
        (sizes,) = graph.node("Slice", [shape, whole(graph, 0), whole(graph, 2)])
        (wanted,) = graph.node("Concat", [sizes, whole(graph, width)], axis=0)
        (graph.remembered[name],) = graph.node("Expand", [graph.as_element(table), wanted])
    return graph.remembered[name]
