"""Training samples from seeds: expert rollouts out of many kinds of start, with disturbances that it recovers from.

A sample is what the cameras and joints show at one tick and the sixteen commands that the expert gives from there.
Ticks whose sixteen commands overlap a disturbance are left out, so the labels are always the expert's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgellm_ros.tabletop.cameras import CAMERAS
from edgellm_ros.tabletop.episodes import advance
from edgellm_ros.tabletop.expert import expert_command
from edgellm_ros.tabletop.geometry import HELD_OPENING, forward_kinematics, inverse_kinematics
from edgellm_ros.tabletop.objects import HEIGHTS, MAX_OBJECTS, UNNAMED_COLOUR, UNNAMED_SHAPE, describe
from edgellm_ros.tabletop.physics import Worlds, substep
from edgellm_ros.tabletop.questions import Question, draw_question
from edgellm_ros.tabletop.render import render_views
from edgellm_ros.tabletop.scenes import draw_scene, draw_task
from edgellm_ros.tabletop.tasks import (
    PUSH_DIRECTIONS,
    PUSH_LIMITS,
    Task,
    TaskBatch,
    TaskKind,
    phrases,
    say,
    short_names,
    succeeded,
    vary,
)

HORIZON = 16
TICKS = 76
STRANGE = 0.4  # chance of an object to be without a named colour or shape, in seven scenes of ten
STILL_TICKS = 14  # ticks after success that may still be sampled, so that the policy learns to stay


def disturb_start(rng: np.random.Generator, worlds: Worlds, task: Task) -> None:
    """Turn a fresh scene into one of the states that a policy can get itself into."""
    count = int(worlds.present[0].sum())
    target = worlds.position[0, task.first]
    heading = np.pi / 2 + rng.normal(0.0, 0.35)
    if task.kind in (TaskKind.PUSH_LEFT, TaskKind.PUSH_RIGHT) and rng.random() < 0.6:
        heading = (np.pi if task.kind == TaskKind.PUSH_LEFT else 0.0) + rng.normal(0.0, 0.2)
    choice = rng.random()
    if choice < 0.50:
        return
    if choice < 0.66:  # the hand is down somewhere
        hand, opening = rng.uniform([-0.14, 0.08], [0.14, 0.29]), rng.uniform(0.3, 1.0)
    elif choice < 0.84:  # the hand is near the object, at any opening
        spread = 0.012 if rng.random() < 0.6 else 0.035
        course = PUSH_DIRECTIONS[task.kind]
        hand = target - course * rng.uniform(0.02, 0.07) + rng.normal(0.0, spread, 2)
        opening = rng.choice([0.0, 0.27, 0.5, 0.5, 0.8, 1.0]) if rng.random() < 0.7 else rng.uniform(0.0, 1.0)
    elif choice < 0.96:  # something is in the hand
        hand, opening = rng.uniform([-0.14, 0.08], [0.14, 0.29]), HELD_OPENING
        if task.second >= 0 and rng.random() < 0.4:
            hand = worlds.position[0, task.second] + rng.normal(0.0, 0.02, 2)
        held = task.first if rng.random() < 0.75 else int(rng.integers(count))
        worlds.held[0], worlds.grip_offset[0] = held, rng.uniform(-0.012, 0.012)
    else:  # it is done already
        hand, opening = rng.uniform([-0.14, 0.08], [0.14, 0.29]), 0.0
        if task.kind == TaskKind.PUT:
            worlds.support[0, task.first] = task.second
            worlds.position[0, task.first] = worlds.position[0, task.second] + rng.normal(0.0, 0.006, 2)
        elif task.kind != TaskKind.TOUCH:
            axis = int(np.flatnonzero(PUSH_DIRECTIONS[task.kind])[0])
            sign = PUSH_DIRECTIONS[task.kind][axis]
            worlds.position[0, task.first, axis] = sign * (PUSH_LIMITS[task.kind] + rng.uniform(0.004, 0.03))
    worlds.joints[0, :3] = inverse_kinematics(np.asarray(hand), np.asarray(heading))
    worlds.joints[0, 3] = opening
    if worlds.held[0] >= 0:
        hand_now, heading_now = forward_kinematics(worlds.joints[0])
        direction = np.array([np.cos(heading_now), np.sin(heading_now)])
        worlds.position[0, worlds.held[0]] = hand_now + worlds.grip_offset[0] * direction
    worlds.command = worlds.joints.copy()
    for _ in range(2):
        substep(worlds, worlds.joints.copy())


@dataclass
class Snapshots:
    """States of a policy's own rollouts with the tasks it was at; new rollouts may start from them."""

    worlds: Worlds
    tasks: TaskBatch

    def save(self, path: Path) -> None:
        """Write atomically to an .npz file."""
        arrays = {f"worlds.{name}": value for name, value in vars(self.worlds).items()}
        arrays |= {f"tasks.{name}": value for name, value in vars(self.tasks).items()}
        temporary = path.with_suffix(".tmp.npz")
        np.savez(temporary, **arrays)
        temporary.replace(path)

    @staticmethod
    def load(path: Path) -> Snapshots:
        """Read what ``save`` wrote."""
        with np.load(path) as file:
            split: dict[str, dict[str, np.ndarray]] = {"worlds": {}, "tasks": {}}
            for name in file.files:
                group, key = name.split(".")
                split[group][key] = file[name]
        return Snapshots(Worlds(**split["worlds"]), TaskBatch(**split["tasks"]))


