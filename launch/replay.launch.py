"""Start the node and play a recording to it; all ends with the recording.

ros2 launch edgellm_ros replay.launch.py bag:=kitchen.mcap params_file:=robot.yaml expect:=golden.json
"""

from edgellm_ros.ros.launch_description import launch_description
from edgellm_ros.ros.replay_launch_spec import replay_arguments, replay_specs
from launch import LaunchDescription


def generate_launch_description() -> LaunchDescription:
    return launch_description(replay_arguments(), replay_specs)
