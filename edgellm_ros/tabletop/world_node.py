"""The tabletop as a ROS 2 node with the face of a robot: cameras and joint states out, joint trajectories in.

``top/image_raw`` and ``angled/image_raw`` (rgb8, 15 a second), ``joint_states`` (60 a second) and, in simulated time,
``/clock`` are published; ``joint_trajectory`` is followed. ``~/reset`` begins the episode of the parameter ``seed``,
``~/score`` judges it, ``~/task`` says in words what is to be done.
"""

from __future__ import annotations

import array
import json
import time
from dataclasses import asdict
from typing import Any

from builtin_interfaces.msg import Time
from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message
from rosgraph_msgs.msg import Clock as ClockMessage
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from ..errors import RequestError
from ..json_values import plain_text
from .cameras import CAMERA_NAMES, IMAGE_SIZE
from .geometry import JOINT_NAMES
from .launch_spec import LAST_SEED, SPEEDS
from .physics import SUBSTEP
from .simulation import STEP, Simulation
from .trajectory_follower import NANOSECONDS, TrajectoryPoint

STEPS_A_FRAME = 4
LARGEST_TRAJECTORY = 2**20  # bytes; thousands of points. Reading more would hold up the world
CATCH_UP = 30  # steps at most in one call of the timer; a machine that is too slow falls behind instead of hanging
QOS = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
LATCHED = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class WorldNode(Node):  # type: ignore[misc]
    """Owned by one executor thread."""

    def __init__(self, **options: object) -> None:
        super().__init__("tabletop", **options)
        fixed = {"read_only": True}
        self.declare_parameter(
            "seed",
            0,
            ParameterDescriptor(
                description="Of the episode that ~/reset begins.",
                integer_range=[IntegerRange(from_value=0, to_value=LAST_SEED)],
            ),
        )
        self.declare_parameter(
            "held_out", False, ParameterDescriptor(description="Whether the task names a combination never trained on.")
        )
        self.declare_parameter(
            "simulated_time",
            True,
            ParameterDescriptor(description="Publish /clock and stamp with it; false: the node's own clock.", **fixed),
        )
        self.declare_parameter(
            "real_time_factor",
            1.0,
            ParameterDescriptor(
                description="Simulated seconds in one second.",
                floating_point_range=[FloatingPointRange(from_value=SPEEDS[0], to_value=SPEEDS[1])],
                **fixed,
            ),
        )
        self.simulated = bool(self.get_parameter("simulated_time").value)
        self.factor = float(self.get_parameter("real_time_factor").value)
        self.simulation = Simulation(self._seed(), held_out=self._held_out())
        self.now = NANOSECONDS if self.simulated else self._clock_now()
        self.refused, self._begun = 0, self.now
        self._images = {name: self.create_publisher(Image, f"{name}/image_raw", QOS) for name in CAMERA_NAMES}
        self._joints = self.create_publisher(JointState, "joint_states", QOS)
        self._task = self.create_publisher(String, "~/task", LATCHED)
        self._clock_topic = self.create_publisher(ClockMessage, "/clock", QOS) if self.simulated else None
        self.create_subscription(JointTrajectory, "joint_trajectory", self._on_trajectory, QOS, raw=True)
        self.create_service(Trigger, "~/reset", self._on_reset)
        self.create_service(Trigger, "~/score", self._on_score)
        self._started, self._done = time.monotonic(), 0
        self._timer = self.create_timer(
            SUBSTEP / self.factor, self._tick, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )
        self._say_task()

    def step(self) -> None:
        """One step of physics, and what is due to be published after it."""
        self.now = self.now + STEP if self.simulated else self._clock_now()
        self.simulation.step(self.now)
        stamp = Time(sec=self.now // NANOSECONDS, nanosec=self.now % NANOSECONDS)
        if self._clock_topic is not None:
            self._clock_topic.publish(ClockMessage(clock=stamp))
        message = JointState(name=list(JOINT_NAMES), position=self.simulation.joints.tolist())
        message.header.stamp = stamp
        self._joints.publish(message)
        if self.simulation.steps % STEPS_A_FRAME == 0:
            self._publish_images(stamp)

    def _publish_images(self, stamp: Time) -> None:
        if not any(publisher.get_subscription_count() for publisher in self._images.values()):
            return
        for name, view in zip(CAMERA_NAMES, self.simulation.views(), strict=True):
            message = Image(height=IMAGE_SIZE, width=IMAGE_SIZE, encoding="rgb8", step=3 * IMAGE_SIZE)
            message.header.stamp = stamp
            message.header.frame_id = f"{name}_camera"
            message.data = array.array("B", view.tobytes())
            self._images[name].publish(message)

    def _tick(self) -> None:
        due = int((time.monotonic() - self._started) * self.factor / SUBSTEP) - self._done
        for _ in range(min(due, CATCH_UP)):
            self.step()
        self._done += due

    def _on_trajectory(self, serialised: bytes) -> None:
        try:
            message = _trajectory(serialised)
            stamp = message.header.stamp.sec * NANOSECONDS + message.header.stamp.nanosec
            points = [
                TrajectoryPoint(
                    point.time_from_start.sec * NANOSECONDS + point.time_from_start.nanosec, list(point.positions)
                )
                for point in message.points
            ]
            if 0 < stamp < self._begun:
                raise RequestError("The trajectory is not followed: it was made before the episode began.")
            self.simulation.follower.accept(list(message.joint_names), points, stamp, self.now)
        except RequestError as error:
            self.refused += 1
            self.get_logger().warning(str(error), throttle_duration_sec=1.0)

    def _on_reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        episode = self.simulation.reset(self._seed(), held_out=self._held_out())
        self.refused, self._begun = 0, self.now
        self._say_task()
        response.success = True
        response.message = json.dumps({"seed": episode.seed, "held_out": episode.held_out, "task": episode.text})
        return response

    def _on_score(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        score = self.simulation.score()
        response.success = score.success
        response.message = json.dumps({**asdict(score), "refused_trajectories": self.refused})
        return response

    def _say_task(self) -> None:
        self._task.publish(String(data=self.simulation.episode.text))

    def _seed(self) -> int:
        return int(self.get_parameter("seed").value)

    def _held_out(self) -> bool:
        return bool(self.get_parameter("held_out").value)

    def _clock_now(self) -> int:
        return int(self.get_clock().now().nanoseconds)


def _trajectory(serialised: bytes) -> Any:
    """:raises RequestError: it is too large, or no message of that kind."""
    if len(serialised) > LARGEST_TRAJECTORY:
        raise RequestError(
            f"The trajectory is not followed: it has {len(serialised)} bytes; want at most {LARGEST_TRAJECTORY}: send "
            "fewer points."
        )
    try:
        return deserialize_message(serialised, JointTrajectory)
    except Exception as error:  # of the middleware, which has no class of its own for it
        raise RequestError(
            f"The trajectory is not followed: {len(serialised)} bytes cannot be read ({plain_text(error)})."
        ) from None
