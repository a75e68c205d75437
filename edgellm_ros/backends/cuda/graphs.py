"""A step recorded once as a CUDA graph and replayed by one call.

The first run of a step is an ordinary one: libraries load their kernels and take their memory then, which they may
not do while a graph is recorded. The second run records. Where that fails the step runs as it is from then on, and
the reason is kept; nothing ever depends on the recording.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from ...errors import BackendError, EdgeLLMError
from .device import Device

_log = logging.getLogger(__name__)


class Pinned(Protocol):
    """Something whose memory recordings refer to; ``pins`` of them."""

    pins: int


@dataclass(frozen=True)
class Recording:
    """An executable graph, what is done by hand after each replay, and what it refers to."""

    graph: Any
    actions: tuple[Callable[[], None], ...]
    pinned: tuple[Pinned, ...]
    nodes: int  # kernels and copies of one replay


class Recorder:
    """What is true while a step is recorded, and what must be redone by hand after each replay.

    ``host_calls``: whether a step may call functions of the host, which every replay repeats.
    """

    def __init__(self, device: Device, *, host_calls: bool = False) -> None:
        self._device, self._host_calls = device, host_calls
        self._after: list[Callable[[], None]] | None = None
        self._pinned: list[Pinned] = []

    def after_replay(self, action: Callable[[], None]) -> None:
        """Have ``action`` done after every replay of the step being recorded; nothing where none is."""
        if self._after is not None:
            self._after.append(action)

    def pin(self, held: Pinned) -> None:
        """Keep ``held`` for as long as the recording that is being made; nothing where none is."""
        if self._after is not None:
            held.pins += 1
            self._pinned.append(held)

    def discard(self, recording: Recording | None) -> None:
        """Let go of what ``record`` gave."""
        if recording is None:
            return
        _unpin(recording.pinned)
        if not self._device.driver.lost:
            self._device.driver.call("cuGraphExecDestroy", recording.graph)

    def record(self, step: Callable[[], None]) -> Recording:
        """The work that ``step`` enqueues, none of which runs.

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
        pinned, self._pinned = tuple(self._pinned), []
        graph: Any = None
        try:
            graph = call("cuStreamEndCapture", device.stream)
        except BackendError as error:
            failure = failure or error
        device.end_recording()
        if failure is not None:
            _unpin(pinned)
            if graph is not None and int(graph):
                call("cuGraphDestroy", graph)
            if isinstance(failure, Exception):
                raise BackendError(f"the step cannot be recorded: {failure}") from failure
            raise failure
        try:
            nodes = self._count_nodes(graph)
            return Recording(call("cuGraphInstantiate", graph, 0), actions, pinned, nodes)
        except BaseException:
            _unpin(pinned)
            raise
        finally:
            call("cuGraphDestroy", graph)

    def _count_nodes(self, graph: Any) -> int:
        """The number of nodes of a graph.

        :raises BackendError: it calls functions of the host: ONNX Runtime up to some version frees the memory of its
            small copies by them, and a replay would free it again.
        """
        call, kinds = self._device.driver.call, self._device.driver.module.CUgraphNodeType
        _, count = call("cuGraphGetNodes", graph, 0)
        nodes, _ = call("cuGraphGetNodes", graph, count) if count and not self._host_calls else ((), 0)
        if any(call("cuGraphNodeGetType", node) == kinds.CU_GRAPH_NODE_TYPE_HOST for node in nodes):
            raise BackendError(
                "the step cannot be recorded: it calls functions of the host, which this version of the engine's "
                "library frees memory by; update the library."
            )
        return int(count)


def _unpin(pinned: tuple[Pinned, ...]) -> None:
    for held in pinned:
        held.pins -= 1


class CUDAStep:
    """A ``Captured`` step; ``recorded`` says whether it is a graph by now."""

    def __init__(
        self,
        device: Device,
        recorder: Recorder,
        key: Hashable,
        step: Callable[[], None],
        forget: Callable[[CUDAStep], None],
    ) -> None:
        self._device = device
        self._recorder = recorder
        self._key = key
        self._step = step
        self._forget = forget
        self._warm = False
        self._recording: Recording | None = None
        self.failure = ""  # why it could not be recorded

    @property
    def recorded(self) -> bool:
        """Whether the next run is a replay."""
        return self._recording is not None

    @property
    def nodes(self) -> int:
        """Kernels and copies of a replay; 0 where there is none."""
        return 0 if self._recording is None else self._recording.nodes

    def run(self) -> None:
        """Enqueue the step.

        :raises BackendError: the engine failed.
        """
        if self._recording is None and self._warm:
            self.record()
        if self._recording is None:
            self._step()
            self._warm = True
            return
        self._device.enter()
        self._device.driver.call("cuGraphLaunch", self._recording.graph, self._device.stream)
        for action in self._recording.actions:
            action()

    def record(self) -> bool:
        """Record now, running nothing; False where it cannot be, which is reported once."""
        if self._recording is None and not self.failure:
            try:
                self._recording = self._recorder.record(self._step)
            except EdgeLLMError as error:
                self.failure = str(error)
                _log.warning("step %s runs without a CUDA graph: %s", self._key, error)
        return self._recording is not None

    def close(self) -> None:
        """Let go of the graph; a second call does nothing."""
        self._forget(self)
        recording, self._recording = self._recording, None
        self._recorder.discard(recording)
