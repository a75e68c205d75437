"""Times of pieces of work on a GPU, by events between them: nothing waits before the times are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .device import Device


class CUDAStopwatch:
    """Keeps its events from one use to the next."""

    def __init__(self, device: Device, forget: Callable[[CUDAStopwatch], None]) -> None:
        self._device, self._forget = device, forget
        self._events: list[Any] = []
        self._names: list[str] = []

    def start(self) -> None:
        """Forget earlier laps; the first one begins here."""
        self._names.clear()
        self._mark(0)

    def lap(self, name: str) -> None:
        """What was enqueued since the last lap is ``name``."""
        self._names.append(name)
        self._mark(len(self._names))

    def seconds(self) -> dict[str, float]:
        """Of every lap; waits for the last.

        :raises BackendError: work on the stream failed.
        """
        call = self._device.driver.call
        self._device.enter()
        call("cuEventSynchronize", self._events[len(self._names)])
        return {
            name: float(call("cuEventElapsedTime", self._events[index], self._events[index + 1])) / 1e3
            for index, name in enumerate(self._names)
        }

    def _mark(self, index: int) -> None:
        self._device.enter()
        if index == len(self._events):
            self._events.append(self._device.driver.call("cuEventCreate", 0))
        self._device.driver.call("cuEventRecord", self._events[index], self._device.stream)

    def close(self) -> None:
        """Let go of the events; a second call does nothing."""
        self._forget(self)
        events, self._events = self._events, []
        if not self._device.driver.lost:
            for event in events:
                self._device.driver.call("cuEventDestroy", event)
