"""Closed-loop episodes: draw them from a seed, run a policy on them, judge the world after one still second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .expert import TICK
from .geometry import Array
from .physics import SUBSTEP, Worlds, substep
from .questions import Question, draw_question
from .render import render_views
from .scenes import draw_scene, draw_task
from .tasks import Task, TaskBatch, TaskKind, phrases, succeeded, task_text

SUBSTEPS = round(TICK / SUBSTEP)
EPISODE_TICKS = 150  # ten seconds
STILL_TICKS = 15  # one second
AT_REST = np.array([0.03, 0.03, 0.06, 0.06])  # what the joints may still move within a second

#: From pictures uint8 [B,2,128,128,3], joint positions float64 [B,4] and B texts to joint targets [B,H,4], one a tick.
Policy = Callable[[Array, Array, list[str]], Array]


@dataclass(frozen=True)
class Episode:
    """One motion task in one scene; ``seed`` draws both again."""

    seed: int
    worlds: Worlds
    task: Task
    text: str
    held_out: bool


def draw_episode(seed: int, *, held_out: bool = False) -> Episode:
    """The episode of a seed. Kinds of task are drawn alike often, whatever the scene."""
    rng = np.random.default_rng([seed, int(held_out), 71])
    kind = TaskKind(int(rng.integers(len(TaskKind))))
    while True:
        worlds = draw_scene(rng, held_out=held_out)
        task = draw_task(rng, worlds, kind)
        if task is not None:
            text = task_text(task, worlds.colour[0], worlds.shape[0], int(rng.integers(len(phrases(kind)))))
            return Episode(seed, worlds, task, text, held_out)


def draw_question_episode(seed: int) -> tuple[Worlds, Question]:
    """The scene and the question of a seed; kinds of question are drawn alike often."""
    rng = np.random.default_rng([seed, 72])
    while True:
        worlds = draw_scene(rng, repeats=bool(rng.random() < 0.3))
        question = draw_question(rng, worlds, None)
        if question is not None:
            return worlds, question


def advance(worlds: Worlds, command: Array) -> None:
    """One tick: the joint command [B,4] is approached along a straight line from the last one."""
    before = worlds.command.copy()
    for index in range(1, SUBSTEPS + 1):
        substep(worlds, before + (command - before) * (index / SUBSTEPS))


def run_episodes(
    policy: Policy,
    episodes: list[Episode],
    *,
    execute: int = 6,
    ticks: int = EPISODE_TICKS,
    texts: list[str] | None = None,
    blind: bool = False,
) -> Array:
    """Success of each episode, bool [B]: ``execute`` rows of each chunk are followed, then a new one is asked for.

    An episode is over when the arm has been at rest for a second, or after ``ticks``; then it is held still for one
    more second and judged. The policy sees pictures, joint positions and the text alone. ``texts`` replaces the
    episodes' own; ``blind`` shows black pictures.
    """
    worlds = Worlds.stack([episode.worlds for episode in episodes])
    tasks = TaskBatch.of([episode.task for episode in episodes])
    prompts = [episode.text for episode in episodes] if texts is None else texts
    rows = np.arange(worlds.count)
    trail = [worlds.joints.copy()]
    for _ in range(0, ticks, execute):
        images = np.stack([render_views(worlds, int(row)) for row in rows])
        command = np.repeat(worlds.command[None], execute, axis=0)
        chunk = policy(images * np.uint8(not blind), worlds.joints[rows], [prompts[row] for row in rows])
        command[:, rows] = np.swapaxes(chunk[:, :execute], 0, 1)
        for step in command:
            advance(worlds, step)
            trail.append(worlds.joints.copy())
        if len(trail) > STILL_TICKS:
            recent = np.stack(trail[-STILL_TICKS:])
            rows = np.flatnonzero((np.ptp(recent, axis=0) > AT_REST).any(axis=-1))
        if not rows.size:
            break
    hold_still(worlds)
    return succeeded(worlds, tasks)


def hold_still(worlds: Worlds) -> None:
    """Let one second pass while the arm keeps its last command."""
    command = worlds.command.copy()
    for _ in range(STILL_TICKS):
        advance(worlds, command)
