"""How long the stages of the work take: total, mean, and how the last of them spread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")
_KEPT = 512  # of each stage, for the spread


@dataclass(frozen=True)
class StageTime:
    """Seconds of one stage; the percentiles are of its last runs."""

    count: int
    total: float
    p50: float
    p90: float
    p99: float

    @property
    def mean(self) -> float:
        """Seconds a run."""
        return self.total / self.count if self.count else 0.0

    def to_json(self) -> dict[str, float]:
        """In milliseconds."""
        return {
            "count": self.count,
            **{
                f"{name}_ms": 1e3 * value
                for name, value in (
                    ("total", self.total), ("mean", self.mean), ("p50", self.p50), ("p90", self.p90), ("p99", self.p99)
                )
            },
        }  # fmt: skip


class StageTimes:
    """Written by the thread that drives a runtime; readers get a copy."""

    def __init__(self) -> None:
        self._totals: dict[str, tuple[int, float]] = {}
        self._last: dict[str, deque[float]] = {}

    def record(self, stage: str, seconds: float) -> None:
        """One run of a stage."""
        count, total = self._totals.get(stage, (0, 0.0))
        self._last.setdefault(stage, deque(maxlen=_KEPT)).append(seconds)  # first: a reader goes by the totals
        self._totals[stage] = (count + 1, total + seconds)

    def timed(self, stage: str, work: Callable[[_Given], _Made]) -> Callable[[_Given], _Made]:
        """``work``, every call of which is a run of the stage."""

        def run(given: _Given) -> _Made:
            start = time.monotonic()
            made = work(given)
            self.record(stage, time.monotonic() - start)
            return made

        return run

    def values(self) -> dict[str, StageTime]:
        """All stages that ran."""
        found = {}
        for stage, (count, total) in dict(self._totals).items():
            last = sorted(self._last[stage].copy())
            spread = [last[min(len(last) - 1, len(last) * percent // 100)] for percent in (50, 90, 99)]
            found[stage] = StageTime(count, total, *spread)
        return found
