"""How smoothly an arm was commanded: the third difference of its joint commands, where plans meet and elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .expert import TICK
from .geometry import Array

_ARM = 3  # joints that turn; the gripper is meant to snap


class CommandTrace:
    """Commands [4] of each tick in their order, and the ticks at which a new plan took over."""

    def __init__(self) -> None:
        self._commands: list[Array] = []
        self._seams: set[int] = set()

    def add(self, command: Array) -> None:
        """The command of the next tick."""
        self._commands.append(np.asarray(command))

    def seam(self) -> None:
        """The next tick is the first of a new plan; before the first tick it is no seam."""
        if self._commands:
            self._seams.add(len(self._commands))

    def jerks(self) -> tuple[Array, Array]:
        """Size of the jerk in rad/s^3 at seams and elsewhere, float64 [m] and [n].

        The third difference spans four ticks; it is at a seam when a plan took over within them.
        """
        if len(self._commands) < 4:
            return np.empty(0), np.empty(0)
        sizes = np.abs(np.diff(np.stack(self._commands)[:, :_ARM], n=3, axis=0)).mean(axis=1) / TICK**3
        at_seam = np.array([not self._seams.isdisjoint(range(i + 1, i + 4)) for i in range(len(sizes))])
        return sizes[at_seam], sizes[~at_seam]


def mean_jerks(traces: Iterable[CommandTrace]) -> dict[str, float]:
    """Mean jerk in rad/s^3 of ``seams`` and ``elsewhere``; what does not occur is left out."""
    parts = [trace.jerks() for trace in traces]
    result = {}
    for place, name in enumerate(("seams", "elsewhere")):
        sizes = np.concatenate([np.empty(0), *(part[place] for part in parts)])
        if sizes.size:
            result[name] = round(float(sizes.mean()), 2)
    return result
