"""Start the tabletop world and the node that acts in it, with the shipped policy. Then publish a task:

ros2 topic pub --once /prompt std_msgs/msg/String "{data: 'touch the red cube'}"
"""

from collections.abc import Mapping

from edgellm_ros.cli.engine_cache import TABLETOP, cached_engine_directory, tabletop_directory
from edgellm_ros.ros.launch_description import launch_description
from edgellm_ros.ros.launch_spec import NodeSpec
from edgellm_ros.tabletop.launch_spec import tabletop_arguments, tabletop_specs
from launch import LaunchDescription


def specs(values: Mapping[str, str]) -> tuple[NodeSpec, ...]:
    tabletop_specs(values)  # what cannot be taken is refused before anything is built
    return tabletop_specs({**values, "engine_dir": str(tabletop_directory(values["engine_dir"]))})


def generate_launch_description() -> LaunchDescription:
    return launch_description(tabletop_arguments(str(cached_engine_directory(TABLETOP))), specs)
