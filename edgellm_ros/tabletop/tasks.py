"""Motion tasks: what can be asked in words, and when the world's state says that it is done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from .geometry import CONTACT_OPENING, Array, forward_kinematics
from .objects import COLOUR_NAMES, SHAPE_NAMES, UNNAMED_COLOUR, UNNAMED_SHAPE, describe
from .physics import Worlds


class TaskKind(IntEnum):
    """The six motion tasks."""

    TOUCH = 0
    PUSH_LEFT = 1
    PUSH_RIGHT = 2
    PUSH_TOP = 3
    PUSH_BOTTOM = 4
    PUT = 5


SIDES = {
    TaskKind.PUSH_LEFT: "left",
    TaskKind.PUSH_RIGHT: "right",
    TaskKind.PUSH_TOP: "top",
    TaskKind.PUSH_BOTTOM: "bottom",
}
#: Direction of each push on the table, and how far along it the object's centre must come.
PUSH_DIRECTIONS = np.array([[0, 0], [-1, 0], [1, 0], [0, 1], [0, -1], [0, 0]], dtype=np.float64)
PUSH_LIMITS = np.array([0.0, 0.09, 0.09, 0.26, -0.10, 0.0])
TOUCH_DISTANCE = 0.024

TOUCH_PHRASES = (
    "touch the {x}",
    "tap the {x}",
    "put your hand on the {x}",
    "reach for the {x} and touch it",
    "go to the {x}",
    "move your hand to the {x}",
)
PUSH_PHRASES = (
    "push the {x} to the {side}",
    "slide the {x} to the {side}",
    "push the {x} towards the {side}",
    "shove the {x} to the {side} of the table",
    "move the {x} to the {side} side",
)
PUT_PHRASES = (
    "pick up the {x} and put it on the {y}",
    "put the {x} on the {y}",
    "place the {x} on top of the {y}",
    "stack the {x} on the {y}",
    "grab the {x} and place it on the {y}",
)


@dataclass(frozen=True)
class Task:
    """One motion task: its kind and the indices of its objects; ``second`` is -1 where there is none."""

    kind: TaskKind
    first: int
    second: int = -1


def phrases(kind: TaskKind) -> tuple[str, ...]:
    """The ways in which a kind of task can be said."""
    if kind == TaskKind.TOUCH:
        return TOUCH_PHRASES
    return PUT_PHRASES if kind == TaskKind.PUT else PUSH_PHRASES


def task_text(task: Task, colour: Array, shape: Array, phrase: int) -> str:
    """The task in words, for one world's colours and shapes [N]; ``phrase`` chooses among ``phrases(kind)``."""
    first = describe(int(colour[task.first]), int(shape[task.first]))
    second = describe(int(colour[task.second]), int(shape[task.second])) if task.second >= 0 else ""
    return say(task.kind, first, second, phrase)


def say(kind: TaskKind, first: str, second: str, phrase: int) -> str:
    """A task about named objects in words; ``phrase`` chooses among ``phrases(kind)``."""
    choices = phrases(kind)
    return choices[phrase % len(choices)].format(x=first, y=second, side=SIDES.get(kind, ""))


def short_names(colour: Array, shape: Array, present: Array, item: int) -> list[str]:
    """Other ways to name one object of a scene [N]: by its shape or its colour alone, where that singles it out."""
    names = []
    if shape[item] != UNNAMED_SHAPE and np.count_nonzero(present & (shape == shape[item])) == 1:
        names.append(SHAPE_NAMES[int(shape[item])])
    if colour[item] != UNNAMED_COLOUR and np.count_nonzero(present & (colour == colour[item])) == 1:
        names += [f"{COLOUR_NAMES[int(colour[item])]} {noun}" for noun in ("one", "object")]
    return names


def vary(text: str, rng: np.random.Generator) -> str:
    """The same sentence as people type it: perhaps with a please, a capital letter or a full stop."""
    chance = rng.random(3)
    if chance[0] < 0.1:
        text = "please " + text
    if chance[1] < 0.3:
        text = text[0].upper() + text[1:]
    return text + "." if chance[2] < 0.3 else text


@dataclass
class TaskBatch:
    """Tasks of B worlds: kind, first and second, each int64 [B] (second is -1 where there is none)."""

    kind: Array
    first: Array
    second: Array

    @staticmethod
    def of(tasks: list[Task]) -> TaskBatch:
        """The batch of a list of tasks."""
        table = np.array([[task.kind, task.first, task.second] for task in tasks], dtype=np.int64).reshape(-1, 3)
        return TaskBatch(table[:, 0], table[:, 1], table[:, 2])

    def take(self, rows: Array) -> TaskBatch:
        """A copy of the named rows."""
        return TaskBatch(self.kind[rows], self.first[rows], self.second[rows])


def push_progress(worlds: Worlds, tasks: TaskBatch) -> Array:
    """How far each first object is beyond the line of its push, in metres [B]; meaningless for other tasks."""
    rows = np.arange(worlds.count)
    position = worlds.position[rows, tasks.first]
    return np.asarray(np.sum(position * PUSH_DIRECTIONS[tasks.kind], axis=-1) - PUSH_LIMITS[tasks.kind])


def succeeded(worlds: Worlds, tasks: TaskBatch) -> Array:
    """Whether each world's state fulfils its task, bool [B].

    Touch: the lowered hand is around the object and nearest to it. Push: the object's centre is beyond the line and it
    is not held. Put: the first object rests on the second and is not held.
    """
    rows = np.arange(worlds.count)
    hand, _ = forward_kinematics(worlds.joints)
    distance = np.hypot(*np.moveaxis(worlds.position - hand[:, None, :], -1, 0))
    distance = np.where(worlds.present, distance, np.inf)
    down = worlds.joints[:, 3] > CONTACT_OPENING
    touching = down & (distance[rows, tasks.first] < TOUCH_DISTANCE) & (np.argmin(distance, axis=1) == tasks.first)
    released = worlds.held != tasks.first
    pushed = released & (push_progress(worlds, tasks) > 0.0)
    stacked = released & (worlds.support[rows, tasks.first] == tasks.second)
    return np.asarray(
        np.select([tasks.kind == TaskKind.TOUCH, tasks.kind == TaskKind.PUT], [touching, stacked], pushed)
    )
