"""The topics of a policy: cameras and joints in, actions out, and what stops them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nav_msgs.msg import Odometry
from rclpy.clock import Clock, ClockType
from rclpy.qos import QoSProfile, qos_profile_sensor_data
from sensor_msgs.msg import JointState

from ..errors import ObservationError, Refusal, RefusalCode
from .action_publishers import ActionPublishers
from .driving_inputs import DrivingInputs
from .images import CameraInputs
from .joint_states import JUMP, NANOSECONDS, JointEvent, JointTracker
from .motion import Motion
from .odometry import OdometryEvent, OdometryTracker
from .policy_run import PolicyRun
from .prompt_request import PromptRequest

if TYPE_CHECKING:
    from .counters import Counters
    from .generation_run import Outputs
    from .lifecycle_node import EdgeLLMNode
    from .parameters import Settings
    from .policy_host import PolicyHost

JOINT_DEPTH, ODOMETRY_DEPTH = 10, 50
WATCH_PERIOD = 0.02  # s between looks at whether a plan has run out
SILENT_LOOKS = 5  # in a row before silence counts: messages may wait for this thread, which had no time for them


class PolicyIO:
    """Made and closed by transitions, in the executor's thread."""

    def __init__(self, node: EdgeLLMNode, host: PolicyHost, cameras: CameraInputs, counters: Counters) -> None:
        """Subscribe and advertise; the cameras stay the caller's to close."""
        settings = node.parameters.settings()
        self.host = host
        self._node, self._counters = node, counters
        self.cameras = cameras
        self.joints = JointTracker(host.state_names)
        self.outputs = ActionPublishers(node, node.qos, host.joint_names, host.manifest.meaning, settings.action.stamp)
        self.motion = Motion(self.outputs, host.manifest.meaning, self._stopped)
        self.odometry: OdometryTracker | None = None
        self._driving: DrivingInputs | None = None
        driving = host.manifest.driving
        if driving is None:
            self._subscription = self._subscribe(JointState, "joint_states", self._on_joint_states, JOINT_DEPTH)
        else:
            self.odometry = OdometryTracker()
            self._driving = DrivingInputs(cameras, self.odometry, driving, host.manifest.step_time)
            self._subscription = self._subscribe(Odometry, "odom", self._on_odometry, ODOMETRY_DEPTH)
        self._silence = 0  # looks in a row at which joints, odometry or cameras were silent
        self._clock = 0  # ns; the time at the last look
        self._runs_on = False  # whether the task has chunk after chunk, whatever action.rate has become meanwhile
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(WATCH_PERIOD, node.guarded(self._watch), clock=steady)

    def _subscribe(self, kind: type, topic: str, receive: Callable[[Any], None], depth: int) -> Any:
        sensor = qos_profile_sensor_data
        node = self._node
        return node.create_subscription(
            kind,
            topic,
            node.guarded(receive),
            QoSProfile(
                history=sensor.history, depth=depth, reliability=sensor.reliability, durability=sensor.durability
            ),
            event_callbacks=node.qos.subscription_callbacks(node.resolve_topic_name(topic)),
            qos_overriding_options=node.qos.overridable(),
        )

    def now(self) -> int:
        """The node's clock, in ns."""
        return int(self._node.get_clock().now().nanoseconds)

    def make_run(self, request: PromptRequest, outputs: Outputs) -> PolicyRun:
        """The worker's side of a task."""
        self.outputs.set_stamp(request.settings.action.stamp)
        self._runs_on = request.settings.action.rate > 0
        return PolicyRun(
            request,
            self.host,
            self.cameras,
            self.joints,
            self.motion,
            self.now,
            self._node.parameters.settings,
            outputs,
            self._driving,
        )

    def stop(self, refusal: Refusal) -> None:
        """Hold at once, whatever is being computed."""
        self.motion.stop(refusal)

    def values(self) -> dict[str, object]:
        """What diagnostics show."""
        return {
            **{f"chunks.{name}": count for name, count in self.motion.counts().items()},
            **{f"joint_states.{name}": count for name, count in self.joints.events().items()},
            **{f"odom.{name}": count for name, count in (self.odometry.events() if self.odometry else {}).items()},
            "moving": self.motion.moving,
        }

    def close(self) -> None:
        """Take everything back."""
        self._node.destroy_timer(self._timer)
        self._node.destroy_subscription(self._subscription)
        self.outputs.close()

    def _stopped(self, refusal: Refusal) -> None:
        self._counters.refused(refusal)
        self._node.warn(f"motion {refusal.code.value}", refusal.message)

    def _on_joint_states(self, message: Any) -> None:
        stamp = message.header.stamp.sec * NANOSECONDS + message.header.stamp.nanosec
        event = self.joints.add(message.name, message.position, stamp, self.now())
        if event not in (JointEvent.TAKEN, JointEvent.OUT_OF_ORDER):
            self._node.warn(f"joint_states {event.value}", f"A message on joint_states was turned away: {event.value}.")

    def _on_odometry(self, message: Any) -> None:
        if self.odometry is None:
            return
        stamp = message.header.stamp.sec * NANOSECONDS + message.header.stamp.nanosec
        place, turn = message.pose.pose.position, message.pose.pose.orientation
        event = self.odometry.add((place.x, place.y, place.z), (turn.x, turn.y, turn.z, turn.w), stamp, self.now())
        if event not in (OdometryEvent.TAKEN, OdometryEvent.OUT_OF_ORDER):
            self._node.warn(f"odom {event.value}", f"A message on odom was turned away: {event.value}.")

    def _watch(self) -> None:
        now, before = self.now(), self._clock
        self._clock = now
        if now < before - JUMP * NANOSECONDS:
            self._forget_times((before - now) / NANOSECONDS)
        if not self._runs_on or not self.motion.moving or not self._node.bridge.load[0]:
            self._silence = 0
            return
        settings = self._node.parameters.settings()
        if settings.action.fixed_delay >= 0:
            return  # a replay has no robot that could starve
        holds = settings.safety.on_fault == "hold"
        silence = self._silent(settings, now) if not self.motion.watch(now, hold=holds) and holds else None
        self._silence = self._silence + 1 if silence is not None else 0
        if silence is not None and self._silence >= SILENT_LOOKS:
            self.motion.blind(silence, now)

    def _silent(self, settings: Settings, now: int) -> Refusal | None:
        """Why the robot may not move on by what was seen and felt last."""
        try:
            if self.odometry is None:
                self.joints.state(now, settings.safety.max_state_age)
            else:
                self.odometry.check_age(now)
        except ObservationError as error:
            return error.refusal
        return self.cameras.silent(settings.images)

    def _forget_times(self, back: float) -> None:
        """The clock began again: what was seen, felt and planned before is of no known age."""
        self.cameras.frames.clear()
        self.joints.clear()
        if self.odometry is not None:
            self.odometry.clear()
        self.motion.clock_jumped(
            Refusal(
                RefusalCode.STALE_OBSERVATION,
                f"The clock went back by {back:.1f} s; the robot holds until there are new observations.",
            )
        )
