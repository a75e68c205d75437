"""Quasi-static physics of a batch of tabletops: the arm follows its command, pads push, fingers grasp or miss.

Contact is resolved by moving overlapping objects apart, so nothing slides after the hand has stopped. An object is
grasped only if it stands between the pads while the gripper closes past ``GRASP_OPENING``; when it is released over
another object it rests on that one, otherwise it stands on the table and pushes its neighbours aside.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from .geometry import (
    CONTACT_OPENING,
    GRASP_OPENING,
    HELD_OPENING,
    JOINT_LOWER,
    JOINT_SPEED,
    JOINT_UPPER,
    PAD_HALF_LENGTH,
    PAD_RADIUS,
    TABLE_LOWER,
    TABLE_UPPER,
    Array,
    forward_kinematics,
    pad_offset,
)
from .objects import MAX_OBJECTS, RADII

SUBSTEP = 1.0 / 60.0  # seconds
PAIRS = np.triu_indices(MAX_OBJECTS, k=1)


@dataclass
class Worlds:
    """The state of B worlds; arrays are owned by this object and changed in place by ``substep``.

    joints and command: float64 [B,4]; position: float64 [B,N,2]; present: bool [B,N]; colour, shape: int64 [B,N];
    turn: float64 [B,N], the drawn angle; paint: float64 [B,N,3], the drawn RGB; held: int64 [B], the index of the
    grasped object or -1; grip_offset: float64 [B], where along the heading it is held; support: int64 [B,N], the object
    that each one rests on or -1; tint: float64 [B,3], the table's RGB colour.
    """

    joints: Array
    command: Array
    position: Array
    present: Array
    colour: Array
    shape: Array
    turn: Array
    paint: Array
    held: Array
    grip_offset: Array
    support: Array
    tint: Array

    @property
    def count(self) -> int:
        """Number of worlds."""
        return int(self.joints.shape[0])

    @property
    def radius(self) -> Array:
        """Contact radius of every object, float64 [B,N]."""
        return np.asarray(RADII[self.shape])

    def copy(self) -> Worlds:
        """An independent copy."""
        return Worlds(**{field.name: getattr(self, field.name).copy() for field in fields(self)})

    def take(self, rows: Array) -> Worlds:
        """A copy of the named rows."""
        return Worlds(**{field.name: getattr(self, field.name)[rows].copy() for field in fields(self)})

    @staticmethod
    def stack(parts: list[Worlds]) -> Worlds:
        """One batch of all rows of ``parts``, in order."""
        return Worlds(
            **{field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Worlds)}
        )


def empty_worlds(count: int) -> Worlds:
    """``count`` worlds without objects, arm at joint zero and the gripper closed."""
    shape = (count, MAX_OBJECTS)
    return Worlds(
        joints=np.zeros((count, 4)),
        command=np.zeros((count, 4)),
        position=np.zeros((*shape, 2)),
        present=np.zeros(shape, dtype=bool),
        colour=np.zeros(shape, dtype=np.int64),
        shape=np.zeros(shape, dtype=np.int64),
        turn=np.zeros(shape),
        paint=np.zeros((*shape, 3)),
        held=np.full(count, -1, dtype=np.int64),
        grip_offset=np.zeros(count),
        support=np.full(shape, -1, dtype=np.int64),
        tint=np.full((count, 3), 200.0),
    )


def hand_frame(worlds: Worlds) -> tuple[Array, Array]:
    """Every object as the hand sees it: distance ahead and to the left of the hand's centre, both [B,N]."""
    hand, heading = forward_kinematics(worlds.joints)
    offset = worlds.position - hand[:, None, :]
    cosine, sine = np.cos(heading)[:, None], np.sin(heading)[:, None]
    ahead = offset[..., 0] * cosine + offset[..., 1] * sine
    left = offset[..., 1] * cosine - offset[..., 0] * sine
    return ahead, left


def substep(worlds: Worlds, target: Array, seconds: float = SUBSTEP) -> None:
    """Advance by ``seconds`` towards joint targets [B,4]; the joints move at most at their own speed."""
    before = worlds.joints[:, 3].copy()
    worlds.command = np.clip(target, JOINT_LOWER, JOINT_UPPER)
    reach = JOINT_SPEED * seconds
    worlds.joints += np.clip(worlds.command - worlds.joints, -reach, reach)
    holding = worlds.held >= 0
    worlds.joints[:, 3] = np.where(holding, np.maximum(worlds.joints[:, 3], HELD_OPENING), worlds.joints[:, 3])
    old = worlds.position.copy()
    ahead, left = hand_frame(worlds)
    touched = _push(worlds, ahead, left)
    _grasp_or_release(worlds, before, ahead, left)
    _separate(worlds)
    _carry(worlds, old, touched)
    worlds.position = np.clip(worlds.position, TABLE_LOWER, TABLE_UPPER)


