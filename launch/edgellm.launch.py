"""Start the node. ``ros2 launch edgellm_ros edgellm.launch.py --show-args`` lists the arguments."""

from edgellm_ros.ros.launch_description import launch_description
from edgellm_ros.ros.launch_spec import launch_arguments, node_specs
from launch import LaunchDescription


def generate_launch_description() -> LaunchDescription:
    return launch_description(launch_arguments(), node_specs)
