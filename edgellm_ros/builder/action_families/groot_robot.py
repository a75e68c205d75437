"""One robot of a GR00T checkpoint: its cameras, numbers and statistics, from the files beside the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...action.dimensions import Dimensions
from ...action.normalization import EpsilonRule, Normalization, NormalizationKind
from ...errors import CheckpointError
from ...json_values import shown
from ..families.config_values import real_number, require, switch, whole_number
from ..huggingface_checkpoint import read_json_object
from ..policy_checkpoint import PolicyCheckpoint
from ..policy_settings import PolicySettings

DEFAULT_CROP = 0.95
PROCESSOR = "Gr00tN1d7Processor"


@dataclass(frozen=True)
class Robot:
    """``statistics``: low and high of every group of numbers, by part and name; ``relative``: indices of actions."""

    name: str
    number: int
    cameras: tuple[str, ...]
    horizon: int
    groups: Mapping[str, Mapping[str, tuple[list[float], list[float]]]]
    relative: tuple[int, ...]
    clip: bool
    edge: int
    crop: float
    plain_words: bool

    def dimensions(self, part: str, settings: PolicySettings, padded: int) -> Dimensions:
        """Of ``state`` or ``action``. :raises CheckpointError: the settings have another number of names or units."""
        low: list[float] = []
        high: list[float] = []
        own: list[str] = []
        for name, (least, most) in self.groups[part].items():
            low, high = low + least, high + most
            own += [name] if len(least) == 1 else [f"{name}_{index}" for index in range(len(least))]
        names, units = settings.names_and_units(part, len(own))
        clip = self.clip or part == "action"  # the network's actions are held in any case
        rule = EpsilonRule.MIDDLE
        statistics = Normalization(NormalizationKind.RANGE, tuple(low), tuple(high), 0.0, rule, clip)
        return Dimensions(names if settings.names.get(part) else tuple(own), units, padded, statistics)


def find_robot(checkpoint: PolicyCheckpoint, settings: PolicySettings, most: int) -> Robot:
    """The robot that the settings name, or the only one.

    :raises CheckpointError: there are several and none is named, or its files ask for what is not built.
    """
    content = read_json_object(checkpoint.path / "processor_config.json")
    require(content, "processor_class", PROCESSOR, "other generations prepare their inputs otherwise")
    kwargs = content.get("processor_kwargs")
    known = kwargs.get("modality_configs") if isinstance(kwargs, dict) else None
    if not isinstance(kwargs, dict) or not isinstance(known, dict) or not known:
        raise CheckpointError(f"{checkpoint.path / 'processor_config.json'} has no modality_configs; fetch it again.")
    name = settings.embodiment or (next(iter(known)) if len(known) == 1 else "")
    if not isinstance(known.get(name), dict):
        raise CheckpointError(
            f"the checkpoint is for {len(known)} robots and the policy settings have the embodiment {name!r}; want one "
            f"of {', '.join(known)}: set embodiment in the file of --policy-settings."
        )
    numbers = read_json_object(checkpoint.path / "embodiment_id.json")
    number = whole_number(numbers, name, least=0, largest=most - 1)
    return _read(name, number, known[name], kwargs, _statistics(checkpoint, name))


def _statistics(checkpoint: PolicyCheckpoint, name: str) -> Mapping[str, Any]:
    found = read_json_object(checkpoint.path / "statistics.json").get(name)
    if not isinstance(found, dict):
        raise CheckpointError(f"{checkpoint.path / 'statistics.json'} has no statistics of {name}; fetch it again.")
    return found


def _read(
    name: str, number: int, robot: Mapping[str, Any], kwargs: Mapping[str, Any], statistics: Mapping[str, Any]
) -> Robot:
    for key, wanted, reason in (
        ("use_mean_std", False, "numbers are normalised by a range"),
        ("exclude_state", False, "the network reads the state"),
        ("letter_box_transform", False, "pictures keep their own proportions"),
        ("use_albumentations", True, "pictures are resized by areas"),
    ):
        require(kwargs, key, wanted, reason)
    parts: dict[str, Mapping[str, Any]] = {}
    for part in ("video", "state", "action"):
        found = robot.get(part)
        parts[part] = found if isinstance(found, dict) else {}
        keys = parts[part].get("modality_keys")
        if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
            raise CheckpointError(f"processor_config.json: {name} has the {part} {shown(keys)}; want a list of words.")
        for embedding in ("sin_cos_embedding_keys", "mean_std_embedding_keys"):
            used = parts[part].get(embedding) or []
            if used and (embedding.startswith("mean") or switch(kwargs, "apply_sincos_state_encoding", False)):
                raise CheckpointError(
                    f"processor_config.json: {name} has {embedding} for {shown(used)}; want none: these numbers enter "
                    "in a way that is not built."
                )
    for part in parts:
        if not isinstance(parts[part].get("delta_indices") or [], list):
            raise CheckpointError(f"processor_config.json: {name} has no list of delta_indices for its {part}.")
    for part in ("video", "state"):
        if len(parts[part].get("delta_indices") or [0]) != 1:
            raise CheckpointError(f"processor_config.json: {name} reads {part} at several times; want one time.")
    percentiles = switch(kwargs, "use_percentiles", False)
    ends = ("q01", "q99") if percentiles else ("min", "max")
    state = {key: _ends(statistics, "state", key, ends) for key in parts["state"]["modality_keys"]}
    actions, relative = _actions(name, parts["action"], kwargs, statistics, ends, state)
    edge, crop = _picture(kwargs)
    return Robot(
        name,
        number,
        tuple(parts["video"]["modality_keys"]),
        len(parts["action"].get("delta_indices") or []),
        {"state": state, "action": actions},
        relative,
        switch(kwargs, "clip_outliers", True),
        edge,
        crop,
        switch(kwargs, "formalize_language", True),
    )


_Groups = dict[str, tuple[list[float], list[float]]]


def _ends(statistics: Mapping[str, Any], part: str, key: str, ends: tuple[str, str]) -> tuple[list[float], list[float]]:
    rows = statistics.get(part)
    row = rows.get(key) if isinstance(rows, dict) else None
    found = [row.get(end) if isinstance(row, dict) else None for end in ends]
    low, high = found
    if not isinstance(low, list) or not isinstance(high, list) or not low or len(low) != len(high):
        raise CheckpointError(f"statistics.json lacks {' and '.join(ends)} of {part} {key!r}; fetch it again.")
    for value in (*low, *high):
        if type(value) not in (int, float):
            raise CheckpointError(
                f"statistics.json: {part} {key!r} has {shown(value)}; want one number for each dimension: statistics "
                "of every step are not built."
            )
    return low, high


def _actions(
    name: str,
    part: Mapping[str, Any],
    kwargs: Mapping[str, Any],
    statistics: Mapping[str, Any],
    ends: tuple[str, str],
    state: _Groups,
) -> tuple[_Groups, tuple[int, ...]]:
    """Statistics of each group of actions, and the indices of those that are relative to the state."""
    keys = part["modality_keys"]
    configs = part.get("action_configs") or [{}] * len(keys)
    if not isinstance(configs, list) or len(configs) != len(keys):
        raise CheckpointError(f"processor_config.json: {name} has action_configs {shown(configs)}; want one a group.")
    starts, place = {}, 0
    for key, (low, _) in state.items():
        starts[key], place = place, place + len(low)
    groups: _Groups = {}
    relative: list[int] = []
    place = 0
    for key, config in zip(keys, configs, strict=True):
        taken = str(config.get("rep")).lower() == "relative" and switch(kwargs, "use_relative_action", False)
        if taken and str(config.get("type")).lower() != "non_eef":
            raise CheckpointError(
                f"processor_config.json: the action {key!r} of {name} is a pose relative to the hand's; want actions "
                "that add up by their numbers."
            )
        groups[key] = _ends(
            statistics, "relative_action" if taken else "action", key, ("min", "max") if taken else ends
        )
        width = len(groups[key][0])
        if taken:
            of = config.get("state_key") or key
            if starts.get(of) != place or len(state[of][0]) != width:
                raise CheckpointError(
                    f"processor_config.json: the action {key!r} of {name} is relative to the state {of!r}, which does "
                    "not stand at the same places; want it there."
                )
            relative += range(place, place + width)
        place += width
    return groups, tuple(relative)


def _picture(kwargs: Mapping[str, Any]) -> tuple[int, float]:
    """The shorter side of a picture, and the share of each side that is kept."""
    target, cropped = (_square(kwargs, key) for key in ("image_target_size", "image_crop_size"))
    edge = whole_number(kwargs, "shortest_image_edge", target or 256, largest=8192)
    if kwargs.get("crop_fraction") is not None:
        return edge, real_number(kwargs, "crop_fraction")
    return edge, cropped / target if cropped and target else DEFAULT_CROP


def _square(kwargs: Mapping[str, Any], key: str) -> int:
    found = kwargs.get(key)
    if found is None:
        return 0
    if not isinstance(found, list) or len(found) != 2 or found[0] != found[1]:
        raise CheckpointError(f"processor_config.json: {key} is {shown(found)}; want two equal sizes.")
    return whole_number({key: found[0]}, key, largest=8192)
