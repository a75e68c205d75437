"""Chunks joined in time: the next one starts where the robot is by the clock, and no sample ever steps back.

A plan is a list of rows with the times at which they are due. A new chunk replaces, blends into or is averaged with
the plan that runs; either way what comes out lies after ``now``, in strictly rising time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ..errors import ChunkError, PolicyError, RefusalCode
from ..json_values import shown
from .chunk import NANOSECONDS, ActionChunk


class Splice(str, Enum):
    """How a new chunk meets the plan that runs."""

    REPLACE = "replace"
    BLEND = "blend"  # cross-fade over the first rows that both plans have
    ENSEMBLE = "ensemble"  # average over every chunk that speaks of a time (Zhao et al., ACT, arXiv 2304.13705)
    RTC = "rtc"  # the new chunk was already guided to the old plan; then as replace


@dataclass(frozen=True)
class Plan:
    """Rows [n, A] due at strictly rising times [n] in nanoseconds, all after the moment of the splice.

    ``skipped`` counts rows of the new chunk that were due before that moment.
    """

    due: np.ndarray
    rows: np.ndarray
    skipped: int

    def at(self, times: np.ndarray) -> np.ndarray:
        """Rows [m, A] at ``times`` [m], interpolated; the first and last row hold outside."""
        base = self.due[0]
        known, wanted = (self.due - base).astype(np.float64), (np.asarray(times) - base).astype(np.float64)
        return np.stack([np.interp(wanted, known, column) for column in self.rows.T], axis=1)


class ChunkTimeline:
    """Joins chunks. Owned by the thread that publishes them.

    :param execute_steps: rows of each chunk that are followed; 0 follows all.
    :param blend_steps: rows over which ``BLEND`` fades from the old plan to the new.
    :param decay: of ``ENSEMBLE``: a chunk's weight is exp(-decay * i), i counting from 0 for the oldest.
    """

    def __init__(
        self,
        splice: Splice = Splice.REPLACE,
        *,
        execute_steps: int = 0,
        blend_steps: int = 8,
        decay: float = 0.01,
    ) -> None:
        if execute_steps < 0 or blend_steps < 1 or not np.isfinite(decay):
            raise PolicyError(
                f"execute_steps is {execute_steps}, blend_steps {blend_steps} and decay {shown(decay)}; want at least "
                "0, at least 1 and a finite number."
            )
        self.splice = splice
        self.execute_steps = execute_steps
        self.blend_steps = blend_steps
        self.decay = decay
        self._plan: Plan | None = None
        self._rest = 0  # ns; since when the robot stands, where there is no plan
        self._heard: list[Plan] = []  # chunks that still speak of the future, oldest first; for ENSEMBLE

    @property
    def plan(self) -> Plan | None:
        """What is being followed."""
        return self._plan

    def clear(self, since: int = 0) -> None:
        """Forget everything: the robot holds, was paused, or time jumped.

        A chunk of an observation from ``since`` (ns) on is a first one; what was seen before that, in motion, is not.
        """
        self._plan, self._rest = None, since
        self._heard.clear()

    def take_over(self, other: ChunkTimeline) -> None:
        """Go on from what is followed under other rules."""
        self._plan, self._rest = other._plan, other._rest
        self._heard = [] if other._plan is None else [other._plan]

    def running(self, now: int) -> bool:
        """True while a plan has rows due after ``now``."""
        return self._plan is not None and bool(self._plan.due[-1] > now)

    def add(
        self, chunk: ActionChunk, now: int, check: Callable[[Plan, np.ndarray | None], None] = lambda plan, before: None
    ) -> Plan:
        """What to follow from ``now`` (nanoseconds, the clock of the chunk's stamp) on.

        The first chunk after a start or ``clear`` is followed from its first row: its times count from ``now``,
        because nothing moved while it was computed. Those of a path never move: a vehicle may have rolled on.

        :param check: is given the plan, and the row that was followed one step before it (None where none was); what
            it raises leaves everything as it was.
        :raises ChunkError: every row of a later chunk was due before ``now``; the sentence says by how much.
        """
        old = self._plan
        first = old is None and chunk.stamp >= self._rest and chunk.path is None
        due = chunk.due + (max(now - chunk.stamp, 0) if first else 0)
        rows = np.asarray(chunk.rows, dtype=np.float64)
        ahead = int(np.searchsorted(due, now, side="right"))
        if ahead == len(due):
            raise ChunkError(
                f"the chunk's last action was due {(now - int(due[-1])) / NANOSECONDS:.3f} s ago; it is dropped: lower "
                "the number of denoise steps or use a policy with a longer horizon.",
                RefusalCode.LATE_CHUNK,
            )
        if self.execute_steps:
            due, rows = due[: ahead + self.execute_steps], rows[: ahead + self.execute_steps]
        new = Plan(due[ahead:], rows[ahead:], ahead)
        joined = self._join(new)
        check(joined, None if old is None else old.at(joined.due[:1] - chunk.step)[0])
        if self.splice is Splice.ENSEMBLE:
            self._heard = [plan for plan in self._heard if plan.due[-1] > now] + [new]
        self._plan = joined
        return joined

    def committed(self, stamp: int, step: int, count: int) -> np.ndarray:
        """Rows [n, A] that the plan in force has at ``stamp + (k + 1) * step``, k below ``count``; n may be 0."""
        times = stamp + (1 + np.arange(count, dtype=np.int64)) * step
        if self._plan is None:
            return np.empty((0, 0))
        return self._plan.at(times[times <= self._plan.due[-1]])

    def _join(self, new: Plan) -> Plan:
        old = self._plan
        if old is None or old.due[-1] < new.due[0] or self.splice in (Splice.REPLACE, Splice.RTC):
            return new
        if self.splice is Splice.BLEND:
            shared = new.due <= old.due[-1]
            share = np.clip((1.0 + np.arange(len(new.due))) / (self.blend_steps + 1), 0.0, 1.0)[:, None]
            mixed = share * new.rows + (1.0 - share) * old.at(new.due)
            return Plan(new.due, np.where(shared[:, None], mixed, new.rows), new.skipped)
        total = np.zeros((len(new.due), 1))
        rows = np.zeros_like(new.rows)
        for age, plan in enumerate([*self._heard, new]):
            speaks = ((new.due >= plan.due[0]) & (new.due <= plan.due[-1]))[:, None]
            weight = np.exp(-self.decay * age) * speaks
            rows += weight * plan.at(new.due)
            total += weight
        return Plan(new.due, rows / total, new.skipped)
