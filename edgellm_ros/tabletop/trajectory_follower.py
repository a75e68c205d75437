"""Follows joint trajectories as a trajectory controller does: what is past is skipped, the last point is held.

Between points the command moves in a straight line; from wherever it is when a trajectory arrives it moves to the
first point that is still to come. A new trajectory replaces the old one at once. Nothing here knows ROS; times are
integers in nanoseconds of whatever clock the caller keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import RefusalCode, RequestError
from ..json_values import shown
from .geometry import Array

NANOSECONDS = 1_000_000_000
FARTHEST = 1e6  # of a position; beyond it no joint can be meant, and differences of such numbers are none


@dataclass(frozen=True)
class TrajectoryPoint:
    """Where the joints are to be ``after`` nanoseconds from the trajectory's start."""

    after: int
    positions: Sequence[float]


class TrajectoryFollower:
    """Owned by one thread. ``names`` are the joints in the order of ``sample``'s answer."""

    def __init__(self, names: Sequence[str], command: Array) -> None:
        self.names = tuple(names)
        self.reset(command)

    def reset(self, command: Array) -> None:
        """Forget any trajectory and hold ``command`` [n]."""
        self._due = np.zeros(1, dtype=np.int64)
        self._rows = np.array(command, dtype=np.float64)[None]

    def accept(self, names: Sequence[str], points: Sequence[TrajectoryPoint], stamp: int, now: int) -> int:
        """Take a trajectory that starts at ``stamp`` (0: now), or turn it away and keep following the last one.

        One without points holds the joints where they are commanded now. Returns how many points were past already.

        :raises RequestError: the joints are not exactly these, a point lacks a number or has one that no joint can
            have, times don't rise, or every point is past.
        """
        here = self.sample(now)
        if not points:
            self.reset(here)
            return 0
        rows = self._rows_of(names, points)
        after = np.array([point.after for point in points], dtype=np.int64)
        if after[0] < 0 or (np.diff(after) <= 0).any():
            raise _refusal("its times from the start are not rising from zero on; each point must come after the last.")
        due = (stamp or now) + after
        past = int((due <= now).sum())
        if past == len(points):
            if not stamp:
                raise _refusal("none of its points is after its start; give each a time_from_start above 0.")
            late = (now - int(due[-1])) / NANOSECONDS
            raise _refusal(
                f"all of its {past} points are past, the last by {late:.3f} s; compare the clocks, or send it sooner."
            )
        self._due = np.concatenate([[now], due[past:]])
        self._rows = np.concatenate([here[None], rows[past:]])
        return past

    def sample(self, now: int) -> Array:
        """The command [n] at a moment."""
        index = int(np.searchsorted(self._due, now, side="right"))
        if index == len(self._due):
            return np.asarray(self._rows[-1].copy())
        if index == 0:
            return np.asarray(self._rows[0].copy())
        start, end = int(self._due[index - 1]), int(self._due[index])
        share = (now - start) / (end - start)
        return np.asarray(self._rows[index - 1] + share * (self._rows[index] - self._rows[index - 1]))

    def _rows_of(self, names: Sequence[str], points: Sequence[TrajectoryPoint]) -> Array:
        if sorted(names) != sorted(self.names):
            found = shown(", ".join(names)) if names else "none"
            raise _refusal(f"its joints are {found}; want {', '.join(self.names)}, each once.")
        for number, point in enumerate(points):
            if len(point.positions) != len(names):
                raise _refusal(f"point {number} has {len(point.positions)} positions; want {len(names)}, one a joint.")
        rows = np.array([point.positions for point in points], dtype=np.float64)
        if not np.isfinite(rows).all():
            raise _refusal("a position is not finite; check what computes it.")
        if np.abs(rows).max() > FARTHEST:
            raise _refusal(f"a position is {np.abs(rows).max():g}; want at most {FARTHEST:g}: check what computes it.")
        return np.asarray(rows[:, [list(names).index(name) for name in self.names]])


def _refusal(reason: str) -> RequestError:
    return RequestError(f"The trajectory is not followed: {reason}", RefusalCode.BAD_REQUEST)
