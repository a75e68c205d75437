"""Rotary frequencies with all scaling resolved, from the keys of a Hugging Face configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..engine_format import RopeConfig
from ..errors import CheckpointError
from ..json_values import MOST_REAL, is_positive


def _number(scaling: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = scaling.get(key)
    value = default if value is None else value
    if value is None or not is_positive(value):
        raise CheckpointError(
            f"config.json: {key} of the rope scaling is {value!r}; want a positive number, not beyond float32."
        )
    return float(value)


def _llama3(frequency: np.ndarray, scaling: Mapping[str, Any]) -> np.ndarray:
    """Long waves are stretched by ``factor``, short ones kept, those between blended."""
    factor = _number(scaling, "factor")
    low, high = _number(scaling, "low_freq_factor"), _number(scaling, "high_freq_factor")
    if low == high:
        raise CheckpointError(f"config.json: low_freq_factor and high_freq_factor are both {low}; want two numbers.")
    turns = _number(scaling, "original_max_position_embeddings") * frequency / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return frequency * (keep + (1 - keep) / factor)


def _yarn(frequency: np.ndarray, base: float, maximum: int, scaling: Mapping[str, Any]) -> tuple[np.ndarray, float]:
    """Frequencies and the factor on the tables, as the YaRN paper and transformers have them."""
    if base <= 1:
        raise CheckpointError(
            f"config.json: rope_theta is {base}; want more than 1 for rope scaling of the type 'yarn'."
        )
    original = _number(scaling, "original_max_position_embeddings", float(maximum))
    factor = _number(scaling, "factor", max(1.0, maximum / original))
    size = 2 * len(frequency)

    def dimension_of(turns: float) -> float:
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = dimension_of(_number(scaling, "beta_fast", 32.0))
    high = dimension_of(_number(scaling, "beta_slow", 1.0))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(len(frequency)) - low) / max(high - low, 0.001), 0, 1)

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if scaling.get("attention_factor") is not None:
        scale = _number(scaling, "attention_factor")
    elif scaling.get("mscale") and scaling.get("mscale_all_dim"):
        scale = magnitude(_number(scaling, "mscale")) / magnitude(_number(scaling, "mscale_all_dim"))
    else:
        scale = magnitude(1.0)
    return frequency * (ramp / factor + (1 - ramp)), scale


def resolve_rope(base: float, head_dim: int, maximum: int, scaling: Mapping[str, Any] | None) -> RopeConfig:
    """Frequencies of one rope kind; ``maximum`` is max_position_embeddings, ``scaling`` the rope_scaling object.

    :raises CheckpointError: a kind whose frequencies depend on the length of the text, or an unknown one.
    """
    if head_dim % 2:
        raise CheckpointError(f"config.json: head_dim is {head_dim}; want an even number for rotary positions.")
    # float32 as in transformers: the angle at position 8000 shows the difference
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequency = (1.0 / np.power(np.float32(base), exponent)).astype(np.float64)
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    scale = 1.0
    if kind == "linear":
        frequency = frequency / _number(scaling, "factor")
    elif kind == "llama3":
        frequency = _llama3(frequency, scaling)
    elif kind == "yarn":
        frequency, scale = _yarn(frequency, base, maximum, scaling)
    elif kind == "frequency_factors":
        factors = np.array(scaling["factors"], dtype=np.float64)
        if factors.shape != frequency.shape or not (factors > 0).all():
            raise CheckpointError(
                f"the tensor of rope factors has {factors.size} values; want {frequency.size} positive ones."
            )
        frequency = frequency / factors
    elif kind not in ("default", None):
        raise CheckpointError(f"config.json: rope scaling of the type {kind!r}; want default, linear, llama3 or yarn.")
    if frequency.max() > MOST_REAL or not is_positive(scale):
        raise CheckpointError(
            f"config.json: the rope frequencies come to {frequency.max():.4g} times {scale:.4g}; want numbers that "
            "float32 holds: fetch it again."
        )
    return RopeConfig(tuple(float(np.float32(value)) for value in frequency), scale)
