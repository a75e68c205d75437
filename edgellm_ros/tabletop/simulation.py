"""One tabletop in time: it steps, follows trajectories, shows its cameras and judges its task.

Nothing here knows ROS.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from .episodes import AT_REST, Episode, draw_episode
from .geometry import JOINT_NAMES, Array
from .physics import SUBSTEP, substep
from .render import render_views
from .tasks import TaskBatch, succeeded
from .trajectory_follower import NANOSECONDS, TrajectoryFollower

STEP = round(SUBSTEP * NANOSECONDS)
STILL_STEPS = round(1.0 / SUBSTEP)


@dataclass(frozen=True)
class Score:
    """How the task stands: ``reached`` now, ``still`` for a second, and ``success`` where both hold."""

    seed: int
    held_out: bool
    kind: str
    task: str
    reached: bool
    still: bool
    success: bool
    seconds: float


class Simulation:
    """The world of one seed. Owned by one thread."""

    def __init__(self, seed: int = 0, *, held_out: bool = False) -> None:
        self.follower = TrajectoryFollower(JOINT_NAMES, np.zeros(len(JOINT_NAMES)))
        self.reset(seed, held_out=held_out)

    def reset(self, seed: int, *, held_out: bool = False) -> Episode:
        """Begin the episode of a seed; what was followed is forgotten."""
        self.episode = draw_episode(seed, held_out=held_out)
        self.worlds = self.episode.worlds.copy()
        self.tasks = TaskBatch.of([self.episode.task])
        self.follower.reset(self.joints)
        self.steps = 0
        self._trail: deque[Array] = deque([self.joints], maxlen=STILL_STEPS)
        return self.episode

    @property
    def joints(self) -> Array:
        """Joint positions float64 [4], in the order of ``JOINT_NAMES``."""
        return np.asarray(self.worlds.joints[0].copy())

    def step(self, now: int) -> None:
        """Let ``SUBSTEP`` seconds pass; ``now`` is the time in nanoseconds at their end."""
        substep(self.worlds, self.follower.sample(now)[None])
        self._trail.append(self.joints)
        self.steps += 1

    def views(self) -> Array:
        """What the cameras see, uint8 RGB [2,128,128,3]."""
        return render_views(self.worlds, 0)

    def score(self) -> Score:
        """Judge the world's state."""
        reached = bool(succeeded(self.worlds, self.tasks)[0])
        rest = len(self._trail) == STILL_STEPS and bool((np.ptp(np.stack(self._trail), axis=0) <= AT_REST).all())
        episode = self.episode
        return Score(
            episode.seed,
            episode.held_out,
            episode.task.kind.name.lower(),
            episode.text,
            reached,
            rest,
            reached and rest,
            self.steps * SUBSTEP,
        )