@dataclass
class Rollout:
    """Recorded ticks of B worlds: one copy of the worlds for each tick, and the commands [TICKS,B,4]."""

    ticks: list[Worlds]
    commands: np.ndarray
    usable: np.ndarray  # bool [TICKS,B]
    tasks: TaskBatch


def roll(rng: np.random.Generator, count: int, snapshots: Snapshots | None = None) -> Rollout:
    """Expert rollouts of ``count`` worlds; with snapshots, a third of them start from those."""
    parts, tasks = [], []
    borrowed = int(0.35 * count) if snapshots is not None else 0
    while len(parts) < count - borrowed:
        worlds = draw_scene(rng, strange=STRANGE if rng.random() < 0.7 else 0.0)
        task = draw_task(rng, worlds)
        assert task is not None
        if not all(names_of(worlds, 0, item) for item in (task.first, task.second) if item >= 0):
            continue
        disturb_start(rng, worlds, task)
        parts.append(worlds)
        tasks.append(task)
    worlds, batch = Worlds.stack(parts), TaskBatch.of(tasks)
    if snapshots is not None:
        rows = rng.integers(snapshots.worlds.count, size=borrowed)
        worlds = Worlds.stack([worlds, snapshots.worlds.take(rows)])
        more = snapshots.tasks.take(rows)
        batch = TaskBatch(
            *(np.concatenate(pair) for pair in zip(vars(batch).values(), vars(more).values(), strict=True))
        )
    return record(rng, worlds, batch)


def record(rng: np.random.Generator, worlds: Worlds, tasks: TaskBatch) -> Rollout:
    """Run the expert for ``TICKS`` ticks with disturbances and record everything."""
    count = worlds.count
    commands = np.empty((TICKS, count, 4))
    disturbed = np.zeros((TICKS, count), dtype=bool)
    done_at = np.full(count, TICKS)
    start = np.where(rng.random(count) < 0.6, rng.integers(0, 30, count), TICKS)
    length = rng.integers(2, 8, count)
    push = rng.normal(0.0, [0.05, 0.06, 0.08], (count, 3))
    grip = np.where(rng.random(count) < 0.35, rng.choice([0.0, 0.5, 1.0], count), np.nan)
    ticks: list[Worlds] = []
    for tick in range(TICKS):
        ticks.append(worlds.copy())
        command = expert_command(worlds, tasks)
        commands[tick] = command
        now = (tick >= start) & (tick < start + length)
        disturbed[tick] = now
        executed = command + np.concatenate([rng.normal(0.0, 0.004, (count, 3)), np.zeros((count, 1))], axis=1)
        executed[:, :3] = np.where(now[:, None], worlds.command[:, :3] + push, executed[:, :3])
        executed[:, 3] = np.where(now & ~np.isnan(grip), grip, executed[:, 3])
        advance(worlds, executed)
        done_at = np.where(succeeded(worlds, tasks), np.minimum(done_at, tick), np.where(now, TICKS, done_at))
    clean = np.zeros_like(disturbed)
    sums = np.concatenate([np.zeros((1, count), dtype=int), np.cumsum(disturbed, axis=0)])
    last = TICKS - HORIZON
    clean[: last + 1] = sums[HORIZON:] == sums[: last + 1]
    clean &= np.arange(TICKS)[:, None] <= done_at + STILL_TICKS
    return Rollout(ticks, commands, clean, tasks)


