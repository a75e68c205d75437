"""Numbers that are never silent: what came in, what became of it, and why not."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..errors import Refusal
from ..runtime.request import FinishReason
from .report import Report


@dataclass(frozen=True)
class CounterValues:
    """A consistent copy. ``refused`` counts every end without an answer by its code."""

    received: int
    answered: int
    refused: Mapping[str, int]
    finish_reasons: Mapping[str, int]
    deltas: int
    prompt_tokens: int
    reused_tokens: int  # of them, those that were not computed again
    completion_tokens: int
    stream_mismatches: int
    unpublished: int
    last_refusal: Refusal | None
    last_refusal_age: float | None  # s


class Counters:
    """Counts of one node since it started. Any thread may call it; the lock covers all fields."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._finish_reasons: Counter[str] = Counter()
        self._last_refusal: Refusal | None = None
        self._last_refusal_time = 0.0

    def count(self, name: str, amount: int = 1) -> int:
        """Add to one of the plain counters (``received``, ``deltas``, ``unpublished``, …); returns its new value."""
        with self._lock:
            self._counts[name] += amount
            return self._counts[name]

    def refused(self, refusal: Refusal) -> None:
        """A prompt that ended without an answer, or another input that was turned away."""
        with self._lock:
            self._refused[refusal.code.value] += 1
            self._last_refusal = refusal
            self._last_refusal_time = time.monotonic()

    def ended(self, report: Report) -> None:
        """A request that ended."""
        with self._lock:
            self._finish_reasons[report.finish_reason.label] += 1
            self._counts["answered"] += report.refusal is None
            self._counts["prompt_tokens"] += report.prompt_tokens or 0
            self._counts["reused_tokens"] += report.reused_tokens or 0
            self._counts["completion_tokens"] += report.completion_tokens
        if report.refusal is not None:
            self.refused(report.refusal)

    def values(self) -> CounterValues:
        """All of them now."""
        with self._lock:
            age = time.monotonic() - self._last_refusal_time if self._last_refusal else None
            return CounterValues(
                received=self._counts["received"],
                answered=self._counts["answered"],
                refused=dict(self._refused),
                finish_reasons={
                    reason.label: self._finish_reasons[reason.label]
                    for reason in FinishReason
                    if self._finish_reasons[reason.label]
                },
                deltas=self._counts["deltas"],
                prompt_tokens=self._counts["prompt_tokens"],
                reused_tokens=self._counts["reused_tokens"],
                completion_tokens=self._counts["completion_tokens"],
                stream_mismatches=self._counts["stream_mismatches"],
                unpublished=self._counts["unpublished"],
                last_refusal=self._last_refusal,
                last_refusal_age=age,
            )


class Throttle:
    """Lets one message of a kind through in each period, and tells how many it held back."""

    def __init__(self, period: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._period = period
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, int]] = {}

    def admit(self, kind: str, message: str) -> str | None:
        """The message to log, with the number of those held back since the last; None to stay quiet."""
        now = self._clock()
        with self._lock:
            last, held = self._seen.get(kind, (-self._period, 0))
            if now - last < self._period:
                self._seen[kind] = (last, held + 1)
                return None
            self._seen[kind] = (now, 0)
        return f"{message} ({held} more since the last message of this kind)" if held else message
