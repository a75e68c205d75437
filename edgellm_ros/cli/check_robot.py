"""Whether parameters are such that the node takes them, and fit the engine: cameras, joints, limits, pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..action.policy_manifest import ActionMeaning, PolicyManifest
from ..errors import EdgeLLMError
from ..ros.cameras import Camera, cameras_of, unseen
from ..ros.parameter_rules import RULES
from ..ros.parameter_schema import schema
from ..ros.parameters import Settings
from ..ros.policy_host import check_settings
from .findings import Findings

_SUBJECT = "parameters"
_OF_ROS = ("use_sim_time", "qos_overrides.", "start_type_description_service")


def check_parameters(findings: Findings, given: Mapping[str, Any], path: Path | None) -> Settings:
    """The settings of these values; what the node would not take is told, and its default stands in."""
    definitions = schema().by_name
    taken: dict[str, Any] = {}
    own = {name: value for name, value in given.items() if not name.startswith(_OF_ROS)}
    for name, value in own.items():
        if name in definitions:
            try:
                definitions[name].convert(value)
                taken[name] = value
            except ValueError as error:
                findings.problem(_SUBJECT, str(error))
        else:
            findings.warning(_SUBJECT, f"{name} is given and the node has no such parameter; {schema().nearest(name)}")
    values = {**schema().defaults(), **taken}
    for names, bad in RULES:
        if reason := bad({name: values[name] for name in names}):
            findings.problem(_SUBJECT, reason)
    if path is not None and own:
        findings.ok(_SUBJECT, f"{len(taken)} of {len(own)} values of {path} are taken by the node.")
    return Settings.from_values(taken)


def check_inputs(
    findings: Findings, settings: Settings, policy: PolicyManifest | None, sees: bool, resolve: Any
) -> tuple[Camera, ...]:
    """The cameras that the node would subscribe to, where they fit what the engine looks at.

    ``resolve`` gives a topic's whole name after remaps.
    """
    if policy is None and not sees:
        for name, value in settings.values().items():
            if reason := unseen(name, value):
                findings.problem("cameras", reason)
        return ()
    names = () if policy is None else [slot.name for slot in policy.seen_cameras]
    cameras: tuple[Camera, ...] = ()
    with findings.of("cameras"):
        cameras = cameras_of(settings, resolve, names)
        if policy is not None:
            policy.present_cameras([camera.name for camera in cameras])
        findings.ok("cameras", ", ".join(f"{camera.topic} ({camera.message_type})" for camera in cameras) + ".")
    return cameras


def check_actions(findings: Findings, settings: Settings, policy: PolicyManifest) -> tuple[str, ...]:
    """The names of a policy's actions, where they and the limits are one for each dimension."""
    names = settings.action.joint_names or policy.action.names
    try:
        check_settings(policy, settings.action, settings.safety, names)
    except EdgeLLMError as error:
        findings.problem("actions", str(error))
        return ()
    topic = "action_trajectory" if policy.meaning is ActionMeaning.JOINT_POSITION else "action_chunk"
    units = ", ".join(f"{name} [{unit}]" for name, unit in zip(names, policy.action.units, strict=True))
    findings.ok("actions", f"{policy.meaning.value} on {topic}: {units}.")
    bounds = settings.safety
    if not (bounds.lower or bounds.upper or bounds.max_step):
        findings.warning(
            "actions",
            "safety.lower, safety.upper and safety.max_step are empty, so nothing limits an action; set them.",
        )
    return names
