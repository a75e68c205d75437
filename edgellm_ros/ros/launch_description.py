"""Turns launch arguments and node specs into what ``ros2 launch`` runs; ``launch`` is imported when it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .launch_spec import LaunchArgument, NodeSpec


def launch_description(
    arguments: Sequence[LaunchArgument], specs: Callable[[Mapping[str, str]], Sequence[NodeSpec]]
) -> Any:
    """A ``launch.LaunchDescription`` that declares the arguments and starts the nodes that ``specs`` makes of them."""
    from launch.actions import DeclareLaunchArgument, OpaqueFunction
    from launch.launch_description import LaunchDescription
    from launch.substitutions import LaunchConfiguration
    from launch_ros.actions import Node

    def nodes(context: Any) -> list[Any]:
        values = {argument.name: LaunchConfiguration(argument.name).perform(context) for argument in arguments}
        return [
            Node(
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
            for spec in specs(values)
        ]

    declared = [
        DeclareLaunchArgument(
            argument.name,
            default_value=argument.default,
            description=argument.description,
            **({"choices": list(argument.choices)} if argument.choices else {}),
        )
        for argument in arguments
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=nodes)])