def _push(worlds: Worlds, ahead: Array, left: Array) -> Array:
    """Pads move what they overlap; ``ahead`` and ``left`` are updated. Gives which objects were touched [B,N]."""
    opening = worlds.joints[:, 3:4]
    free = worlds.present.copy()
    rows = np.flatnonzero(worlds.held >= 0)
    free[rows, worlds.held[rows]] = False
    active = free & (opening > CONTACT_OPENING)
    if not active.any():
        return active
    radius = worlds.radius
    half = np.broadcast_to(pad_offset(opening), ahead.shape)
    start_ahead, start_left = ahead.copy(), left.copy()
    between = (np.abs(ahead) < PAD_HALF_LENGTH) & (np.abs(left) < half)
    room = np.maximum(half - PAD_RADIUS - radius, 0.0)
    left[:] = np.where(active & between, np.clip(left, -room, room), left)
    # In front of the gap or behind it, an object leans on the nearer pad's end and is pushed along the heading.
    at_gap = active & ~between & (np.abs(left) < half)
    lean = np.sqrt(np.maximum((radius + PAD_RADIUS) ** 2 - (half - np.abs(left)) ** 2, 0.0))
    pressed = at_gap & (np.abs(ahead) < PAD_HALF_LENGTH + lean)
    ahead[:] = np.where(pressed, np.copysign(PAD_HALF_LENGTH + lean, ahead), ahead)
    for side in (1.0, -1.0):
        along = ahead - np.clip(ahead, -PAD_HALF_LENGTH, PAD_HALF_LENGTH)
        across = left - side * half
        distance = np.maximum(np.hypot(along, across), 1e-9)
        outside = active & ~between & ~at_gap
        depth = np.where(outside, np.maximum(radius + PAD_RADIUS - distance, 0.0), 0.0)
        ahead += along / distance * depth
        left += across / distance * depth
    hand, heading = forward_kinematics(worlds.joints)
    cosine, sine = np.cos(heading)[:, None], np.sin(heading)[:, None]
    moved = active & ((ahead != start_ahead) | (left != start_left))
    world = np.stack([ahead * cosine - left * sine, ahead * sine + left * cosine], axis=-1) + hand[:, None, :]
    worlds.position = np.where(moved[..., None], world, worlds.position)
    return np.asarray(moved)


def _grasp_or_release(worlds: Worlds, before: Array, ahead: Array, left: Array) -> None:
    """Closing past the grasp opening takes what stands between the pads; opening past it lets go."""
    opening = worlds.joints[:, 3]
    closing = (worlds.held < 0) & (before > GRASP_OPENING) & (opening <= GRASP_OPENING)
    for row in np.flatnonzero(closing):
        near = worlds.present[row] & (np.abs(ahead[row]) < PAD_HALF_LENGTH + 0.002)
        near &= np.abs(left[row]) < pad_offset(before[row])
        if near.any():
            upper = (worlds.support[row] >= 0).astype(float)
            chosen = int(np.argmin(np.where(near, np.abs(ahead[row]) - upper, np.inf)))
            worlds.held[row] = chosen
            worlds.grip_offset[row] = ahead[row, chosen]
            worlds.support[row, chosen] = -1
            worlds.support[row][worlds.support[row] == chosen] = -1
    holding = np.flatnonzero(worlds.held >= 0)
    if holding.size:
        hand, heading = forward_kinematics(worlds.joints[holding])
        direction = np.stack([np.cos(heading), np.sin(heading)], axis=-1)
        item = worlds.held[holding]
        worlds.position[holding, item] = hand + worlds.grip_offset[holding, None] * direction
        for row in holding[opening[holding] > GRASP_OPENING]:
            _let_go(worlds, int(row))


def _let_go(worlds: Worlds, row: int) -> None:
    item = int(worlds.held[row])
    worlds.held[row] = -1
    distance = np.hypot(*(worlds.position[row] - worlds.position[row, item]).T)
    under = worlds.present[row] & (distance < worlds.radius[row]) & (worlds.support[row] < 0)
    under[item] = False
    if under.any():
        worlds.support[row, item] = int(np.argmin(np.where(under, distance, np.inf)))


def _separate(worlds: Worlds) -> None:
    """Objects that stand on the table and overlap move apart, each by half of the overlap."""
    standing = worlds.present & (worlds.support < 0)
    rows = np.flatnonzero(worlds.held >= 0)
    standing[rows, worlds.held[rows]] = False
    first, second = PAIRS
    offset = worlds.position[:, first] - worlds.position[:, second]
    radius = worlds.radius
    apart = radius[:, first] + radius[:, second]
    close = np.einsum("bpk,bpk->bp", offset, offset) < apart * apart
    rows, pairs = np.nonzero(close & standing[:, first] & standing[:, second])
    if rows.size == 0:
        return
    distance = np.maximum(np.hypot(*offset[rows, pairs].T), 1e-9)
    shift = offset[rows, pairs] * (0.5 * (apart[rows, pairs] - distance) / distance)[:, None]
    np.add.at(worlds.position, (rows, first[pairs]), shift)
    np.subtract.at(worlds.position, (rows, second[pairs]), shift)


def _carry(worlds: Worlds, old: Array, touched: Array) -> None:
    """What rests on another object moves with it, and drops to the table once its centre leaves that object."""
    rows, items = np.nonzero(worlds.support >= 0)
    if rows.size == 0:
        return
    under = worlds.support[rows, items]
    moved = worlds.position[rows, under] - old[rows, under]
    worlds.position[rows, items] += np.where(touched[rows, items, None], 0.0, moved)
    distance = np.hypot(*(worlds.position[rows, items] - worlds.position[rows, under]).T)
    lost = distance > worlds.radius[rows, under]
    worlds.support[rows[lost], items[lost]] = -1
