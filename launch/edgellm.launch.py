"""Start the node. ``ros2 launch edgellm_ros edgellm.launch.py --show-args`` lists the arguments."""

from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from edgellm_ros.ros.launch_spec import launch_arguments, node_specs
from launch import LaunchContext, LaunchDescription


def _nodes(context: LaunchContext) -> list[Node]:
    values = {argument.name: LaunchConfiguration(argument.name).perform(context) for argument in launch_arguments()}
    return [
        Node(
            package=spec.package,
            executable=spec.executable,
            name=spec.name,
            namespace=spec.namespace,
            parameters=[*spec.parameter_files, dict(spec.parameters)],
            ros_arguments=spec.log_arguments(),
            additional_env=dict(spec.environment),
            output="screen",
        )
        for spec in node_specs(values)
    ]


def generate_launch_description() -> LaunchDescription:
    declared = [
        DeclareLaunchArgument(
            argument.name,
            default_value=argument.default,
            description=argument.description,
            **({"choices": list(argument.choices)} if argument.choices else {}),
        )
        for argument in launch_arguments()
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=_nodes)])
