"""What a checkpoint cannot say of its numbers: names, units and meaning, from a YAML file of the robot's owner.

.. code-block:: yaml

    meaning: joint_position        # joint_delta, delta_pose, twist, acceleration_curvature
    step_time: 0.0333              # seconds from one action to the next
    optional_cameras: [wrist]      # which the policy can do without
    embodiment: libero_sim         # which robot, where a checkpoint is for several
    contract: droid                # which robot, where a checkpoint of openpi does not say it
    state: {names: [shoulder, elbow], units: [rad, rad]}
    action: {names: [shoulder, elbow], units: [rad, rad]}

Every key may be left out. Without a meaning nothing is published as motion. A file ``policy_settings.yaml`` in the
checkpoint's folder is read where no other is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..action.policy_manifest import ActionMeaning, CameraSlot
from ..errors import CheckpointError, MissingPackageError
from ..json_values import finite_number, is_file, plain_text, read_text, shown

DEFAULT_STEP_TIME = 1 / 30
UNKNOWN_UNIT = "unknown"
SETTINGS_FILE = "policy_settings.yaml"
MOST_BYTES = 1 << 20
_KEYS = ("meaning", "step_time", "optional_cameras", "embodiment", "contract")
_PARTS = ("state", "action")


@dataclass(frozen=True)
class PolicySettings:
    """The file's content; empty names are filled with ``state_0``, ``action_0`` and so on.

    ``stated`` are the keys that the file has, whatever their values.
    """

    meaning: ActionMeaning = ActionMeaning.UNKNOWN
    step_time: float = DEFAULT_STEP_TIME
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    units: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    optional_cameras: tuple[str, ...] = ()
    embodiment: str = ""
    contract: str = ""
    stated: frozenset[str] = frozenset()

    def cameras(self, keys: Sequence[str]) -> tuple[CameraSlot, ...]:
        """A slot for each camera of a policy.

        :raises CheckpointError: the settings name an optional camera that the policy does not have.
        """
        slots = tuple(CameraSlot(key) for key in keys)
        for name in self.optional_cameras:
            if name not in {label for slot in slots for label in (slot.key, slot.name)}:
                raise CheckpointError(
                    f"the policy settings have the optional camera {name!r}; the policy's cameras are "
                    f"{', '.join(slot.name for slot in slots)}."
                )
        return tuple(CameraSlot(slot.key, not {slot.key, slot.name} & set(self.optional_cameras)) for slot in slots)

    def names_and_units(self, part: str, width: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of ``state`` or ``action``.

        :raises CheckpointError: not as many as the policy has numbers.
        """
        names = self.names.get(part) or tuple(f"{part}_{index}" for index in range(width))
        units = self.units.get(part) or (UNKNOWN_UNIT,) * width
        for label, entries in (("names", names), ("units", units)):
            if len(entries) != width:
                raise CheckpointError(
                    f"the policy settings have {len(entries)} {part} {label}; the checkpoint has {width} numbers: "
                    "give one "
                    "each, in its order."
                )
        return names, units


def settings_file(source: Path | str, given: Path | None) -> Path | None:
    """The file that was given, or the one in the checkpoint's folder ``source``; None where there is neither."""
    beside = Path(source) / SETTINGS_FILE
    return beside if given is None and is_file(beside) else given


def read_policy_settings(path: Path | None, contract: str | None = None) -> PolicySettings:
    """The file's settings, and the ``contract`` that is named beside it.

    :raises CheckpointError: the file is missing or no YAML, a key is unknown or of the wrong kind, or the file names
        another contract.
    """
    named = contract or ""
    if path is None:
        return PolicySettings(contract=named)
    try:
        import yaml
    except ImportError:
        raise MissingPackageError(
            "the package pyyaml is not installed; want it for policy settings: pip install pyyaml."
        ) from None
    try:
        text = read_text(path, CheckpointError, "want YAML in UTF-8", MOST_BYTES)
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise CheckpointError(f"{path} repeats a part by an alias; write it out.")  # a few make gigabytes
        content = yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise CheckpointError(f"{path} cannot be read as YAML ({str(error).splitlines()[0]}); check it.") from None
    if not isinstance(content, dict) or set(content) - {*_KEYS, *_PARTS}:
        raise CheckpointError(f"{path} holds {shown(content)}; want the keys {', '.join(_KEYS)}, state and action.")
    try:
        parts = {part: _part(part, content.get(part) or {}) for part in _PARTS}
        return PolicySettings(
            ActionMeaning(content.get("meaning", ActionMeaning.UNKNOWN.value)),
            finite_number("step_time", content.get("step_time", DEFAULT_STEP_TIME)),
            {part: names for part, (names, _) in parts.items()},
            {part: units for part, (_, units) in parts.items()},
            _words("optional_cameras", content.get("optional_cameras")),
            plain_text(content.get("embodiment") or ""),
            _contract(plain_text(content.get("contract") or ""), named),
            frozenset(content),
        )
    except ValueError as error:
        meanings = ", ".join(row.value for row in ActionMeaning)
        raise CheckpointError(f"{path}: {error}; want one of {meanings}, seconds and lists of words.") from None


def _contract(own: str, named: str) -> str:
    if own and named and own != named:
        raise ValueError(f"contract is {own} where {named} is asked for")
    return own or named


def _part(name: str, content: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not isinstance(content, dict) or set(content) - {"names", "units"}:
        raise ValueError(f"{name} is {shown(content)}")
    return _words(name, content.get("names")), _words(name, content.get("units"))


def _words(name: str, content: Any) -> tuple[str, ...]:
    entries = content or []
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise ValueError(f"{name} is {shown(content)}")
    return tuple(map(plain_text, entries))
