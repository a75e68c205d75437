"""Turns launch arguments and node specs into what ``ros2 launch`` runs; ``launch`` is imported when it is called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .launch_spec import CommandSpec, LaunchArgument, NodeSpec


def launch_description(
    arguments: Sequence[LaunchArgument], specs: Callable[[Mapping[str, str]], Sequence[NodeSpec | CommandSpec]]
) -> Any:
    """A ``launch.LaunchDescription`` that declares the arguments and starts what ``specs`` makes of them."""
    from launch.actions import DeclareLaunchArgument, ExecuteProcess, OpaqueFunction, Shutdown
    from launch.launch_description import LaunchDescription
    from launch.substitutions import LaunchConfiguration
    from launch_ros.actions import Node

    def started(context: Any) -> list[Any]:
        values = {argument.name: LaunchConfiguration(argument.name).perform(context) for argument in arguments}
        return [command(spec) if isinstance(spec, CommandSpec) else node(spec) for spec in specs(values)]

    def node(spec: NodeSpec) -> Any:
        return Node(
            package=spec.package,
            executable=spec.executable,
            name=spec.name,
            namespace=spec.namespace,
            parameters=[*spec.parameter_files, dict(spec.parameters)],
            remappings=list(spec.remappings),
            ros_arguments=spec.log_arguments(),
            additional_env=dict(spec.environment),
            output="screen",
        )

    def command(spec: CommandSpec) -> Any:
        return ExecuteProcess(
            cmd=[sys.executable, "-m", spec.module, *spec.arguments()],
            name=spec.name,
            additional_env=dict(spec.environment),
            output="screen",
            on_exit=Shutdown(reason=f"{spec.name} has ended"),
        )

    declared = [
        DeclareLaunchArgument(
            argument.name,
            default_value=argument.default,
            description=argument.description,
            **({"choices": list(argument.choices)} if argument.choices else {}),
        )
        for argument in arguments
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=started)])
