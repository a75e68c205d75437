"""A step recorded once as a CUDA graph and replayed by one call.

The first run of a step is an ordinary one: libraries load their kernels and take their memory then, which they may
not do while a graph is recorded. The second run records. Where that fails the step runs as it is from then on, and
the reason is kept; nothing ever depends on the recording.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any

from ...errors import BackendError, EdgeLLMError
from .device import Device

_log = logging.getLogger(__name__)


class Recorder:
    """What is true while a step is recorded, and what must be redone by hand after each replay."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._after: list[Callable[[], None]] | None = None

    def after_replay(self, action: Callable[[], None]) -> None:
        """Have ``action`` done after every replay of the step being recorded; nothing where none is."""
        if self._after is not None:
            self._after.append(action)

    def discard(self, graph: Any) -> None:
        """Let go of a graph that ``record`` gave."""
        if graph is not None and not self._device.driver.lost:
            self._device.driver.call("cuGraphExecDestroy", graph)

    def record(self, step: Callable[[], None]) -> tuple[Any, tuple[Callable[[], None], ...]]:
        """An executable graph of the work that ``step`` enqueues, none of which runs, and the actions after it.

        :raises BackendError: some of it cannot be recorded.
        """
        device, call = self._device, self._device.driver.call
        device.enter()
        # Relaxed: libraries may query events and take memory meanwhile.
        mode = device.driver.module.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        call("cuStreamBeginCapture", device.stream, mode)
        device.recording, self._after = True, []
        failure: BaseException | None = None
        try:
            step()
        except BaseException as error:
            failure = error
        actions, self._after = tuple(self._after), None
        graph: Any = None
        try:
            graph = call("cuStreamEndCapture", device.stream)
        except BackendError as error:
            failure = failure or error
        device.end_recording()
        if failure is not None:
            if graph is not None and int(graph):
                call("cuGraphDestroy", graph)
            if isinstance(failure, Exception):
                raise BackendError(f"the step cannot be recorded: {failure}") from failure
            raise failure
        try:
            return call("cuGraphInstantiate", graph, 0), actions
        finally:
            call("cuGraphDestroy", graph)


class CUDAStep:
    """A ``Captured`` step; ``recorded`` says whether it is a graph by now."""

    def __init__(self, device: Device, recorder: Recorder, key: Hashable, step: Callable[[], None]) -> None:
        self._device = device
        self._recorder = recorder
        self._key = key
        self._step = step
        self._warm = False
        self._graph: Any = None
        self._actions: tuple[Callable[[], None], ...] = ()
        self.failure = ""  # why it could not be recorded

    @property
    def recorded(self) -> bool:
        """Whether the next run is a replay."""
        return self._graph is not None

    def run(self) -> None:
        """Enqueue the step.

        :raises BackendError: the engine failed.
        """
        if self._graph is None:
            if not self._warm or self.failure:
                self._step()
                self._warm = True
                return
            if not self.record():
                self._step()
                return
        self._device.enter()
        self._device.driver.call("cuGraphLaunch", self._graph, self._device.stream)
        for action in self._actions:
            action()

    def record(self) -> bool:
        """Record now, running nothing; False where it cannot be, which is reported once."""
        if self._graph is None and not self.failure:
            try:
                self._graph, self._actions = self._recorder.record(self._step)
            except EdgeLLMError as error:
                self.failure = str(error)
                _log.warning("step %s runs without a CUDA graph: %s", self._key, error)
        return self._graph is not None

    def close(self) -> None:
        """Let go of the graph."""
        graph, self._graph = self._graph, None
        self._recorder.discard(graph)
