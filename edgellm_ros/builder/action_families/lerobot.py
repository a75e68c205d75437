"""What every policy of lerobot writes in the same way: its features, cameras and statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...action.dimensions import Dimensions
from ...errors import CheckpointError
from ..policy_checkpoint import PolicyCheckpoint
from ..policy_settings import PolicySettings

STATE, ACTION, EMPTY = "observation.state", "action", "observation.images.empty_camera_"


def features(config: Mapping[str, Any], group: str, kind: str) -> dict[str, tuple[int, ...]]:
    """Shapes of the features of a kind (STATE, ACTION, VISUAL) in ``input_features`` or ``output_features``.

    :raises CheckpointError: they are no mapping of features.
    """
    found = config.get(group)
    if not isinstance(found, dict):
        raise CheckpointError(f"config.json: {group} is {found!r}; want the policy's features: fetch it again.")
    shapes = {}
    for name, row in found.items():
        shape = row.get("shape") if isinstance(row, dict) else None
        if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
            raise CheckpointError(
                f"config.json: {group} has {name!r} with shape {shape!r}; want positive whole numbers."
            )
        if row.get("type") == kind:
            shapes[name] = tuple(shape)
    return shapes


def camera_keys(config: Mapping[str, Any]) -> list[str]:
    """Full names of the cameras, without places for empty ones. :raises CheckpointError: there is none."""
    keys = [name for name in features(config, "input_features", "VISUAL") if not name.startswith(EMPTY)]
    if not keys:
        raise CheckpointError("config.json has no camera among input_features; want one at least.")
    return keys


def dimensions(
    checkpoint: PolicyCheckpoint, settings: PolicySettings, padded_state: int, padded_action: int
) -> tuple[Dimensions, Dimensions]:
    """State and action with their names, units and statistics.

    :raises CheckpointError: a feature is missing, or its statistics are.
    """
    found = []
    for part, group, feature, kind, padded in (
        ("state", "input_features", STATE, "STATE", padded_state),
        ("action", "output_features", ACTION, "ACTION", padded_action),
    ):
        shape = features(checkpoint.config, group, kind).get(feature)
        if shape is None or len(shape) != 1:
            raise CheckpointError(
                f"config.json: {group} has {feature!r} with shape {shape!r}; want one number of dimensions."
            )
        names, units = settings.names_and_units(part, shape[0])
        found.append(Dimensions(names, units, padded, checkpoint.normalization(feature, kind, shape[0])))
    return found[0], found[1]
