"""Episodes in the world's own time: chunks come late by a given latency, and are joined as the node joins them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..action.chunk import NANOSECONDS, ActionChunk
from ..action.solver import RealTimeChunking
from ..action.timeline import ChunkTimeline, Splice
from ..errors import ChunkError
from .episodes import EPISODE_TICKS, Episode
from .expert import TICK
from .geometry import JOINT_NAMES, Array
from .physics import SUBSTEP
from .simulation import STEP, Score, Simulation
from .smoothness import CommandTrace
from .trajectory_follower import TrajectoryPoint

SUBSTEPS = round(TICK / SUBSTEP)


class ChunkSource(Protocol):
    """What acts: a chunk from what is seen, felt and said, and nothing else. ``horizon``: its actions."""

    horizon: int

    def chunk(
        self,
        views: Array,
        joints: Array,
        text: str,
        stamp: int,
        chunking: RealTimeChunking | None = None,
        committed: Array | None = None,
    ) -> ActionChunk:
        """Of pictures uint8 RGB [2,128,128,3], joints [4] and a text, stamped with the observation's time in ns."""
        ...


@dataclass(frozen=True)
class Timing:
    """How chunks meet the world's time.

    ``latency`` (s) passes between an observation and its chunk, in which the arm follows the last one. Observations lie
    ``period`` ticks apart. ``splice`` and ``blend_steps`` are those of the node's ``action.*``.
    """

    latency: float = 0.0
    period: int = 6
    splice: Splice = Splice.REPLACE
    blend_steps: int = 3


@dataclass(frozen=True)
class TimedEpisode:
    """How one episode went. ``late`` counts chunks that came too late to be followed."""

    score: Score
    trace: CommandTrace = field(repr=False)
    staleness_ms: tuple[float, ...] = ()
    late: int = 0


def run_timed(
    source: ChunkSource,
    episode: Episode,
    timing: Timing,
    *,
    text: str | None = None,
    blind: bool = False,
    on_observation: Callable[[Simulation], None] = lambda simulation: None,
) -> TimedEpisode:
    """Run an episode until the arm rests or ten seconds have passed, hold it for one more second and judge the world.

    ``text`` replaces the episode's own; ``blind`` shows black pictures; ``on_observation`` is called before each look.
    """
    arm = _Arm(Simulation(episode.seed, held_out=episode.held_out), timing)
    simulation, step = arm.simulation, round(TICK * NANOSECONDS)
    for index in range(EPISODE_TICKS * SUBSTEPS):
        arm.take_what_is_ready()
        if index % (timing.period * SUBSTEPS) == 0 and arm.waiting is None:
            if index >= NANOSECONDS // STEP and simulation.score().still:
                break
            on_observation(simulation)
            chunking, committed = _guidance(arm.timeline, timing, arm.now, step, source.horizon)
            views = simulation.views() * np.uint8(not blind)
            words = episode.text if text is None else text
            arm.waiting = source.chunk(views, simulation.joints, words, arm.now, chunking, committed)
            arm.take_what_is_ready()
        arm.step()
        if index % SUBSTEPS == SUBSTEPS - 1:
            arm.trace.add(simulation.follower.sample(arm.now))
    simulation.follower.reset(simulation.follower.sample(arm.now))
    for _ in range(NANOSECONDS // STEP + SUBSTEPS):
        arm.step()
    return TimedEpisode(simulation.score(), arm.trace, tuple(arm.staleness_ms), arm.late)


class _Arm:
    """A world, the plan that its arm follows, and the chunk that is on its way."""

    def __init__(self, simulation: Simulation, timing: Timing) -> None:
        self.simulation, self.now = simulation, NANOSECONDS
        self.timeline = ChunkTimeline(timing.splice, blend_steps=timing.blend_steps)
        self.trace = CommandTrace()
        self.staleness_ms: list[float] = []
        self.waiting: ActionChunk | None = None
        self.late = 0
        self._latency = round(timing.latency * NANOSECONDS)

    def take_what_is_ready(self) -> None:
        """Follow the chunk whose time has come."""
        chunk = self.waiting
        if chunk is None or chunk.stamp + self._latency > self.now:
            return
        self.waiting = None
        try:
            plan = self.timeline.add(chunk, self.now)
        except ChunkError:
            self.late += 1
            return
        points = [
            TrajectoryPoint(int(due) - self.now, row.tolist()) for due, row in zip(plan.due, plan.rows, strict=True)
        ]
        self.simulation.follower.accept(JOINT_NAMES, points, self.now, self.now)
        self.staleness_ms.append(1000.0 * (self.now - chunk.stamp) / NANOSECONDS)
        self.trace.seam()

    def step(self) -> None:
        """Let the world go on."""
        self.now += STEP
        self.simulation.step(self.now)


def _guidance(
    timeline: ChunkTimeline, timing: Timing, now: int, step: int, horizon: int
) -> tuple[RealTimeChunking | None, Array | None]:
    if timing.splice is not Splice.RTC:
        return None, None
    committed = timeline.committed(now, step, horizon)
    if not len(committed):
        return None, None
    return RealTimeChunking.expecting(timing.latency, TICK, timing.blend_steps, len(committed)), committed
