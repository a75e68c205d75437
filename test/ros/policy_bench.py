"""A robot for a policy: cameras and joints that publish, and ears for what it is told to do."""

from __future__ import annotations

from typing import Any

import numpy as np
from lifecycle_msgs.msg import Transition
from node_bench import NodeBench
from policy_checkpoints import reference
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from edgellm_ros.action.chunk import NANOSECONDS
from edgellm_ros.ros.action_messages import time_message

JOINTS, CAMERAS = ("pan", "lift", "elbow", "grip", "wrist"), ("top", "wrist", "side")
TASK = "put the red cube on the blue disc"
ROBOT_SETTINGS = """
meaning: joint_position
step_time: 0.2
state: {names: [pan, lift, elbow, grip, wrist], units: [rad, rad, rad, m, rad]}
action: {names: [pan, lift, elbow, grip], units: [rad, rad, rad, m]}
"""


class Robot:
    """Publishes observations and keeps every action."""

    def __init__(self, bench: NodeBench, cameras: tuple[str, ...], joints: tuple[str, ...]) -> None:
        node = self.node = bench.client
        self.bench, self.joints = bench, joints
        self.trajectories: list[JointTrajectory] = []
        self.chunks: list[Float64MultiArray] = []
        self.images = {name: node.create_publisher(Image, f"{name}/image_raw", 5) for name in cameras}
        self.states = node.create_publisher(JointState, "joint_states", 10)
        depth = QoSProfile(depth=50)
        node.create_subscription(JointTrajectory, "action_trajectory", self.trajectories.append, depth)
        node.create_subscription(Float64MultiArray, "action_chunk", self.chunks.append, depth)

    def now(self) -> int:
        return int(self.node.get_clock().now().nanoseconds)

    def observe(self, pictures: dict[str, np.ndarray], positions: np.ndarray, stamp: int | None = None) -> int:
        """Publish one observation; returns its stamp."""
        stamp = self.now() if stamp is None else stamp
        self.feel(positions, stamp)
        self.see(pictures, stamp)
        return stamp

    def see(self, pictures: dict[str, np.ndarray], stamp: int) -> None:
        for name, pixels in pictures.items():
            height, width = pixels.shape[:2]
            message = Image(height=height, width=width, encoding="rgb8", step=3 * width, data=pixels.tobytes())
            message.header.stamp = time_message(stamp)
            self.images[name].publish(message)

    def feel(self, positions: np.ndarray, stamp: int, names: tuple[str, ...] = ()) -> None:
        message = JointState(name=list(names or self.joints), position=[float(value) for value in positions])
        message.header.stamp = time_message(stamp)
        self.states.publish(message)


def seconds(message: Any) -> float:
    return message.sec + message.nanosec / NANOSECONDS


def pictures() -> dict[str, np.ndarray]:
    """What the cameras see."""
    _, arrays, _ = reference("smolvla")
    return {name: arrays[f"image_{name}"] for name in CAMERAS}


def state() -> np.ndarray:
    """Where the joints are."""
    return np.asarray(reference("smolvla")[1]["all_state"])


def show(bench: NodeBench, robot: Robot, stamp: int | None = None) -> int:
    """Publish one observation and wait until the node has it."""
    stamp = robot.observe(pictures(), state(), stamp)
    policy = bench.node.state.policy
    cameras = policy.cameras

    def came() -> bool:
        cameras._look()  # frames wait to be used
        return cameras.frames.next_after(stamp - 1, slop=0.0) is not None

    bench.wait(came, "the images arrive")
    bench.wait(lambda: policy.joints.at(stamp, 0.0) is not None, "the joints arrive")
    return stamp


def end(bench: NodeBench, way: str) -> None:
    """Stop whatever runs, in one of the ways that there are."""
    transitions = {"deactivate": Transition.TRANSITION_DEACTIVATE, "shut down": Transition.TRANSITION_ACTIVE_SHUTDOWN}
    if way == "cancel":
        bench.client.cancel()
    elif way == "disable":
        bench.enable(False)
    elif way == "reset":
        bench.trigger("reset")
    else:
        assert bench.change(transitions[way])
