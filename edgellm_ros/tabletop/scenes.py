"""Draws scenes and motion tasks from a seeded generator: the same seed gives the same tabletop, number for number."""

from __future__ import annotations

import math

import numpy as np

from .geometry import inverse_kinematics
from .objects import (
    COLOUR_VALUES,
    HELD_OUT_COMBINATIONS,
    MAX_OBJECTS,
    SEEN_COMBINATIONS,
    UNNAMED_COLOUR,
    UNNAMED_SHAPE,
)
from .physics import Worlds, empty_worlds
from .tasks import PUSH_DIRECTIONS, PUSH_LIMITS, Task, TaskKind

PLACE_LOWER = np.array([-0.13, 0.07])
PLACE_UPPER = np.array([0.13, 0.275])
SPACING = 0.062  # metres between centres
PUSH_CLEARANCE = 0.03  # a push starts at least this far before its line
KIND_SHARES = np.array([0.16, 0.11, 0.11, 0.11, 0.11, 0.40])


def place_objects(rng: np.random.Generator, count: int) -> np.ndarray:
    """``count`` positions [count,2] on the table, at least ``SPACING`` apart."""
    while True:
        placed: list[np.ndarray] = []
        for _ in range(60):
            candidate = rng.uniform(PLACE_LOWER, PLACE_UPPER)
            if all(math.hypot(*(candidate - other)) >= SPACING for other in placed):
                placed.append(candidate)
                if len(placed) == count:
                    return np.array(placed)


def draw_scene(
    rng: np.random.Generator,
    *,
    held_out: bool = False,
    repeats: bool = False,
    strange: float = 0.0,
    fewest: int = 2,
    most: int = MAX_OBJECTS,
) -> Worlds:
    """One world: two to five objects of seen combinations, and a resting arm somewhere above them.

    ``held_out`` makes object 0 one of the held-out combinations. ``repeats`` allows a combination to appear twice,
    which is for counting; motion tasks need each object to be the only one of its name. ``strange`` is the chance of
    each object to lose either its named colour or its named shape, which is for training.
    """
    worlds = empty_worlds(1)
    count = int(rng.integers(fewest, most + 1))
    chosen = [SEEN_COMBINATIONS[i] for i in rng.choice(len(SEEN_COMBINATIONS), size=count, replace=repeats)]
    if count > 1 and rng.random() < 0.5:  # a rival that shares the colour or the shape makes every word count
        share = int(rng.integers(2))
        rivals = [pair for pair in SEEN_COMBINATIONS if pair[share] == chosen[0][share] and pair not in chosen]
        if rivals:
            chosen[1] = rivals[int(rng.integers(len(rivals)))]
    if held_out:
        chosen[0] = HELD_OUT_COMBINATIONS[int(rng.integers(len(HELD_OUT_COMBINATIONS)))]
    worlds.present[0, :count] = True
    worlds.colour[0, :count] = [colour for colour, _ in chosen]
    worlds.shape[0, :count] = [shape for _, shape in chosen]
    worlds.position[0, :count] = place_objects(rng, count)
    worlds.turn[0, :count] = rng.uniform(0.0, math.pi / 2, size=count)
    worlds.paint[0, :count] = COLOUR_VALUES[worlds.colour[0, :count]] + rng.normal(0.0, 5.0, (count, 3))
    for item in np.flatnonzero(rng.random(count) < strange):
        if rng.random() < 0.5:
            worlds.colour[0, item], worlds.paint[0, item] = UNNAMED_COLOUR, _unnamed_paint(rng)
        else:
            worlds.shape[0, item] = UNNAMED_SHAPE
    worlds.paint = np.clip(worlds.paint, 0.0, 255.0)
    worlds.tint[0] = np.array([196.0, 188.0, 176.0]) + rng.uniform(-14.0, 14.0) + rng.uniform(-5.0, 5.0, size=3)
    hand = rng.uniform([-0.14, 0.09], [0.14, 0.29])
    heading = math.pi / 2 + rng.uniform(-0.4, 0.4)
    worlds.joints[0, :3] = inverse_kinematics(hand, np.array(heading))
    worlds.command = worlds.joints.copy()
    return worlds


def _unnamed_paint(rng: np.random.Generator) -> np.ndarray:
    """An RGB value that nobody would call by one of the named colours."""
    while True:
        paint = rng.uniform(15.0, 240.0, 3)
        if np.linalg.norm(COLOUR_VALUES - paint, axis=1).min() > 75.0:
            return paint


def draw_task(rng: np.random.Generator, worlds: Worlds, kind: TaskKind | None = None) -> Task | None:
    """A task for the one world in ``worlds``; its first object is object 0. None where a push of ``kind`` has no room.

    With ``kind`` None the kind is drawn by ``KIND_SHARES`` among those that the scene allows.
    """
    count = int(worlds.present[0].sum())
    position = worlds.position[0, 0]
    room = PUSH_LIMITS - PUSH_DIRECTIONS @ position >= PUSH_CLEARANCE
    allowed = np.array([True, *room[1:5], count > 1])
    if kind is None:
        shares = KIND_SHARES * allowed
        kind = TaskKind(int(rng.choice(len(shares), p=shares / shares.sum())))
    elif not allowed[kind]:
        return None
    return Task(kind, 0, int(rng.integers(1, count)) if kind == TaskKind.PUT else -1)
