"""A scripted expert: from a world's state and its task to the next joint command, with no memory of its own.

Everything is decided from where things are now, so the expert recovers from any state: a lost object is fetched again,
a hand that came down in the wrong place goes up again. Before it closes around something that it should not take, it
draws back along its heading until that is out of the fingers.
"""

from __future__ import annotations

import math

import numpy as np

from .geometry import (
    CONTACT_OPENING,
    Array,
    forward_kinematics,
    inverse_kinematics,
    pad_offset,
)
from .physics import Worlds, hand_frame
from .tasks import PUSH_DIRECTIONS, TaskBatch, TaskKind, push_progress

TICK = 1.0 / 15.0  # seconds between two commands
TRAVEL_SPEED = 0.26  # m/s above the table
PUSH_SPEED = 0.13
TURN_SPEED = 4.0  # rad/s
PUSH_OPENING = 0.50
PUSH_MARGIN = 0.014  # how far beyond its line an object is pushed
UP = math.pi / 2
PUSH_HEADINGS = np.array([UP, math.pi, 0.0, UP, UP, UP])
ALIGNED = 0.006  # metres; the raised hand comes down this close to its goal


def expert_command(worlds: Worlds, tasks: TaskBatch) -> Array:
    """The joint command [B,4] for the next tick of ``TICK`` seconds."""
    rows = np.arange(worlds.count)
    hand, heading = forward_kinematics(worlds.joints)
    opening = worlds.joints[:, 3]
    down = opening > CONTACT_OPENING
    ahead, left = hand_frame(worlds)
    target = worlds.position[rows, tasks.first]
    put = tasks.kind == TaskKind.PUT
    holding = worlds.held >= 0
    right_hold = holding & put & (worlds.held == tasks.first)

    free = worlds.present.copy()
    free[rows[holding], worlds.held[holding]] = False
    half = pad_offset(opening)[:, None]
    inside = free & (np.abs(left) < half) & (np.abs(ahead) < 0.042)
    blocked = down & inside.any(axis=1)
    direction = np.stack([np.cos(heading), np.sin(heading)], axis=-1)
    withdraw = hand - 0.06 * direction

    # Going up is the answer wherever nothing better is known: close, or first draw back from what stands in between.
    goal = np.where(blocked[:, None], withdraw, hand)
    turn = heading.copy()
    grip = np.where(blocked, 1.0, 0.0)
    speed = np.full(worlds.count, TRAVEL_SPEED)

    goal, turn, grip = _reach(worlds, tasks, hand, heading, opening, ahead, left, goal, turn, grip)
    goal, turn, grip, speed = _push(worlds, tasks, hand, heading, down, goal, turn, grip, speed)

    # An object in the hand that the task does not want there is put down on the spot.
    wrong_hold = holding & ~right_hold
    goal = np.where(wrong_hold[:, None], hand, goal)
    turn = np.where(wrong_hold, heading, turn)
    grip = np.where(wrong_hold, 1.0, grip)

    # Carrying: bring the object, not the hand, over the other one, then open.
    second = np.maximum(tasks.second, 0)
    over = worlds.position[rows, second] - worlds.grip_offset[:, None] * direction
    above = np.hypot(*(target - worlds.position[rows, second]).T) < ALIGNED
    goal = np.where(right_hold[:, None], over, goal)
    turn = np.where(right_hold, UP, turn)
    grip = np.where(right_hold, above.astype(float), grip)
    return _step_towards(hand, heading, goal, turn, grip, speed)


def _reach(
    worlds: Worlds,
    tasks: TaskBatch,
    hand: Array,
    heading: Array,
    opening: Array,
    ahead: Array,
    left: Array,
    goal: Array,
    turn: Array,
    grip: Array,
) -> tuple[Array, Array, Array]:
    """Touch, and put before the grasp: above the object, down around it, and for put the fingers close."""
    rows = np.arange(worlds.count)
    target = worlds.position[rows, tasks.first]
    done = (tasks.kind == TaskKind.PUT) & (worlds.support[rows, tasks.first] == tasks.second)
    wanted = ((tasks.kind == TaskKind.TOUCH) | (tasks.kind == TaskKind.PUT)) & ~done
    down = opening > CONTACT_OPENING
    near = np.hypot(*(target - hand).T)
    around = (np.abs(ahead[rows, tasks.first]) < 0.013) & (np.abs(left[rows, tasks.first]) < pad_offset(opening))
    travel = wanted & ~down
    goal = np.where(travel[:, None], target, goal)
    turn = np.where(travel, UP, turn)
    lower = (near < ALIGNED) & (np.abs(heading - UP) < 0.15)
    grip = np.where(travel, lower.astype(float), grip)
    hold_still = wanted & down & around
    goal = np.where(hold_still[:, None], hand, goal)
    turn = np.where(hold_still, heading, turn)
    closing = (tasks.kind == TaskKind.PUT) & ((opening > 0.75) | (worlds.command[:, 3] < 0.1))
    grip = np.where(hold_still, np.where(closing, 0.0, 1.0), grip)
    return goal, turn, grip


def _push(
    worlds: Worlds,
    tasks: TaskBatch,
    hand: Array,
    heading: Array,
    down: Array,
    goal: Array,
    turn: Array,
    grip: Array,
    speed: Array,
) -> tuple[Array, Array, Array, Array]:
    """Pushes: above the place behind the object, down with half-open fingers, forward until it is over the line."""
    rows = np.arange(worlds.count)
    wanted = (tasks.kind != TaskKind.TOUCH) & (tasks.kind != TaskKind.PUT)
    course = PUSH_DIRECTIONS[tasks.kind]
    facing = PUSH_HEADINGS[tasks.kind]
    target = worlds.position[rows, tasks.first]
    offset = target - hand
    along = np.sum(offset * course, axis=-1)
    aside = offset - along[:, None] * course
    progress = push_progress(worlds, tasks)
    done = progress > PUSH_MARGIN - 0.004
    engaged = (
        down & (np.hypot(*aside.T) < 0.015) & (along > 0.008) & (along < 0.075) & (np.abs(heading - facing) < 0.25)
    )
    behind = target - course * (worlds.radius[rows, tasks.first] + 0.026)[:, None]
    approach = wanted & ~down & ~done
    goal = np.where(approach[:, None], behind, goal)
    turn = np.where(approach, facing, turn)
    ready = (np.hypot(*(behind - hand).T) < ALIGNED) & (np.abs(heading - facing) < 0.12)
    grip = np.where(approach, np.where(ready, PUSH_OPENING, 0.0), grip)
    forward = wanted & engaged & ~done
    remaining = np.maximum(PUSH_MARGIN - progress, 0.0)[:, None] + 0.012
    goal = np.where(forward[:, None], hand + course * remaining + aside, goal)
    turn = np.where(forward, facing, turn)
    grip = np.where(forward, PUSH_OPENING, grip)
    speed = np.where(forward, PUSH_SPEED, speed)
    return goal, turn, grip, speed


def _step_towards(hand: Array, heading: Array, goal: Array, turn: Array, grip: Array, speed: Array) -> Array:
    """The command one tick ahead: towards the goal at the given speed, slowing down on the last centimetres."""
    offset = goal - hand
    distance = np.hypot(*offset.T)
    reach = np.minimum(speed * TICK, 0.6 * distance)
    next_hand = hand + offset / np.maximum(distance, 1e-9)[:, None] * reach[:, None]
    next_heading = heading + np.clip(turn - heading, -TURN_SPEED * TICK, TURN_SPEED * TICK)
    return np.concatenate([inverse_kinematics(next_hand, next_heading), grip[:, None]], axis=-1)
