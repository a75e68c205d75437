"""SigLIP and what SmolVLM, PaliGemma and Gemma 3 put behind it: a pixel shuffle, a projection, or a pool.

Images are squares of one size, [N,3,side,side]; each gives the same number of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import CheckpointError
from ..families.config_values import MOST_HEADS, MOST_LAYERS, real_number, whole_number
from ..graph_parts import Value
from ..weight_views import turned
from ..weights import shifted
from .base import activation, divided, section, side_length
from .layers import IMAGES, Layers
from .tiles import TileTower

TOWER = "visual.tower."
SHUFFLE, LINEAR, POOL = "shuffle", "linear", "pool"
SHUFFLED, PROJECTED = "visual.connector.weight", "visual.projector.linear"
POOLED, POOL_NORM = "visual.projector.mm_input_projection_weight", "visual.projector.mm_soft_emb_norm.weight"


@dataclass(frozen=True, kw_only=True)
class SiglipTower(TileTower):
    """See ``Tower``. ``fractions`` finds positions as Idefics3 does."""

    connector: str
    fractions: bool = False
    blocks: str = ""  # what sees itself in both directions: each of the "images", or the whole "prompt"

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """See ``Tower``."""
        hidden, inner = self.hidden_size, self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {
            f"{TOWER}embeddings.patch_embedding.weight": (hidden, self.channels, self.patch_size, self.patch_size),
            f"{TOWER}embeddings.patch_embedding.bias": (hidden,),
            f"{TOWER}embeddings.position_embedding.weight": (self.side**2, hidden),
        }
        for layer in range(self.layers):
            prefix = f"{TOWER}encoder.layers.{layer}."
            for norm in ("layer_norm1", "layer_norm2"):
                shapes[f"{prefix}{norm}.weight"] = shapes[f"{prefix}{norm}.bias"] = (hidden,)
            for name, shape in (
                *((f"self_attn.{part}_proj", (hidden, hidden)) for part in ("q", "k", "v", "out")),
                ("mlp.fc1", (inner, hidden)),
                ("mlp.fc2", (hidden, inner)),
            ):
                shapes[f"{prefix}{name}.weight"], shapes[f"{prefix}{name}.bias"] = shape, shape[:1]
        shapes[f"{TOWER}post_layernorm.weight"] = shapes[f"{TOWER}post_layernorm.bias"] = (hidden,)
        if self.connector == SHUFFLE:
            shapes[SHUFFLED] = (self.out_size, hidden * self.block**2)
        elif self.connector == LINEAR:
            shapes |= {f"{PROJECTED}.weight": (self.out_size, hidden), f"{PROJECTED}.bias": (self.out_size,)}
        else:
            shapes |= {POOLED: (hidden, self.out_size), POOL_NORM: (hidden,)}
        return shapes

    def may_be_left_out(self, name: str) -> bool:
        """See ``Tower``: a pooling head, and a buffer of position numbers."""
        return name.startswith(f"{TOWER}head.") or name == f"{TOWER}embeddings.position_ids"

    def settings(self) -> dict[str, Any]:
        """See ``Tower``."""
        return super().settings() | ({"blocks": self.blocks} if self.blocks else {})

    def build(self, layers: Layers) -> None:
        """See ``Tower``."""
        x = self._embed(layers, layers.pixels(IMAGES, self.channels, self.image_size, self.image_size))
        for layer in range(self.layers):
            x = self._layer(layers, x, f"{TOWER}encoder.layers.{layer}.")
        x = layers.layer_norm(x, f"{TOWER}post_layernorm", self.epsilon)
        x = self._connect(layers, x)
        layers.graph.output(x, "image_embeds", "float32", [IMAGES, self.tokens, self.out_size])

    def _embed(self, layers: Layers, pixels: Value) -> Value:
        graph, side, patch = layers.graph, self.side, self.patch_size
        if self.image_size != side * patch:  # a convolution leaves the rest out
            ends = graph.constant(np.array([side * patch] * 2, dtype=np.int64))
            starts, axes = (graph.constant(np.array(pair, dtype=np.int64)) for pair in ([0, 0], [2, 3]))
            (pixels,) = graph.node("Slice", [pixels, starts, ends, axes])
        x = layers.cut_patches(pixels, self.channels, side, patch)
        x = layers.patch_product(x, f"{TOWER}embeddings.patch_embedding")
        table = graph.parameter(layers.weights[f"{TOWER}embeddings.position_embedding.weight"])
        index = self.positions()
        if (index != np.arange(side * side)).any():
            (table,) = graph.node("Gather", [table, graph.constant(index)], axis=0)
        return graph.add(x, table)

    def positions(self) -> np.ndarray:
        """Which row of the position table each patch takes, int64 [side*side].

        Idefics3 finds it from fractions of the side in float32, which for some sides rounds into the bucket before.
        """
        side = self.side
        if not self.fractions:
            return np.arange(side * side)
        bounds = np.arange(1, side, dtype=np.float64) * (1 / side)
        where = np.arange(side, dtype=np.float32) * (np.float32(1.0) / np.float32(side))
        where = np.minimum(where, np.float32(1.0 - 1e-6))
        bucket = np.searchsorted(bounds.astype(np.float32), where, side="right").astype(np.int64)
        rows: np.ndarray = np.add.outer(bucket * side, bucket)
        return rows.reshape(-1)

    def _layer(self, layers: Layers, x: Value, prefix: str) -> Value:
        graph, hidden = layers.graph, self.hidden_size
        head_dim = hidden // self.heads
        y = layers.layer_norm(x, f"{prefix}layer_norm1", self.epsilon)
        names = [f"{prefix}self_attn.{part}_proj" for part in "qkv"]
        parts = graph.split(layers.linear(y, *names, scale=head_dim**-0.5), [hidden] * 3)
        y = layers.attention(parts, self.heads, head_dim)
        x = graph.add(x, layers.linear(y, f"{prefix}self_attn.out_proj"))
        y = layers.layer_norm(x, f"{prefix}layer_norm2", self.epsilon)
        y = layers.activation(layers.linear(y, f"{prefix}mlp.fc1"), self.activation)
        return graph.add(x, layers.linear(y, f"{prefix}mlp.fc2", uneven=True))

    def _connect(self, layers: Layers, x: Value) -> Value:
        hidden, weights = self.hidden_size, layers.weights
        if self.connector == LINEAR:
            return layers.linear(x, PROJECTED)
        if self.connector == SHUFFLE:
            return layers.product(layers.gather_blocks(x, self.side, self.block, hidden), weights[SHUFFLED])
        x = layers.gather_blocks(x, self.side, self.block, hidden)
        x = layers.reshape(x, 0, self.tokens, self.block**2, hidden)
        x = _mean(layers, x, 2)
        x = layers.graph.rms_norm(x, shifted(weights[POOL_NORM], 1.0), self.epsilon)
        return layers.product(x, turned(weights[POOLED]))


def _mean(layers: Layers, x: Value, axis: int) -> Value:
    """The mean over one axis, which goes; the opset decides where the axis is told."""
    graph = layers.graph
    if graph.lowering.opsets[""] < 18:
        return graph.node("ReduceMean", [x], axes=[axis], keepdims=0)[0]
    return graph.node("ReduceMean", [x, graph.constant(np.array([axis], dtype=np.int64))], keepdims=0)[0]


_SIGLIP = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "num_channels": 3, "image_size": 224, "patch_size": 16, "layer_norm_eps": 1e-6,
}  # fmt: skip
_IDEFICS3 = {**_SIGLIP, "hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32}  # also of SmolVLM


def _tower(
    config: Mapping[str, Any], defaults: Mapping[str, Any], model_type: str, out_size: int, **traits: Any
) -> SiglipTower:
    vision = {
        **defaults,
        **{key: value for key, value in section(config, "vision_config").items() if value is not None},
    }
    return SiglipTower(
        model_type=model_type,
        hidden_size=whole_number(vision, "hidden_size"),
        intermediate_size=whole_number(vision, "intermediate_size"),
        layers=whole_number(vision, "num_hidden_layers", largest=MOST_LAYERS),
        heads=whole_number(vision, "num_attention_heads", largest=MOST_HEADS),
        patch_size=side_length(vision, "patch_size"),
        image_size=side_length(vision, "image_size"),
        channels=whole_number(vision, "num_channels"),
        epsilon=real_number(vision, "layer_norm_eps"),
        activation=activation(vision, "hidden_act", "gelu_pytorch_tanh"),
        out_size=out_size,
        **traits,
    )


def parse_idefics3(config: Mapping[str, Any], out_size: int) -> SiglipTower:
    """SmolVLM, SmolVLM2 and Idefics3. :raises CheckpointError: a value is missing or of a kind that is not built."""
    kind = "smolvlm" if config.get("model_type") == "smolvlm" else "idefics3"
    block = whole_number(config, "scale_factor", 2)
    return _tower(config, _IDEFICS3, kind, out_size, connector=SHUFFLE, block=block, fractions=True)


def parse_paligemma(config: Mapping[str, Any], out_size: int) -> SiglipTower:
    """PaliGemma. :raises CheckpointError: a value is missing, or its projection does not fit the text model."""
    given = section(config, "vision_config").get("projection_dim", config.get("projection_dim"))
    width = whole_number({"projection_dim": given}, "projection_dim", out_size)
    if width != out_size:
        raise CheckpointError(f"config.json: projection_dim is {width}; want {out_size}, the text model's width.")
    return _tower(config, _SIGLIP, "paligemma", out_size, connector=LINEAR, block=1, blocks="prompt")


def parse_gemma3(config: Mapping[str, Any], out_size: int) -> SiglipTower:
    """Gemma 3. :raises CheckpointError: a value is missing, or its tokens make no square of the patches."""
    tokens = whole_number(config, "mm_tokens_per_image", 256)
    side = round(tokens**0.5)
    if side * side != tokens:
        raise CheckpointError(f"config.json: mm_tokens_per_image is {tokens}; want a square number.")
    plain = _tower(config, _SIGLIP, "gemma3", out_size, connector=POOL, block=1, blocks="images")
    block = divided("patches of an image side", plain.side, "tokens of a side", side)
    return replace(plain, block=block)
