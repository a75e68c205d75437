"""What a policy does in every chunk, recorded where a device can: kept by its shapes, and never needed.

A step is recorded behind its second run under the same key. Shapes that come once cost nothing then, and those that
take turns, as the lengths of prompts that hold numbers do, are all recorded before long.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeAlias

from ..backends.base import Backend
from ..backends.stream_work import Captured

MOST_RECORDINGS = 16  # of each kind of step

Key: TypeAlias = tuple[str, Hashable]  # the kind of step, and all of its shapes


class Recordings:
    """Belongs to the thread that drives the backend.

    ``failures`` says by kind why steps could not be recorded; such a kind is not tried again.
    """

    def __init__(self, backend: Backend, most: int = MOST_RECORDINGS) -> None:
        self._backend, self._most = backend, most
        self._kept: dict[str, OrderedDict[Hashable, Captured | None]] = {}  # None: it has run once
        self._given_up: set[str] = set()
        self.failures: dict[str, str] = {}

    @property
    def counts(self) -> dict[str, int]:
        """Recordings that are kept, by kind."""
        found = {kind: sum(step is not None for step in steps.values()) for kind, steps in self._kept.items()}
        return {kind: count for kind, count in found.items() if count}

    def report(self) -> dict[str, object]:
        """By kind of step, how many are recorded or why none is; empty where a backend records nothing."""
        reasons = {f"recorded.{kind}": f"no: {reason}" for kind, reason in self.failures.items()}
        return {**reasons, **{f"recorded.{kind}": count for kind, count in self.counts.items()}}

    def nodes(self) -> dict[str, int]:
        """Kernels and copies in the largest recording of each kind."""
        found = {kind: [getattr(step, "nodes", 0) for step in steps.values()] for kind, steps in self._kept.items()}
        return {kind: max(counts) for kind, counts in found.items() if any(counts)}

    def replay(self, key: Key) -> bool:
        """Enqueue what was recorded under ``key``; False where nothing was, and nothing is done.

        :raises BackendError: the device failed.
        """
        kind, shapes = key
        steps = self._kept.get(kind, OrderedDict())
        captured = steps.get(shapes)
        if captured is None:
            return False
        steps.move_to_end(shapes)
        captured.run()
        return True

    def ran(self, key: Key, step: Callable[[], None]) -> None:
        """Say that ``step`` has run under ``key``, which may record it now: it must only touch what exists already."""
        kind, shapes = key
        if kind in self._given_up:
            return
        steps = self._kept.setdefault(kind, OrderedDict())
        seen = shapes in steps
        steps[shapes] = None
        steps.move_to_end(shapes)
        if len(steps) > self._most:
            _close(steps.popitem(last=False)[1])
        if not seen:
            return
        captured = self._backend.capture(key, step)
        captured.record()
        if captured.recorded:
            steps[shapes] = captured
            return
        self._given_up.add(kind)
        if captured.failure:
            self.failures[kind] = captured.failure
        captured.close()

    def run(self, key: Key, step: Callable[[], None]) -> None:
        """Replay, or run ``step`` itself.

        :raises BackendError: the engine failed.
        """
        if not self.replay(key):
            step()
            self.ran(key, step)

    def clear(self) -> None:
        """Let go of all: tensors that steps touch are about to move."""
        for steps in self._kept.values():
            for captured in steps.values():
                _close(captured)
        self._kept.clear()


def _close(captured: Captured | None) -> None:
    if captured is not None:
        captured.close()
