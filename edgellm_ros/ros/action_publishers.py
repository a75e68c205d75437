"""What a policy puts out: trajectories for a controller, raw chunks for everybody, markers while somebody looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nav_msgs.msg import Path
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory
from visualization_msgs.msg import Marker, MarkerArray

from ..action.chunk import NANOSECONDS, ActionChunk
from ..action.policy_manifest import ActionMeaning
from ..action.timeline import Plan
from .action_messages import VEHICLE_FRAME, chunk_array, hold_trajectory, joint_trajectory, path_message
from .publishers import reliable
from .qos_events import QosWatch

HOLD_DELIVERY = 0.2  # s that it may take before topics are taken back


class ActionPublishers:
    """Any thread may publish; the caller's lock keeps what it says in order."""

    def __init__(
        self, node: LifecycleNode, watch: QosWatch, joint_names: Sequence[str], meaning: ActionMeaning, stamp: str
    ) -> None:
        """``stamp`` is the parameter ``action.stamp``."""
        self._node, self._names, self._stamp = node, tuple(joint_names), stamp

        def publisher(kind: type, topic: str) -> Any:
            return node.create_publisher(
                kind,
                topic,
                reliable(1),
                event_callbacks=watch.publisher_callbacks(node.resolve_topic_name(topic)),
                qos_overriding_options=watch.overridable(),
            )

        self.chunk = publisher(Float64MultiArray, "action_chunk")
        self.markers = publisher(MarkerArray, "markers")
        # Only positions of joints are a trajectory: anything else would be followed as what it is not.
        self.trajectory = (
            publisher(JointTrajectory, "action_trajectory") if meaning is ActionMeaning.JOINT_POSITION else None
        )

        # Where a vehicle is to be; without poses it means hold.
        self.path = publisher(Path, "action_path") if meaning is ActionMeaning.ACCELERATION_CURVATURE else None

    def set_stamp(self, stamp: str) -> None:
        """Take up ``action.stamp`` for the plans to come."""
        self._stamp = stamp

    def publish_plan(self, chunk: ActionChunk, plan: Plan) -> None:
        """See ``ActionOutputs``."""
        self.chunk.publish(chunk_array(chunk))
        if self.path is not None and chunk.path is not None:
            self.path.publish(path_message(chunk.path, chunk.stamp, int(plan.due[-1])))
        if self.trajectory is not None:
            now = int(self._node.get_clock().now().nanoseconds)
            stamp, origin = {
                "observation": (chunk.stamp, chunk.stamp),
                "now": (now, now),
                "zero": (0, now),
            }[self._stamp]
            # A first chunk counts from the moment it was ready, and so does its trajectory.
            if self._stamp == "observation" and plan.skipped == 0 and plan.due[0] != chunk.due[0]:
                stamp = origin = int(plan.due[0]) - chunk.step
            message = joint_trajectory(plan, self._names, stamp=stamp, origin=origin)
            if message.points:
                self.trajectory.publish(message)
        if self.markers.get_subscription_count():
            self.markers.publish(_markers(self._node, chunk, plan))

    def publish_hold(self) -> None:
        """See ``ActionOutputs``."""
        path = Path()
        path.header.stamp = self._node.get_clock().now().to_msg()
        path.header.frame_id = VEHICLE_FRAME
        for publisher, message in ((self.trajectory, hold_trajectory(self._names)), (self.path, path)):
            if publisher is None:
                continue
            try:
                publisher.publish(message)
            except Exception as error:  # of a context that was shut down from outside: everything else must end too
                self._node.get_logger().error(f"{publisher.topic_name}: the hold could not be published: {error}")

    def close(self) -> None:
        """Take the topics back, once whoever listens has the hold that was said last."""
        for publisher in (self.trajectory, self.path):
            if publisher is not None and hasattr(publisher, "wait_for_all_acked"):
                publisher.wait_for_all_acked(Duration(seconds=HOLD_DELIVERY))
        for publisher in (self.chunk, self.markers, self.trajectory, self.path):
            if publisher is not None:
                self._node.destroy_publisher(publisher)


def _markers(node: LifecycleNode, chunk: ActionChunk, plan: Plan) -> MarkerArray:
    """One line of text: how many actions are followed, from when on, and with which seed."""
    marker = Marker(type=Marker.TEXT_VIEW_FACING, action=Marker.ADD, ns=node.get_fully_qualified_name())
    marker.header.stamp = node.get_clock().now().to_msg()
    marker.header.frame_id = "base_link"
    marker.scale.z = 0.05
    marker.pose.orientation.w = marker.color.a = marker.color.r = marker.color.g = marker.color.b = 1.0
    age = (int(plan.due[0]) - chunk.stamp) / NANOSECONDS
    marker.text = f"{len(plan.rows)} actions from {age:.3f} s after the observation, seed {chunk.seed}"
    return MarkerArray(markers=[marker])
