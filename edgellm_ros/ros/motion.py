"""From chunks to motion: the one place that lets actions out, and that stops them.

The worker brings chunks, the executor's thread stops motion; whichever comes first under the lock wins. Every stop
opens a new epoch, and a chunk that was computed in an older one moves nothing. Nothing here knows ROS.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..action.chunk import NANOSECONDS, ActionChunk, ActionLimits, check_finite, check_limits
from ..action.policy_manifest import ActionMeaning
from ..action.timeline import ChunkTimeline, Plan
from ..errors import ChunkError, Refusal, RefusalCode
from .joint_states import FUTURE


class ActionOutputs(Protocol):
    """Where plans go; messages in the node."""

    def publish_plan(self, chunk: ActionChunk, plan: Plan) -> None:
        """What the robot is to follow."""
        ...

    def publish_hold(self) -> None:
        """Stay where you are."""
        ...


@dataclass(frozen=True)
class MotionSettings:
    """How chunks become motion; of the moment at which a chunk is followed."""

    limits: ActionLimits
    hold_on_fault: bool = True
    fixed_delay: float = -1.0  # s from the observation at which a chunk counts as ready; below 0: when it is


class Motion:
    """Any thread may call it; the lock covers the timeline, the epoch and the order of what is published."""

    def __init__(self, outputs: ActionOutputs, meaning: ActionMeaning, on_stop: Callable[[Refusal], None]) -> None:
        """``on_stop`` is told, from any thread, why motion was stopped or a chunk dropped."""
        self._outputs, self._meaning, self._on_stop = outputs, meaning, on_stop
        self._lock = threading.Lock()
        self._epoch = 0
        self._counts: Counter[str] = Counter()
        self.timeline = ChunkTimeline()
        self._held = True
        self._runs_on = False
        self._blind = 0  # ns; until then the robot could not be seen or felt, and what was observed before is no use
        self._ended = False  # the plan came to its end without a hold, and nobody needs to be told of it any more

    @property
    def epoch(self) -> int:
        """What a chunk must still find when it is ready."""
        with self._lock:
            return self._epoch

    @property
    def moving(self) -> bool:
        """Whether a plan was let out and not stopped."""
        with self._lock:
            return not self._held

    def counts(self) -> dict[str, int]:
        """Chunks followed and dropped by reason, holds."""
        with self._lock:
            return dict(self._counts)

    def begin(self, timeline: ChunkTimeline, now: int = 0, *, runs_on: bool = False) -> int:
        """Go on under these rules, joined to what is followed at ``now``; returns the epoch of the chunks to come.

        ``runs_on``: chunk after chunk is to come, so that what is followed is not meant to be followed to its end.
        """
        with self._lock:
            self._runs_on = runs_on
            self._ended = not self.timeline.running(now)
            if not self._ended:
                timeline.take_over(self.timeline)
            self.timeline = timeline
            self._blind = 0
            self._epoch += 1
            return self._epoch

    def committed(self, stamp: int, step: int, count: int) -> np.ndarray:
        """See ``ChunkTimeline.committed``."""
        with self._lock:
            return self.timeline.committed(stamp, step, count)

    def follow(
        self, chunk: ActionChunk, settings: MotionSettings, now: int, epoch: int, position: np.ndarray | None = None
    ) -> Plan | Refusal:
        """Let a chunk out, or say why not; a fault stops motion as the settings say.

        :param position: where the robot is, for policies of joint positions.
        """
        if settings.fixed_delay >= 0:
            now = chunk.stamp + round(settings.fixed_delay * NANOSECONDS)
        with self._lock:
            if epoch != self._epoch:
                self._counts["dropped.cancelled"] += 1
                return Refusal(RefusalCode.CANCELLED, "Motion was stopped while the chunk was computed; it is dropped.")
            here = position if self._meaning is ActionMeaning.JOINT_POSITION else None

            def check(plan: Plan, before: np.ndarray | None) -> None:
                start = here if before is None else before
                what = "what would be followed of the chunk" if plan.skipped else "the chunk"
                check_limits(plan.rows, chunk.names, settings.limits, start, what)

            try:
                if chunk.stamp > now + FUTURE * NANOSECONDS:
                    ahead = (chunk.stamp - now) / NANOSECONDS
                    raise ChunkError(
                        f"the chunk's observation is stamped {ahead:.3f} s ahead of the clock, which went back; it is "
                        "dropped.",
                        RefusalCode.STALE_OBSERVATION,
                    )
                if chunk.stamp < self._blind:
                    raise ChunkError(
                        "the chunk's observation is of before the robot was stopped for want of newer ones; it is "
                        "dropped.",
                        RefusalCode.STALE_OBSERVATION,
                    )
                check_finite(chunk.rows, chunk.names)
                if chunk.path is not None and not chunk.path.finite:
                    raise ChunkError("the chunk's path holds a number that is not finite; it is dropped.")
                check_limits(chunk.rows, chunk.names, settings.limits)
                plan = self.timeline.add(chunk, now, check)
            except ChunkError as error:
                self._counts[f"dropped.{error.code.value}"] += 1
                if error.code is not RefusalCode.LATE_CHUNK and settings.hold_on_fault:
                    self._hold(now)
                refusal = error.refusal
            else:
                self._counts["followed"] += 1
                self._held = self._ended = False
                self._outputs.publish_plan(chunk, plan)
                return plan
        self._on_stop(refusal)
        return refusal

    def stop(self, refusal: Refusal) -> None:
        """Stop at once: chunks on their way are dropped, and the robot is told to stay, whatever faults are to do."""
        with self._lock:
            self._epoch += 1
            held = self._held
            if not held:
                self._hold()
            self.timeline.clear()
        if not held:
            self._on_stop(refusal)

    def leave(self, refusal: Refusal) -> None:
        """Stop where the task that ran on was superseded by what moves nothing; a single chunk goes on to its end."""
        with self._lock:
            left = self._runs_on and not self._held
        if left:
            self.stop(refusal)

    def fault(self, refusal: Refusal, now: int = 0, *, hold: bool) -> None:
        """An observation cannot be used: stay from ``now`` (ns; 0: long since) until one can, in the same epoch."""
        with self._lock:
            self._counts[f"fault.{refusal.code.value}"] += 1
            if hold and not self._held:
                self._hold(now)
        self._on_stop(refusal)

    def blind(self, refusal: Refusal, now: int) -> None:
        """A robot that moves is not seen or felt any more: stay, and drop what is computed of observations so far."""
        with self._lock:
            if self._held:
                return
            self._counts[f"fault.{refusal.code.value}"] += 1
            self._blind = now
            self._hold(now)
        self._on_stop(refusal)

    def clock_jumped(self, refusal: Refusal) -> None:
        """The clock went back, so no time of what is followed means anything: stay, and begin anew."""
        with self._lock:
            held = self._held
            if not held:
                self._hold()
            self.timeline.clear()
            self._blind = 0
        if not held:
            self._on_stop(refusal)

    def watch(self, now: int, *, hold: bool) -> bool:
        """Stop a robot whose plan ended with no fresh chunk to follow; True when that was so."""
        with self._lock:
            if self._held or self._ended or self.timeline.running(now):
                return False
            self._counts["starved"] += 1
            self._ended = True
            last = self.timeline.plan
            if hold:
                self._hold(now)
        late = 0.0 if last is None else (now - int(last.due[-1])) / NANOSECONDS
        self._on_stop(
            Refusal(
                RefusalCode.LATE_CHUNK,
                f"No chunk came in time: the last action was due {late:.3f} s ago, so the robot holds; lower "
                "action.denoise_steps or action.rate.",
            )
        )
        return True

    def _hold(self, now: int = 0) -> None:
        self._counts["holds"] += 1
        self._held = True
        self.timeline.clear(now)
        self._outputs.publish_hold()
