"""What the configurations of the three generations of Qwen-VL say of their towers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import CheckpointError
from ..families.config_values import MOST_HEADS, MOST_LAYERS, real_number, whole_number
from .base import activation, divided, section, side_length
from .patch_tower import PatchTower


def _common(vision: Mapping[str, Any], hidden_key: str, hidden: int) -> dict[str, Any]:
    """Keys that all have; some files say ``in_chans`` for ``in_channels``."""
    channels = vision.get("in_channels", vision.get("in_chans"))
    rope = vision.get("rope_parameters")
    theta = rope.get("rope_theta") if isinstance(rope, Mapping) else None
    return {
        "hidden_size": whole_number(vision, hidden_key, hidden),
        "layers": whole_number(vision, "depth", largest=MOST_LAYERS),
        "heads": whole_number(vision, "num_heads", 16, largest=MOST_HEADS),
        "patch_size": side_length(vision, "patch_size", 14),
        "temporal_patch_size": side_length(vision, "temporal_patch_size", 2),
        "merge": whole_number(vision, "spatial_merge_size", 2),
        "channels": whole_number({"in_channels": channels}, "in_channels", 3),
        "rope_theta": real_number({"rope_theta": theta}, "rope_theta", 10000.0),
    }


def _layer_numbers(vision: Mapping[str, Any], key: str, layers: int, default: Sequence[int]) -> tuple[int, ...]:
    value = vision.get(key)
    value = list(default) if value is None else value
    if not isinstance(value, list) or not all(type(layer) is int and 0 <= layer < layers for layer in value):
        raise CheckpointError(f"config.json: {key} is {value!r}; want numbers of layers below {layers}.")
    return tuple(value)


def _planes(vision: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """:raises CheckpointError: a layer that gives two planes."""
    key = "deepstack_visual_indexes"
    found = _layer_numbers(vision, key, layers, (8, 16, 24))
    if len(set(found)) != len(found):
        raise CheckpointError(f"config.json: {key} is {list(found)}; want each layer once.")
    return found


def _check_width(found: int, wanted: int, key: str) -> int:
    """:raises CheckpointError: the tower's tokens are not as wide as the text model."""
    if found != wanted:
        raise CheckpointError(f"config.json: {key} is {found}; want {wanted}, the text model's width.")
    return found


def parse_qwen2_vl(config: Mapping[str, Any], out_size: int) -> PatchTower:
    """Qwen2-VL. :raises CheckpointError: a value is missing or of a kind that is not built."""
    vision = section(config, "vision_config")
    common = _common({"depth": 32, **vision}, "embed_dim", 1280)
    return PatchTower(
        model_type="qwen2_vl",
        out_size=_check_width(whole_number(vision, "hidden_size", out_size), out_size, "vision_config.hidden_size"),
        intermediate_size=int(common["hidden_size"] * real_number(vision, "mlp_ratio", 4)),
        activation=activation(vision, "hidden_act", "quick_gelu"),
        layer_norms=True,
        patch_bias=False,
        gated=False,
        first="mlp.fc1",
        second="mlp.fc2",
        merger=("ln_q", "mlp.0", "mlp.2"),
        **common,
    )


def parse_qwen2_5_vl(config: Mapping[str, Any], out_size: int) -> PatchTower:
    """Qwen2.5-VL. :raises CheckpointError: as ``parse_qwen2_vl``."""
    vision = section(config, "vision_config")
    common = _common({"depth": 32, **vision}, "hidden_size", 1280)
    pixels = whole_number(vision, "window_size", 112)
    square = common["merge"] * common["patch_size"]
    return PatchTower(
        model_type="qwen2_5_vl",
        out_size=_check_width(whole_number(vision, "out_hidden_size", out_size), out_size, "out_hidden_size"),
        intermediate_size=whole_number(vision, "intermediate_size", 3420),
        activation=activation(vision, "hidden_act", "silu"),
        layer_norms=False,
        patch_bias=False,
        gated=True,
        first="mlp.up_proj",
        second="mlp.down_proj",
        merger=("ln_q", "mlp.0", "mlp.2"),
        window=pixels // square * common["merge"] or divided("window_size", pixels, "a token's side", square),
        full_layers=_layer_numbers(vision, "fullatt_block_indexes", common["layers"], (7, 15, 23, 31)),
        **common,
    )


def parse_qwen3_vl(config: Mapping[str, Any], out_size: int) -> PatchTower:
    """Qwen3-VL. :raises CheckpointError: as ``parse_qwen2_vl``, or a grid of positions that is no square."""
    vision = section(config, "vision_config")
    common = _common({"depth": 27, "patch_size": 16, **vision}, "hidden_size", 1152)
    positions = whole_number(vision, "num_position_embeddings", 2304)
    side = round(positions**0.5)
    if side * side != positions:
        raise CheckpointError(f"config.json: num_position_embeddings is {positions}; want a square number.")
    return PatchTower(
        model_type="qwen3_vl",
        out_size=_check_width(whole_number(vision, "out_hidden_size", out_size), out_size, "out_hidden_size"),
        intermediate_size=whole_number(vision, "intermediate_size", 4304),
        activation=activation(vision, "hidden_act", "gelu_pytorch_tanh"),
        layer_norms=True,
        patch_bias=True,
        gated=False,
        first="mlp.linear_fc1",
        second="mlp.linear_fc2",
        merger=("norm", "linear_fc1", "linear_fc2"),
        grid_side=side,
        deepstack=_planes(vision, common["layers"]),
        **common,
    )
