"""InternVL's tower (InternViT) and projector, in the spelling of its authors and in that of transformers.

Images are tiles of one size, [N,3,side,side]; a class token goes with the patches and is left out behind the layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import CheckpointError
from ..families.config_values import MOST_HEADS, MOST_LAYERS, choice, real_number, require, switch, whole_number
from ..graph_parts import Value
from ..lowerings.base import whole
from ..weight_views import reshaped, rows_times
from .base import activation, divided, section, side_length
from .layers import IMAGES, Layers
from .tiles import TileTower

TOWER = "visual.tower."
PROJECTOR_EPSILON = 1e-5


@dataclass(frozen=True)
class Spelling:
    """Names of tensors: those of the embeddings, of a layer behind its number, and of the projector."""

    class_token: str
    patches: str
    positions: str
    layer: str
    query_key_value: tuple[str, ...]
    query_key_norm: tuple[str, str]
    output: str
    norms: tuple[str, str]
    scales: tuple[str, str]
    projector: tuple[str, str, str]


AUTHORS = Spelling(
    "embeddings.class_embedding", "embeddings.patch_embedding", "embeddings.position_embedding", "encoder.layers.",
    ("attn.qkv",), ("attn.q_norm", "attn.k_norm"), "attn.proj", ("norm1", "norm2"), ("ls1", "ls2"),
    ("visual.mlp1.0", "visual.mlp1.1", "visual.mlp1.3"),
)  # fmt: skip
TRANSFORMERS = Spelling(
    "embeddings.cls_token", "embeddings.patch_embeddings.projection", "embeddings.position_embeddings",
    "encoder.layer.", ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    ("attention.q_norm", "attention.k_norm"), "attention.projection_layer", ("layernorm_before", "layernorm_after"),
    ("lambda_1", "lambda_2"),
    ("visual.projector.layer_norm", "visual.projector.linear_1", "visual.projector.linear_2"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class InternTower(TileTower):
    """See ``Tower``."""

    spelling: Spelling
    projector_activation: str
    layer_norms: bool
    projection_bias: bool
    query_key_norm: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        divided("image_size", self.image_size, "patch_size", self.patch_size)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """See ``Tower``."""
        names, hidden, inner = self.spelling, self.hidden_size, self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {
            TOWER + names.class_token: (1, 1, hidden),
            f"{TOWER}{names.patches}.weight": (hidden, self.channels, self.patch_size, self.patch_size),
            f"{TOWER}{names.patches}.bias": (hidden,),
            TOWER + names.positions: (1, 1 + self.side**2, hidden),
        }
        for layer in range(self.layers):
            prefix = f"{TOWER}{names.layer}{layer}."
            for norm in names.norms:
                shapes[f"{prefix}{norm}.weight"] = (hidden,)
                if self.layer_norms:
                    shapes[f"{prefix}{norm}.bias"] = (hidden,)
            for scale in names.scales:
                shapes[prefix + scale] = (hidden,)
            for norm in names.query_key_norm if self.query_key_norm else ():
                shapes[f"{prefix}{norm}.weight"] = (hidden,)
            rows = 3 * hidden // len(names.query_key_value)
            for name, shape, bias in (
                *((name, (rows, hidden), self.projection_bias) for name in names.query_key_value),
                (names.output, (hidden, hidden), True),
                ("mlp.fc1", (inner, hidden), True),
                ("mlp.fc2", (hidden, inner), True),
            ):
                shapes[f"{prefix}{name}.weight"] = shape
                if bias:
                    shapes[f"{prefix}{name}.bias"] = shape[:1]
        norm, first, second = names.projector
        wide, out = hidden * self.block**2, self.out_size
        return {
            **shapes, f"{norm}.weight": (wide,), f"{norm}.bias": (wide,), f"{first}.weight": (out, wide),
            f"{first}.bias": (out,), f"{second}.weight": (out, out), f"{second}.bias": (out,),
        }  # fmt: skip

    def may_be_left_out(self, name: str) -> bool:
        """See ``Tower``: a norm that is only there for the class token, and a token for training."""
        return name.startswith((f"{TOWER}layernorm.", f"{TOWER}embeddings.mask_token"))

    def build(self, layers: Layers) -> None:
        """See ``Tower``."""
        graph, size = layers.graph, self.image_size
        x = self._embed(layers, layers.pixels(IMAGES, self.channels, size, size))
        for layer in range(self.layers):
            x = self._layer(layers, x, f"{TOWER}{self.spelling.layer}{layer}.")
        bounds = [whole(graph, number) for number in (1, 1 + self.side**2, 1)]
        (x,) = graph.node("Slice", [x, *bounds])
        x = layers.gather_blocks(x, self.side, self.block, self.hidden_size)
        norm, first, second = self.spelling.projector
        x = layers.linear(layers.layer_norm(x, norm, PROJECTOR_EPSILON), first)
        x = layers.linear(layers.activation(x, self.projector_activation), second)
        graph.output(x, "image_embeds", "float32", [IMAGES, self.tokens, self.out_size])

    def _embed(self, layers: Layers, pixels: Value) -> Value:
        graph, hidden, names = layers.graph, self.hidden_size, self.spelling
        x = layers.cut_patches(pixels, self.channels, self.side, self.patch_size)
        x = layers.patch_product(x, TOWER + names.patches)
        (shape,) = graph.node("Shape", [x])
        (images,) = graph.node("Slice", [shape, whole(graph, 0), whole(graph, 1)])
        (wanted,) = graph.node("Concat", [images, whole(graph, 1, hidden)], axis=0)
        token = graph.parameter(reshaped(layers.weights[TOWER + names.class_token], 1, hidden))
        (tokens,) = graph.node("Expand", [token, wanted])
        (x,) = graph.node("Concat", [tokens, x], axis=1)
        table = reshaped(layers.weights[TOWER + names.positions], 1 + self.side**2, hidden)
        return graph.add(x, graph.parameter(table))

    def _layer(self, layers: Layers, x: Value, prefix: str) -> Value:
        graph, hidden, names = layers.graph, self.hidden_size, self.spelling
        size = hidden // self.heads
        before, after = (prefix + norm for norm in names.norms)
        projections = [prefix + name for name in names.query_key_value]
        scale = 1.0 if self.query_key_norm else size**-0.5
        y = layers.linear(layers.norm(x, before, self.epsilon), *projections, scale=scale, queries=hidden)
        query, key, value = graph.split(y, [hidden] * 3)
        if self.query_key_norm:
            weights = [layers.weights[f"{prefix}{norm}.weight"] for norm in names.query_key_norm]
            scaled = rows_times(weights[0], "scale", lambda: np.full(hidden, size**-0.5, dtype=np.float32))
            query = graph.rms_norm(query, scaled, self.epsilon)
            key = graph.rms_norm(key, weights[1], self.epsilon)
        y = layers.attention([query, key, value], self.heads, size)
        x = graph.add(x, self._scaled_linear(layers, y, prefix, names.output, names.scales[0]))
        y = layers.activation(layers.linear(layers.norm(x, after, self.epsilon), f"{prefix}mlp.fc1"), self.activation)
        return graph.add(x, self._scaled_linear(layers, y, prefix, "mlp.fc2", names.scales[1]))

    def _scaled_linear(self, layers: Layers, x: Value, prefix: str, name: str, scale: str) -> Value:
        """A projection whose outputs have factors of their own, which go into its weights."""
        factors = layers.weights[prefix + scale]

        def read() -> np.ndarray:
            return factors.read(0, factors.rows)

        matrix, bias = (
            rows_times(layers.weights[f"{prefix}{name}.{kind}"], scale, read) for kind in ("weight", "bias")
        )
        return layers.product(x, matrix, bias, uneven=name == "mlp.fc2")


def _block(config: Mapping[str, Any]) -> int:
    ratio = real_number(config, "downsample_ratio", 0.5)
    block = round(1 / ratio)
    if abs(block * ratio - 1) > 1e-9:
        raise CheckpointError(f"config.json: downsample_ratio is {ratio}; want one over a whole number.")
    return block


def parse_internvl_chat(config: Mapping[str, Any], out_size: int) -> InternTower:
    """As the authors publish it. :raises CheckpointError: a value is missing or of a kind that is not built."""
    vision = section(config, "vision_config")
    kind = vision.get("model_type", "intern_vit_6b")
    if kind != "intern_vit_6b":
        raise CheckpointError(
            f"config.json has the architecture 'InternVLChatModel' with a vision model of the type {kind!r}; want "
            "'intern_vit_6b', the only one that is built."
        )
    require(config, "select_layer", -1, "the last layer's output is what the projector takes")
    require(config, "ps_version", "v2", "the older pixel shuffle turns rows and columns")
    return _tower(
        config, vision, out_size, AUTHORS,
        projector_activation="gelu",
        projection_bias=switch(vision, "qkv_bias", False),
        query_key_norm=switch(vision, "qk_normalization", False),
    )  # fmt: skip


def parse_internvl(config: Mapping[str, Any], out_size: int) -> InternTower:
    """As transformers writes it. :raises CheckpointError: as ``parse_internvl_chat``."""
    vision = section(config, "vision_config")
    require(config, "vision_feature_layer", -1, "the last layer's output is what the projector takes")
    require(config, "vision_feature_select_strategy", "default", "the class token is left out")
    require(vision, "use_mean_pooling", True, "there is no norm behind the last layer")
    require(vision, "use_absolute_position_embeddings", True, "positions come from a table")
    return _tower(
        config, vision, out_size, TRANSFORMERS,
        projector_activation=activation(config, "projector_hidden_act", "gelu"),
        projection_bias=switch(vision, "attention_bias", False),
        query_key_norm=switch(vision, "use_qk_norm", False),
    )  # fmt: skip


def _tower(
    config: Mapping[str, Any], vision: Mapping[str, Any], out_size: int, spelling: Spelling, **traits: Any
) -> InternTower:
    norm = choice({"norm_type": vision.get("norm_type") or "layer_norm"}, "norm_type", {
        "layer_norm": "layer_norm", "rms_norm": "rms_norm",
    })  # fmt: skip
    return InternTower(
        model_type="internvl",
        spelling=spelling,
        hidden_size=whole_number(vision, "hidden_size", 1024),
        intermediate_size=whole_number(vision, "intermediate_size", 4096),
        layers=whole_number(vision, "num_hidden_layers", 24, largest=MOST_LAYERS),
        heads=whole_number(vision, "num_attention_heads", 16, largest=MOST_HEADS),
        patch_size=side_length(vision, "patch_size", 14),
        image_size=side_length(vision, "image_size", 448),
        channels=whole_number(vision, "num_channels", 3),
        epsilon=real_number(vision, "layer_norm_eps", 1e-6),
        activation=activation(vision, "hidden_act", "gelu"),
        layer_norms=norm == "layer_norm",
        block=_block(config),
        out_size=out_size,
        **traits,
    )
