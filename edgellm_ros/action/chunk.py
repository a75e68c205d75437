"""One action chunk in robot units, and the checks that it must pass before a robot sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import ChunkError, RefusalCode
from ..vision.pruner import PruningReport
from .kinematics import DrivingPath

NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class ActionChunk:
    """Rows [H, A] of float64 in robot units; row k is due at ``stamp + (k + 1) * step`` (both in nanoseconds).

    ``stamp`` is that of the observation, never of the computation. ``normalised`` [H, A] are the network's own numbers,
    kept for parity checks and real-time chunking. Of a policy that drives, ``reasoning`` is what it said first and
    ``path`` where its accelerations and curvatures lead.
    """

    rows: np.ndarray
    stamp: int
    step: int
    names: tuple[str, ...]
    units: tuple[str, ...]
    seed: int = 0
    noise_digest: str = ""
    normalised: np.ndarray | None = None
    pruning: PruningReport | None = None  # what was left out of what the policy saw
    timings: dict[str, float] = field(default_factory=dict)
    reasoning: str = ""
    path: DrivingPath | None = None

    def __post_init__(self) -> None:
        shape = np.shape(self.rows)
        if len(shape) != 2 or shape[0] < 1 or shape[1] != len(self.names) or len(self.units) != len(self.names):
            raise ChunkError(
                f"a chunk has rows of shape {shape}, {len(self.names)} names and {len(self.units)} units; want one "
                "name and one unit for each column.",
                RefusalCode.BAD_POLICY,
            )
        if self.step <= 0:
            raise ChunkError(f"a chunk's step is {self.step} ns; want more than 0.", RefusalCode.BAD_POLICY)

    @property
    def due(self) -> np.ndarray:
        """int64 [H]: when each row is due, in nanoseconds."""
        return self.stamp + (1 + np.arange(len(self.rows), dtype=np.int64)) * self.step


@dataclass(frozen=True)
class ActionLimits:
    """What a chunk may ask of each dimension; an empty field sets no limit.

    ``max_step`` bounds the change from row to row, in the dimension's unit, and from what was followed before, or the
    robot's own position, to the first row that it will follow.
    """

    lower: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()
    max_step: tuple[float, ...] = ()

    def check_width(self, width: int) -> None:
        """:raises ChunkError: a limit has neither no entry nor one for each of ``width`` dimensions."""
        for name in ("lower", "upper", "max_step"):
            entries = len(getattr(self, name))
            if entries not in (0, width):
                raise ChunkError(
                    f"the limit {name} has {entries} entries for {width} action dimensions; give one each or none.",
                    RefusalCode.BAD_PARAMETER,
                )


def check_finite(rows: np.ndarray, names: Sequence[str]) -> None:
    """:raises ChunkError: NaN or infinity anywhere; the sentence says in which row and dimension."""
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        row, column = (int(place) for place in bad[0])
        raise ChunkError(
            f"the chunk holds {rows[row, column]} for {names[column]} in row {row} ({len(bad)} of {rows.size} numbers "
            "are not finite); it is dropped: check the observation and the engine."
        )


def check_limits(
    rows: np.ndarray,
    names: Sequence[str],
    limits: ActionLimits,
    start: np.ndarray | None = None,
    what: str = "the chunk",
) -> None:
    """Refuse rows that leave the limits; ``start`` [A] is what comes before the first row, or None where nothing does.

    :raises ChunkError: the sentence names the dimension, the row of ``what``, what was asked and what is allowed.
    """
    limits.check_width(rows.shape[1])
    for bound, beyond, word in (
        (limits.lower, np.less, "below its lower limit"),
        (limits.upper, np.greater, "above its upper limit"),
    ):
        if bound:
            _refuse(beyond(rows, np.asarray(bound)), rows, names, np.asarray(bound), word, what)
    if limits.max_step:
        before = rows[:1] if start is None else np.asarray(start, dtype=np.float64)[None]
        steps = np.abs(np.diff(rows, axis=0, prepend=before))
        largest = np.asarray(limits.max_step)
        _refuse(steps > largest, steps, names, largest, "a step larger than its limit", what)


def _refuse(bad: np.ndarray, found: np.ndarray, names: Sequence[str], bound: np.ndarray, word: str, what: str) -> None:
    places = np.argwhere(bad)
    if len(places):
        row, column = (int(place) for place in places[0])
        raise ChunkError(
            f"row {row} of {what} takes {names[column]} to {found[row, column]:.6g}, {word} of {bound[column]:.6g}; "
            "it is dropped: check the policy's statistics or widen the limit.",
            RefusalCode.BAD_OBSERVATION,
        )
