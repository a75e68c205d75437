"""Rope kinds of a configuration, in the spelling of transformers 4 and in that of 5.

Old: ``rope_theta`` and ``rope_scaling`` (Gemma 3 adds ``rope_local_base_freq``). New: ``rope_parameters``, one object
or one for each layer type, with ``rope_theta`` inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...engine_format import RopeConfig
from ...errors import CheckpointError
from ..rope import resolve_rope
from .config_values import real_number, require

FULL, SLIDING = "full_attention", "sliding_attention"  # layer types, as configurations spell them


def _object(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise CheckpointError(f"config.json: {key} is {value!r}; want an object or null.")
    return value


def _resolve(base: float, scaling: Mapping[str, Any] | None, head_dim: int, maximum: int) -> RopeConfig:
    scaling = scaling or {}
    require(scaling, "partial_rotary_factor", 1.0, "only whole heads are rotated")
    if scaling.get("rope_type", scaling.get("type")) == "dynamic":
        scaling = {}  # the same up to ``maximum``, and no engine goes beyond it
    return resolve_rope(base, head_dim, maximum, scaling)


def _base(scaling: Mapping[str, Any] | None, config: Mapping[str, Any], key: str) -> float:
    value = (scaling or {}).get("rope_theta", config.get(key))
    return real_number({key: value}, key, 10000.0)


def rope_settings(config: Mapping[str, Any]) -> tuple[float, Mapping[str, Any] | None]:
    """Base and scaling object of a family that has one rope kind, from either spelling.

    :raises CheckpointError: neither an object nor null, or objects that differ between layer types.
    """
    key = "rope_parameters" if config.get("rope_parameters") is not None else "rope_scaling"
    scaling = None if config.get(key) is None else _object(config, key)
    nested = [value for value in (scaling or {}).values() if isinstance(value, Mapping)]
    if nested:
        if any(value != nested[0] for value in nested):
            raise CheckpointError(
                "config.json: rope_parameters differ between layer types; want one kind for this architecture."
            )
        scaling = nested[0]
    return _base(scaling, config, "rope_theta"), scaling


def single_rope(config: Mapping[str, Any], head_dim: int, maximum: int) -> RopeConfig:
    """The one rope kind of a family that has one; ``rope_theta`` has its default in ``config`` already.

    :raises CheckpointError: a kind that is not built, or objects that differ between layer types.
    """
    require(config, "partial_rotary_factor", 1.0, "only whole heads are rotated")
    return _resolve(*rope_settings(config), head_dim, maximum)


def rope_of_layer_types(config: Mapping[str, Any], head_dim: int, maximum: int) -> dict[str, RopeConfig]:
    """Kinds ``full`` and ``sliding`` of a family whose layer types rotate differently.

    ``rope_theta`` and ``rope_local_base_freq`` have their defaults in ``config`` already; a scaling in the old
    spelling is that of the full layers.

    :raises CheckpointError: a kind that is not built.
    """
    parameters = _object(config, "rope_parameters")
    if parameters and not any(isinstance(value, Mapping) for value in parameters.values()):
        raise CheckpointError(
            f"config.json: rope_parameters has the keys {', '.join(parameters)}; want one object each for "
            f"{FULL} and {SLIDING}."
        )
    full = _object(parameters, FULL) if parameters else _object(config, "rope_scaling")
    sliding = _object(parameters, SLIDING)
    return {
        "full": _resolve(_base(full, config, "rope_theta"), full, head_dim, maximum),
        "sliding": _resolve(_base(sliding, config, "rope_local_base_freq"), sliding, head_dim, maximum),
    }
