"""The towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: patches of any grid, two-axis rotation, squares merged to tokens.

A frame (an image, or two frames of a video) is one entry of the batch, since frames do not see each other: images of
one grid share a call. Inputs beside ``pixel_values`` [N,S,values]: ``rope_cos`` and ``rope_sin`` [S,head_dim/2]; the
windows of ``layers.Windows``; ``position_index`` int32 and ``position_weight`` float32 [S,4] where positions are
interpolated in a learned grid. Outputs beside ``image_embeds``: ``deepstack_0``, … of the same shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..graph_parts import Dimension, Value
from ..lowerings.base import whole
from .base import divided
from .layers import IMAGES, PATCHES, Layers, Rotation, Windows, spread

EPSILON = 1e-6  # of every norm of these towers; their files do not say it
TOKENS = "tokens"


@dataclass(frozen=True)
class PatchTower:
    """See ``Tower``.

    ``layer_norms``: norms with mean and bias; ``gated``: the feed-forward has a gate; ``first`` and ``second`` name
    its projections otherwise; ``merger`` names norm and projections of the merger. ``window`` patches a side are seen
    together, but in ``full_layers``; 0: all. ``grid_side`` of the learned positions, 0: there are none.
    """

    model_type: str
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    patch_size: int
    temporal_patch_size: int
    merge: int
    channels: int
    out_size: int
    activation: str
    rope_theta: float
    layer_norms: bool
    patch_bias: bool
    gated: bool
    first: str
    second: str
    merger: tuple[str, str, str]
    window: int = 0
    full_layers: tuple[int, ...] = ()
    grid_side: int = 0
    deepstack: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        divided("vision hidden_size", self.hidden_size, "num_heads", self.heads)
        divided("vision head size", self.head_dim, "the number of axes times two,", 4)
        divided("patches of a window", self.window, "spatial_merge_size", self.merge)

    @property
    def head_dim(self) -> int:
        """Size of a head."""
        return self.hidden_size // self.heads

    @property
    def patch_values(self) -> int:
        """Numbers of a patch."""
        return self.channels * self.temporal_patch_size * self.patch_size**2

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """See ``Tower``."""
        hidden, inner = self.hidden_size, self.intermediate_size
        kernel = (hidden, self.channels, self.temporal_patch_size, self.patch_size, self.patch_size)
        shapes: dict[str, tuple[int, ...]] = {"visual.patch_embed.proj.weight": kernel}
        if self.patch_bias:
            shapes["visual.patch_embed.proj.bias"] = (hidden,)
        if self.grid_side:
            shapes["visual.pos_embed.weight"] = (self.grid_side**2, hidden)
        projections = {"attn.qkv": (3 * hidden, hidden), "attn.proj": (hidden, hidden)}
        if self.gated:
            projections["mlp.gate_proj"] = (inner, hidden)
        projections |= {self.first: (inner, hidden), self.second: (hidden, inner)}
        for layer in range(self.layers):
            prefix = f"visual.blocks.{layer}."
            shapes |= self._norm_shapes(f"{prefix}norm1", hidden) | self._norm_shapes(f"{prefix}norm2", hidden)
            for name, shape in projections.items():
                shapes |= {f"{prefix}{name}.weight": shape, f"{prefix}{name}.bias": shape[:1]}
        shapes |= self._merger_shapes("visual.merger.", hidden)
        for plane in range(len(self.deepstack)):
            shapes |= self._merger_shapes(f"visual.deepstack_merger_list.{plane}.", hidden * self.merge**2)
        return shapes

    def _norm_shapes(self, name: str, width: int) -> dict[str, tuple[int, ...]]:
        return {f"{name}.{kind}": (width,) for kind in (("weight", "bias") if self.layer_norms else ("weight",))}

    def _merger_shapes(self, prefix: str, normed: int) -> dict[str, tuple[int, ...]]:
        norm, first, second = (prefix + name for name in self.merger)
        wide = self.hidden_size * self.merge**2
        return {
            **self._norm_shapes(norm, normed),
            f"{first}.weight": (wide, wide), f"{first}.bias": (wide,),
            f"{second}.weight": (self.out_size, wide), f"{second}.bias": (self.out_size,),
        }  # fmt: skip

    def may_be_left_out(self, name: str) -> bool:
        """See ``Tower``: rotary buffers of old files."""
        return name.endswith("rotary_pos_emb.inv_freq")

    def settings(self) -> dict[str, Any]:
        """See ``Tower``."""
        return {
            "model_type": self.model_type,
            "layout": "patches",
            "patch_size": self.patch_size,
            "temporal_patch_size": self.temporal_patch_size,
            "spatial_merge_size": self.merge,
            "num_channels": self.channels,
            "head_dim": self.head_dim,
            "rope_theta": self.rope_theta,
            "window_patches": self.window,
            "position_grid": self.grid_side,
            "deepstack_planes": len(self.deepstack),
            "hidden_size": self.out_size,
        }

    def build(self, layers: Layers) -> None:
        """See ``Tower``."""
        graph, half = layers.graph, self.head_dim // 2
        pixels = layers.pixels(IMAGES, PATCHES, self.patch_values)
        for table in ("rope_cos", "rope_sin"):
            graph.input(table, "float32", [PATCHES, half])
        windows = Windows(layers, self.window**2) if self.window else None
        x = layers.patch_product(pixels, "visual.patch_embed.proj")
        if self.grid_side:
            x = graph.add(x, self._learned_positions(layers))
        rotation = (spread(graph, "rope_cos", x, half), spread(graph, "rope_sin", x, half))
        planes = []
        for layer in range(self.layers):
            seen = None if layer in self.full_layers else windows
            x = self._layer(layers, x, f"visual.blocks.{layer}.", rotation, seen)
            if layer in self.deepstack:
                planes.append((layer, x))
        shape: list[Dimension] = [IMAGES, TOKENS, self.out_size]
        graph.output(self._merged(layers, x, "visual.merger.", before=True), "image_embeds", "float32", shape)
        for number, (layer, plane) in enumerate(planes):  # in the order of the layers, whatever that of the mergers is
            merger = f"visual.deepstack_merger_list.{self.deepstack.index(layer)}."
            graph.output(self._merged(layers, plane, merger, before=False), f"deepstack_{number}", "float32", shape)

    def _learned_positions(self, layers: Layers) -> Value:
        """[S,hidden]: four entries of the grid, weighted."""
        graph = layers.graph
        index = graph.input("position_index", "int32", [PATCHES, 4])
        graph.input("position_weight", "float32", [PATCHES, 4])
        table = graph.parameter(layers.weights["visual.pos_embed.weight"])
        (corners,) = graph.node("Gather", [table, index], axis=0)
        (weights,) = graph.node("Unsqueeze", [graph.as_element("position_weight"), whole(graph, 1)])
        return layers.reshape(graph.node("MatMul", [weights, corners])[0], -1, self.hidden_size)

    def _layer(self, layers: Layers, x: Value, prefix: str, rotation: Rotation, windows: Windows | None) -> Value:
        graph, hidden, size = layers.graph, self.hidden_size, self.head_dim
        y = layers.norm(x, f"{prefix}norm1", EPSILON)
        fused = layers.linear(y, f"{prefix}attn.qkv", scale=size**-0.5, queries=hidden)
        parts = graph.split(fused, [hidden] * 3)
        if windows is None:
            y = layers.attention(parts, self.heads, size, rotation)
        else:
            y = layers.attention_in_windows(parts, self.heads, size, rotation, windows)
        x = graph.add(x, layers.linear(y, f"{prefix}attn.proj"))
        y = layers.norm(x, f"{prefix}norm2", EPSILON)
        return graph.add(x, layers.linear(self._inner(layers, y, prefix), f"{prefix}{self.second}", uneven=True))

    def _inner(self, layers: Layers, y: Value, prefix: str) -> Value:
        if not self.gated:
            return layers.activation(layers.linear(y, f"{prefix}{self.first}"), self.activation)
        fused = layers.linear(y, f"{prefix}mlp.gate_proj", f"{prefix}{self.first}")
        gate, up = layers.graph.split(fused, [self.intermediate_size] * 2)
        return layers.graph.mul(layers.activation(gate, self.activation), up)

    def _merged(self, layers: Layers, x: Value, prefix: str, *, before: bool) -> Value:
        """Squares of patches, which follow each other, as tokens; the norm is ``before`` they are joined, or after."""
        norm, first, second = (prefix + name for name in self.merger)
        wide = self.hidden_size * self.merge**2
        if before:
            x = layers.norm(x, norm, EPSILON)
        x = layers.reshape(x, 0, -1, wide)
        if not before:
            x = layers.norm(x, norm, EPSILON)
        return layers.linear(layers.activation(layers.linear(x, first), "gelu"), second, uneven=True)