@dataclass
class Sample:
    """One training sample of either kind; ``chunk`` is None for questions."""

    images: np.ndarray  # uint8 [2,128,128,3]
    state: np.ndarray  # float64 [4]
    chunk: np.ndarray | None  # float64 [16,4]
    text: str
    question: Question | None
    marks: np.ndarray  # float32 [2,MAX_OBJECTS+1,2], pixels of every object and of the hand
    looks: np.ndarray  # int64 [MAX_OBJECTS,2], colour and shape, -1 where there is no object
    goal: np.ndarray  # float32 [4], places of the task's objects on the table in decimetres, NaN where there is none


def marks_of(worlds: Worlds, row: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each object and the hand appear in both pictures, and what the objects look like."""
    hand, _ = forward_kinematics(worlds.joints[row])
    places = np.zeros((MAX_OBJECTS + 1, 3))
    places[:MAX_OBJECTS, :2] = worlds.position[row]
    places[:MAX_OBJECTS, 2] = HEIGHTS[worlds.shape[row]] / 2
    places[MAX_OBJECTS, :2] = hand
    looks = np.stack([worlds.colour[row], worlds.shape[row]], axis=-1)
    looks = np.where(worlds.present[row][:, None], looks, -1)
    return np.stack([camera.project(places) for camera in CAMERAS]).astype(np.float32), looks


def names_of(worlds: Worlds, row: int, item: int) -> list[str]:
    """Every name that singles an object out: colour and shape, or one of them alone."""
    colour, shape = worlds.colour[row], worlds.shape[row]
    names = short_names(colour, shape, worlds.present[row], item)
    if colour[item] != UNNAMED_COLOUR and shape[item] != UNNAMED_SHAPE:
        names += [describe(int(colour[item]), int(shape[item]))] * (2 if names else 1)
    return names


def motion_sample(rng: np.random.Generator, rollout: Rollout, tick: int, row: int) -> Sample:
    """The sample of one recorded tick."""
    worlds, tasks = rollout.ticks[tick], rollout.tasks
    task = Task(TaskKind(int(tasks.kind[row])), int(tasks.first[row]), int(tasks.second[row]))
    chosen = []
    for item in (task.first, task.second):
        names = names_of(worlds, row, item) if item >= 0 else [""]
        chosen.append(names[int(rng.integers(len(names)))])
    text = say(task.kind, chosen[0], chosen[1], int(rng.integers(len(phrases(task.kind)))))
    goal = np.full(4, np.nan, dtype=np.float32)
    goal[:2] = worlds.position[row, task.first] * 10.0
    if task.second >= 0:
        goal[2:] = worlds.position[row, task.second] * 10.0
    marks, looks = marks_of(worlds, row)
    chunk = rollout.commands[tick : tick + HORIZON, row]
    return Sample(render_views(worlds, row), worlds.joints[row], chunk, vary(text, rng), None, marks, looks, goal)


def question_sample(rng: np.random.Generator, rollout: Rollout | None = None) -> Sample:
    """A question about a fresh scene, or about a recorded tick."""
    while True:
        if rollout is None:
            worlds = draw_scene(rng, repeats=bool(rng.random() < 0.4), fewest=1)
            worlds.joints[0, 3] = rng.choice([0.0, 0.0, 0.5, 1.0])
        else:
            tick, row = int(rng.integers(TICKS)), int(rng.integers(rollout.commands.shape[1]))
            worlds = rollout.ticks[tick].take(np.array([row]))
            if not (worlds.colour < UNNAMED_COLOUR).all() or not (worlds.shape < UNNAMED_SHAPE).all():
                continue
        question = draw_question(rng, worlds)
        if question is not None:
            marks, looks = marks_of(worlds, 0)
            text = question.text[0].upper() + question.text[1:] if rng.random() < 0.5 else question.text
            goal = np.full(4, np.nan, dtype=np.float32)
            return Sample(render_views(worlds, 0), worlds.joints[0], None, text, question, marks, looks, goal)


def choose_ticks(rng: np.random.Generator, rollout: Rollout, each: int) -> list[tuple[int, int]]:
    """About ``each`` usable (tick, row) pairs of every world, in random order."""
    chosen: list[tuple[int, int]] = []
    for row in range(rollout.commands.shape[1]):
        usable = np.flatnonzero(rollout.usable[:, row])
        picked = rng.choice(usable, size=min(each, len(usable)), replace=False) if len(usable) else usable
        chosen += [(int(tick), row) for tick in picked]
    return [chosen[i] for i in rng.permutation(len(chosen))]
