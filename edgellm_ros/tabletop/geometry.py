"""Sizes of table and arm, and the arm's kinematics for a batch of worlds.

The table's frame has x to the right, y away from the arm's base and z up. The arm is planar: three revolute joints turn
about z, above the objects; only the two finger pads reach down to the table. The gripper joint runs from 0 (closed) to
1 (open), and one cam ties the hand's height to it: closing raises the hand to travel height, opening lowers it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

JOINT_NAMES = ("shoulder", "elbow", "wrist", "gripper")
BASE = np.array([0.0, -0.05])
LINKS = (0.21, 0.19, 0.03)  # the last one ends between the finger pads
JOINT_LOWER = np.array([-2.6, 0.05, -5.0, 0.0])
JOINT_UPPER = np.array([3.2, 2.95, 2.6, 1.0])
JOINT_SPEED = np.array([5.0, 5.0, 8.0, 4.0])  # rad/s, and gripper travels a second

TABLE_LOWER = np.array([-0.17, 0.01])  # a rim keeps the objects inside
TABLE_UPPER = np.array([0.17, 0.34])

PAD_HALF_LENGTH = 0.014  # along the hand's heading
PAD_RADIUS = 0.005
CONTACT_OPENING = 0.40  # above it the pads are at the table
GRASP_OPENING = 0.42  # crossed while closing: grasp; crossed while opening: release
HELD_OPENING = 0.20  # an object between the fingers stops the gripper joint here
TRAVEL_HEIGHT = 0.06


def pad_offset(opening: Array) -> Array:
    """Distance in metres of each pad's middle line from the hand's centre, for gripper openings of any shape."""
    return 0.008 + 0.030 * opening


def hand_height(opening: Array) -> Array:
    """Height in metres of the pads' lower ends above the table, for gripper openings of any shape."""
    raised = np.clip((CONTACT_OPENING - opening) / (CONTACT_OPENING - HELD_OPENING), 0.0, 1.0)
    return TRAVEL_HEIGHT * raised


def forward_kinematics(joints: Array) -> tuple[Array, Array]:
    """Hand centres [..., 2] and headings [...] of joint positions [..., 3 or more]."""
    first = joints[..., 0]
    second = first + joints[..., 1]
    heading = second + joints[..., 2]
    x = BASE[0] + LINKS[0] * np.cos(first) + LINKS[1] * np.cos(second) + LINKS[2] * np.cos(heading)
    y = BASE[1] + LINKS[0] * np.sin(first) + LINKS[1] * np.sin(second) + LINKS[2] * np.sin(heading)
    return np.stack([x, y], axis=-1), heading


def inverse_kinematics(hand: Array, heading: Array) -> Array:
    """Joint positions [..., 3] that bring the hand to ``hand`` [..., 2] with ``heading`` [...].

    The elbow always bends to the left as seen from the shoulder, so the answer is unique and continuous. A point out of
    reach gives the nearest pose in the same direction.
    """
    x = hand[..., 0] - LINKS[2] * np.cos(heading) - BASE[0]
    y = hand[..., 1] - LINKS[2] * np.sin(heading) - BASE[1]
    first, second = LINKS[0], LINKS[1]
    cosine = (x * x + y * y - first * first - second * second) / (2.0 * first * second)
    elbow = np.clip(np.arccos(np.clip(cosine, -1.0, 1.0)), JOINT_LOWER[1], JOINT_UPPER[1])
    shoulder = np.arctan2(y, x) - np.arctan2(second * np.sin(elbow), first + second * np.cos(elbow))
    return np.stack([shoulder, elbow, heading - shoulder - elbow], axis=-1)


def arm_points(joints: Array) -> Array:
    """Base, elbow, wrist and hand centre [..., 4, 2] of joint positions [..., 3 or more]."""
    first = joints[..., 0]
    second = first + joints[..., 1]
    hand, _ = forward_kinematics(joints)
    base = np.broadcast_to(BASE, hand.shape)
    elbow = base + LINKS[0] * np.stack([np.cos(first), np.sin(first)], axis=-1)
    wrist = elbow + LINKS[1] * np.stack([np.cos(second), np.sin(second)], axis=-1)
    return np.stack([base, elbow, wrist, hand], axis=-2)
