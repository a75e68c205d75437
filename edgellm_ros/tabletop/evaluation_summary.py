"""What an evaluation says: success and accuracy by kind, latency, smoothness, staleness, as one JSON-able object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .smoothness import CommandTrace, mean_jerks


@dataclass(frozen=True)
class Outcome:
    """One motion task."""

    kind: str
    success: bool
    trace: CommandTrace = field(repr=False)
    staleness_ms: tuple[float, ...] = ()
    late: int = 0


@dataclass(frozen=True)
class Answered:
    """One question."""

    kind: str
    right: bool


def summarise(
    seen: Sequence[Outcome], unseen: Sequence[Outcome], answers: Sequence[Answered], latencies_ms: Sequence[float]
) -> dict[str, Any]:
    """Shares from 0 to 1, None of nothing; times in ms, each a median and a 95th percentile; jerk in rad/s^3."""
    everything = [*seen, *unseen]
    return {
        "episodes": len(seen),
        "success_rate": share([row.success for row in seen]),
        "per_task": by_kind([(row.kind, row.success) for row in seen]),
        "held_out": {"episodes": len(unseen), "success_rate": share([row.success for row in unseen])},
        "questions": len(answers),
        "answer_accuracy": share([row.right for row in answers]),
        "per_question": by_kind([(row.kind, row.right) for row in answers]),
        "chunk_latency_ms": spread(latencies_ms),
        "seam_jerk": mean_jerks(row.trace for row in everything),
        "staleness_ms": spread([value for row in everything for value in row.staleness_ms]),
        "late_chunks": sum(row.late for row in everything),
    }


def share(values: Sequence[bool]) -> float | None:
    """The share of true ones; None of nothing."""
    return round(float(np.mean(values)), 4) if len(values) else None


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Median and 95th percentile; None of nothing."""
    if not len(values):
        return None
    median, high = np.percentile(values, [50, 95])
    return {"median": round(float(median), 2), "p95": round(float(high), 2)}


def by_kind(rows: Sequence[tuple[str, bool]]) -> dict[str, float | None]:
    """The share of each kind."""
    kinds = sorted({kind for kind, _ in rows})
    return {kind: share([good for name, good in rows if name == kind]) for kind in kinds}
