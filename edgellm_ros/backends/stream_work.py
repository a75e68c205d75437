"""Work on a device's stream, as its caller holds it: a copy to the host, a recorded step, the time of a piece."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Readback(Protocol):
    """A copy to the host that is under way."""

    def ready(self) -> bool:
        """Whether ``wait`` would return at once."""
        ...

    def wait(self) -> np.ndarray:
        """The host values; they belong to the caller.

        :raises BackendError: when the work that produces them failed.
        """
        ...


class Captured(Protocol):
    """A step that is, or will be, recorded."""

    @property
    def recorded(self) -> bool:
        """Whether the next run is a replay; never on the CPU, where there is nothing to record."""
        ...

    @property
    def failure(self) -> str:
        """Why it could not be recorded; empty where it could, or was not tried."""
        ...

    def run(self) -> None:
        """Enqueue it, replayed where it is recorded."""
        ...

    def record(self) -> bool:
        """Record it now that it has run once; False where it cannot be recorded and keeps running as it is."""
        ...

    def close(self) -> None:
        """Let go of what was recorded, and of the step; it is not run again."""
        ...


class Stopwatch(Protocol):
    """Times of pieces of work on the device's own clock, without waiting between them; used again and again."""

    def start(self) -> None:
        """Forget earlier laps; the first one begins here."""
        ...

    def lap(self, name: str) -> None:
        """What was enqueued since the last lap is ``name``."""
        ...

    def seconds(self) -> dict[str, float]:
        """Of every lap; waits for the last."""
        ...

    def close(self) -> None:
        """Let go of what it holds on the device."""
        ...
