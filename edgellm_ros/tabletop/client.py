"""The other side of the tabletop's world and of the node that acts in it: resets, asks, watches and judges."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from rcl_interfaces.msg import Parameter
from rcl_interfaces.srv import SetParametersAtomically
from rclpy.parameter import Parameter as ClientParameter
from rclpy.qos import qos_profile_sensor_data
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from ..errors import EdgeLLMError, RefusalCode, RequestError
from ..json_values import shown
from ..ros.client import PromptClient, spin_until
from ..ros.publishers import reliable
from .cameras import CAMERA_NAMES
from .geometry import JOINT_NAMES, Array
from .smoothness import CommandTrace
from .trajectory_follower import NANOSECONDS, TrajectoryFollower, TrajectoryPoint

_QUEUED = qos_profile_sensor_data.depth  # messages of joints that may wait from before
_CALL_TIMEOUT = 5.0  # s for an answer of a service
_CALL_TRIES = 4  # an answer can get lost while discovery still goes on
_SEED = re.compile(r"seed=(-?\d+)")


class TabletopClient(PromptClient):
    """Spun by the thread that calls it. What it collects counts from the last ``reset``.

    ``now`` is the world's time in nanoseconds, ``joints`` float64 [4], ``views`` the last picture of each camera (uint8
    RGB [128,128,3]) and ``seeds`` the noise seed of each chunk. ``staleness_ms`` says how old each trajectory's
    observation was when the trajectory arrived.
    """

    def __init__(self, *, world: str = "tabletop", **options: Any) -> None:
        super().__init__(**options)
        self.now = 0
        self.joints: Array = np.zeros(len(JOINT_NAMES))
        self.views: dict[str, Array] = {}
        self._view_stamps: dict[str, int] = {}
        self._follower = TrajectoryFollower(JOINT_NAMES, self.joints)
        self._forget()
        sensor = qos_profile_sensor_data
        for name in CAMERA_NAMES:
            self.create_subscription(Image, f"{name}/image_raw", lambda m, name=name: self._take_image(name, m), sensor)
        self.create_subscription(JointState, "joint_states", self._take_joints, sensor)
        self.create_subscription(JointTrajectory, "joint_trajectory", self._take_trajectory, reliable(10))
        self.create_subscription(Float64MultiArray, "action_chunk", self._take_chunk, reliable(10))
        server = options.get("server", "edgellm")
        self._world_parameters = self.create_client(SetParametersAtomically, f"{world}/set_parameters_atomically")
        self._node_parameters = self.create_client(SetParametersAtomically, f"{server}/set_parameters_atomically")
        self._reset = self.create_client(Trigger, f"{world}/reset")
        self._score = self.create_client(Trigger, f"{world}/score")

    def reset(self, executor: Any, seed: int, *, held_out: bool = False) -> str:
        """Begin the episode of a seed and wait for its first pictures; the task in words.

        :raises EdgeLLMError: the world does not answer.
        """
        self._change(executor, self._world_parameters, {"seed": seed, "held_out": held_out})
        episode = json.loads(self._call(executor, self._reset, Trigger.Request()).message)
        self._forget()
        begun = self.now
        self.wait(executor, lambda: len(self.views) == len(CAMERA_NAMES) and min(self._view_stamps.values()) > begun)
        return str(episode["task"])

    def score(self, executor: Any) -> dict[str, Any]:
        """How the task stands: the fields of ``Score``."""
        return dict(json.loads(self._call(executor, self._score, Trigger.Request()).message))

    def set_parameters(self, executor: Any, values: dict[str, Any]) -> None:
        """Change parameters of the node, all of them or none.

        :raises RequestError: one is refused; the sentence is the node's own.
        """
        self._change(executor, self._node_parameters, values)

    def wait(self, executor: Any, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        """Spin until the condition holds.

        :raises EdgeLLMError: it does not in time.
        """
        if not spin_until(executor, condition, timeout):
            raise EdgeLLMError(
                f"The tabletop said nothing for {timeout:g} s; see whether the world still runs.",
                RefusalCode.NOT_ACTIVE,
            )

    def catch_up(self, executor: Any) -> None:
        """Spin until ``now`` is the world's time again, after a while in which nobody spun.

        :raises EdgeLLMError: the world says nothing.
        """
        heard = self._states
        self.wait(executor, lambda: self._states > heard + _QUEUED)

    def smoothness(self) -> CommandTrace:
        """The joint commands since the last reset, and where plans met."""
        return self._trace

    def _forget(self) -> None:
        self.deltas, self.responses, self.reports = [], [], []
        self.seeds: list[int] = []
        self.staleness_ms: list[float] = []
        self.holds = 0
        self._follower.reset(self.joints)
        self._trace = CommandTrace()
        self._states = 0

    def _change(self, executor: Any, client: Any, values: dict[str, Any]) -> None:
        parameters = [_message(name, value) for name, value in values.items()]
        result = self._call(executor, client, SetParametersAtomically.Request(parameters=parameters)).result
        if not result.successful:
            names = ", ".join(map(shown, values))
            unknown = f"There is no parameter {names}; want one of the node's, such as action.noise_seed."
            undeclared = "undeclared" in result.reason  # rclpy's own sentence, which names none
            raise RequestError(unknown if undeclared else result.reason, RefusalCode.BAD_PARAMETER)

    def _call(self, executor: Any, client: Any, request: Any) -> Any:
        self.wait(executor, client.service_is_ready)
        for _ in range(_CALL_TRIES):
            future = client.call_async(request)
            if spin_until(executor, future.done, _CALL_TIMEOUT):
                return future.result()
            client.remove_pending_request(future)
        raise EdgeLLMError(
            f"The service {client.srv_name} does not answer; see whether the node still runs.", RefusalCode.NOT_ACTIVE
        )

    def _take_image(self, name: str, message: Image) -> None:
        self.views[name] = np.frombuffer(message.data, dtype=np.uint8).reshape(message.height, message.width, 3)
        self._view_stamps[name] = _nanoseconds(message.header.stamp)

    def _take_joints(self, message: JointState) -> None:
        self.now = _nanoseconds(message.header.stamp)
        self.joints = np.array(message.position)
        self._states += 1
        if self._states % 4 == 1:  # every tick of the policy
            self._trace.add(self._follower.sample(self.now))

    def _take_trajectory(self, message: JointTrajectory) -> None:
        stamp = _nanoseconds(message.header.stamp)
        points = [
            TrajectoryPoint(_nanoseconds(point.time_from_start), list(point.positions)) for point in message.points
        ]
        try:
            self._follower.accept(list(message.joint_names), points, stamp, self.now)
        except RequestError:
            return  # the world says so
        if points:
            self.staleness_ms.append(1000.0 * max(self.now - stamp, 0) / NANOSECONDS)
            self._trace.seam()
        else:
            self.holds += 1

    def _take_chunk(self, message: Float64MultiArray) -> None:
        found = _SEED.search(message.layout.dim[0].label) if message.layout.dim else None
        if found:
            self.seeds.append(int(found[1]))


def _nanoseconds(time: Any) -> int:
    """Of a Time or a Duration."""
    return int(time.sec) * NANOSECONDS + int(time.nanosec)


def _message(name: str, value: Any) -> Parameter:
    """:raises RequestError: no parameter can have such a value."""
    try:
        message = ClientParameter(name, value=value).to_parameter_msg()
        serialize_message(message)  # which finds numbers and texts that no message can carry
        return message
    except (TypeError, ValueError, AssertionError, OverflowError, SystemError):
        raise RequestError(
            f"{shown(name)} is set to {shown(value)}; want true or false, a number, a text, or a list of one kind of "
            "these.",
            RefusalCode.BAD_PARAMETER,
        ) from None
