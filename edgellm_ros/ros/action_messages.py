"""Messages of actions: a trajectory for a joint controller, and the raw chunk for everybody else."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from builtin_interfaces.msg import Duration, Time
from geometry_msgs.msg import Point, PoseStamped, Quaternion
from nav_msgs.msg import Path
from std_msgs.msg import Float64MultiArray, MultiArrayDimension, MultiArrayLayout
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from ..action.chunk import NANOSECONDS, ActionChunk
from ..action.kinematics import DrivingPath
from ..action.timeline import Plan

VEHICLE_FRAME = "base_link"


def time_message(nanoseconds: int) -> Time:
    """A moment of the node's clock."""
    return Time(sec=nanoseconds // NANOSECONDS, nanosec=nanoseconds % NANOSECONDS)


def joint_trajectory(
    plan: Plan, joint_names: Sequence[str], *, stamp: int, origin: int, frame_id: str = ""
) -> JointTrajectory:
    """Points at strictly rising times from ``stamp`` on, positions only.

    :param stamp: of the header, in ns; 0 is "now" to a controller.
    :param origin: the moment from which a point's time counts, in ns; points due before it are left out.
    """
    message = JointTrajectory(joint_names=list(joint_names))
    message.header.stamp = time_message(stamp)
    message.header.frame_id = frame_id
    for due, row in zip(plan.due.tolist(), plan.rows.tolist(), strict=True):
        after = due - origin
        if after > 0:
            time_from_start = Duration(sec=after // NANOSECONDS, nanosec=after % NANOSECONDS)
            positions = array("d", row)  # a list would be checked number by number
            message.points.append(JointTrajectoryPoint(positions=positions, time_from_start=time_from_start))
    return message


def path_message(path: DrivingPath, stamp: int, until: int) -> Path:
    """Poses at their times after ``stamp`` (ns), in the vehicle's frame at that moment; the last is due ``until``."""
    message = Path()
    message.header.stamp = time_message(stamp)
    message.header.frame_id = VEHICLE_FRAME
    step = round(path.step * NANOSECONDS)
    for index, (position, heading) in enumerate(zip(path.positions.tolist(), path.headings.tolist(), strict=True), 1):
        if stamp + index * step > until:
            break
        pose = PoseStamped()
        pose.header.stamp = time_message(stamp + index * step)
        pose.header.frame_id = VEHICLE_FRAME
        pose.pose.position = Point(x=position[0], y=position[1], z=position[2])
        pose.pose.orientation = Quaternion(z=math.sin(heading / 2), w=math.cos(heading / 2))
        message.poses.append(pose)
    return message


def hold_trajectory(joint_names: Sequence[str]) -> JointTrajectory:
    """A trajectory without points: a joint trajectory controller stops and holds where it is."""
    return JointTrajectory(joint_names=list(joint_names))


def chunk_array(chunk: ActionChunk) -> Float64MultiArray:
    """The chunk as the policy gave it, rows by dimensions; the labels say what the numbers are.

    The first label holds the observation's stamp, the step, the seed and the digest of the starting noise; the second
    the names with their units.
    """
    rows, columns = chunk.rows.shape
    stamp = f"{chunk.stamp // NANOSECONDS}.{chunk.stamp % NANOSECONDS:09d}"
    step = f"stamp={stamp} step_time={chunk.step / NANOSECONDS:.9g} seed={chunk.seed} x0={chunk.noise_digest}"
    names = ", ".join(f"{name} [{unit}]" for name, unit in zip(chunk.names, chunk.units, strict=True))
    layout = MultiArrayLayout(
        dim=[
            MultiArrayDimension(label=step, size=rows, stride=rows * columns),
            MultiArrayDimension(label=names, size=columns, stride=columns),
        ]
    )
    return Float64MultiArray(layout=layout, data=array("d", chunk.rows.reshape(-1).tolist()))
