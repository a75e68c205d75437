"""What the launch file starts, as plain data: testable, and runnable, without launch_ros.

Launch arguments cover deployment only; everything else is in the parameter file. An argument that is left empty does
not touch what that file says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..errors import EdgeLLMError, RefusalCode
from ..resources import resource_path
from .dds_profile import PROFILE_NAME, profile_variable
from .parameter_schema import schema

PARAMETER_FILE = "config/edgellm.yaml"
ParameterValue = bool | int | float | str | list[str]
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class LaunchArgument:
    """An argument of the launch file; ``choices`` is empty where any text goes."""

    name: str
    default: str
    description: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeSpec:
    """One node to start. ``parameters`` win over the files."""

    name: str
    namespace: str
    parameter_files: tuple[str, ...] = ()
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    log_level: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    package: str = "edgellm_ros"
    executable: str = "edgellm_node"
    module: str = "edgellm_ros.ros.node"  # what python runs where no executable is installed
    remappings: tuple[tuple[str, str], ...] = ()

    def arguments(self) -> list[str]:
        """The command line after the executable, as ``ros2 run`` would be given it."""
        arguments = ["--ros-args", "-r", f"__node:={self.name}"]
        if self.namespace:
            arguments += ["-r", f"__ns:={'/' + self.namespace.strip('/')}"]
        for topic, target in self.remappings:
            arguments += ["-r", f"{topic}:={target}"]
        for path in self.parameter_files:
            arguments += ["--params-file", path]
        for name, value in self.parameters.items():
            arguments += ["-p", f"{name}:={json.dumps(value, ensure_ascii=False)}"]  # JSON is YAML with safe quotes
        return [*arguments, *self.log_arguments()]

    def log_arguments(self) -> list[str]:
        """The part that sets the log level."""
        return ["--log-level", self.log_level] if self.log_level else []

    @property
    def whole_name(self) -> str:
        """With its namespace."""
        return "/".join(["", *(part for part in self.namespace.split("/") if part), self.name])


@dataclass(frozen=True)
class CommandSpec:
    """The command ``edgellm`` beside the nodes, with these words; when it ends, all of the launch does."""

    name: str
    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    module: str = "edgellm_ros.cli.main"

    def arguments(self) -> list[str]:
        """The command line after the module."""
        return list(self.words)


def launch_arguments() -> tuple[LaunchArgument, ...]:
    """All arguments of ``edgellm.launch.py`` in the order that ``--show-args`` gives them."""
    backends = schema().by_name["engine.backend"].choices
    return (
        LaunchArgument("params_file", str(resource_path(PARAMETER_FILE)), "Parameter file (YAML) of the node."),
        LaunchArgument("namespace", "", "Namespace of the node and its topics; empty is the root."),
        LaunchArgument("node_name", "edgellm", "Name of the node."),
        LaunchArgument("engine_dir", "", "Engine directory; empty takes engine.directory of the parameter file."),
        LaunchArgument("use_sim_time", "false", "Take the time from /clock.", ("true", "false")),
        LaunchArgument("autostart", "true", "Configure and activate the node at once.", ("true", "false")),
        LaunchArgument("log_level", "info", "Lowest level to log.", ("debug", "info", "warn", "error", "fatal")),
        LaunchArgument("backend", "", "Backend; empty takes engine.backend of the parameter file.", ("", *backends)),
    )


def node_specs(arguments: Mapping[str, str], environment: Mapping[str, str] | None = None) -> tuple[NodeSpec, ...]:
    """The nodes for these launch arguments; those that are absent take their default.

    ``environment`` (that of the process if None) decides whether the Fast DDS profile is set: one that the user has
    chosen is left alone.

    :raises EdgeLLMError: an unknown argument, or a value that is not one of its choices.
    """
    values = argument_values(launch_arguments(), arguments)
    parameters: dict[str, ParameterValue] = {
        "use_sim_time": boolean(values["use_sim_time"]),
        "autostart": boolean(values["autostart"]),
    }
    for argument, parameter in (("engine_dir", "engine.directory"), ("backend", "engine.backend")):
        if values[argument]:
            parameters[parameter] = values[argument]
    return (
        NodeSpec(
            name=values["node_name"],
            namespace=values["namespace"],
            parameter_files=(values["params_file"],) if values["params_file"] else (),
            parameters=parameters,
            log_level=values["log_level"],
            environment=profile_environment(os.environ if environment is None else environment),
        ),
    )


def argument_values(declared: Iterable[LaunchArgument], given: Mapping[str, str]) -> dict[str, str]:
    """All declared arguments with what was given or their default.

    :raises EdgeLLMError: an unknown argument, or a value that is not one of its choices.
    """
    known = {argument.name: argument for argument in declared}
    for name, value in given.items():
        if name not in known:
            raise _refusal(f"The launch argument {name} does not exist; want one of {', '.join(known)}.")
        choices = known[name].choices
        if choices and value.lower() not in choices:
            wanted = ", ".join(choice or "nothing" for choice in choices)
            raise _refusal(f"The launch argument {name} is {value!r}; want one of {wanted}.")
    return {name: given.get(name, argument.default) for name, argument in known.items()}


def boolean(text: str) -> bool:
    """What an argument with the choices true and false says."""
    return _BOOLEANS[text.lower()]


def profile_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The Fast DDS profile of this package for a process to start; empty where the user has set one."""
    variable = profile_variable(environment)
    return {} if environment.get(variable) else {variable: str(resource_path(PROFILE_NAME))}


def _refusal(sentence: str) -> EdgeLLMError:
    return EdgeLLMError(sentence, RefusalCode.BAD_PARAMETER)
