"""From noise to actions: the steps along a policy's flow, recorded whole where a device can."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..backends.base import Backend, Tensor
from ..backends.stream_work import Stopwatch
from ..errors import RefusalCode, RequestError
from .action_engine import ActionEngine
from .policy_manifest import PolicyManifest
from .solver import FlowSchedule, RealTimeChunking
from .time_embedding import sinusoids

MOST_SCHEDULES = 8  # numbers of steps whose moments stay on the device


class PlacedSchedule(NamedTuple):
    """The moments of a flow, and each as the action engine takes it."""

    flow: FlowSchedule
    times: list[Tensor]


class Denoiser:
    """Belongs to the thread that drives the backend; ``stopwatch`` gets the lap ``denoise``."""

    def __init__(self, engines: ActionEngine, manifest: PolicyManifest, backend: Backend, stopwatch: Stopwatch) -> None:
        self._engines, self._manifest, self._backend, self._stopwatch = engines, manifest, backend, stopwatch
        self._schedules: dict[int, PlacedSchedule] = {}  # by number of steps

    def schedule(self, steps: int) -> PlacedSchedule:
        """Of that many steps; 0 takes the policy's own number. :raises RequestError: the engine takes not as many."""
        manifest = self._manifest
        count = steps or manifest.denoise_steps
        if not 1 <= count <= manifest.max_denoise_steps:
            raise RequestError(
                f"denoise_steps is {steps}; want 1 to {manifest.max_denoise_steps}, or 0 for the policy's own "
                f"{manifest.denoise_steps}.",
                RefusalCode.BAD_PARAMETER,
            )
        if count not in self._schedules:
            flow = FlowSchedule(manifest.direction, count, manifest.time_buckets)
            moments = flow.network_times() if manifest.time_buckets else flow.times()
            times = [self._engines.time_tensor(row) for row in sinusoids(moments, manifest.time_waves)]
            if len(self._schedules) >= MOST_SCHEDULES:
                self._schedules.pop(next(iter(self._schedules)))
            self._schedules[count] = PlacedSchedule(flow, times)
        return self._schedules[count]

    def denoise(
        self,
        noise: np.ndarray,
        schedule: PlacedSchedule,
        chunking: RealTimeChunking | None,
        committed: np.ndarray | None,
        cancelled: Callable[[], bool],
    ) -> np.ndarray | None:
        """The network's own numbers, float32 [H,A], from float32 [H,padded]; None when cancelled.

        ``committed`` are rows [n,padded] that ``chunking`` pulls the chunk to.

        :raises BackendError: the engine failed.
        """
        engines, backend, (flow, times) = self._engines, self._backend, schedule
        recordings = engines.recordings
        engines.start_actions(noise)
        pull = (chunking, committed) if chunking is not None and committed is not None and len(committed) else None
        loop = engines.key("denoise", len(times))
        if cancelled():
            return None
        replayed = pull is None and recordings.replay(loop)
        for moment, tensor in () if replayed else zip(flow.times(), times, strict=True):
            if cancelled():
                return None
            backend.copy(tensor, engines.time)
            if pull is None:
                engines.run_step()
            else:  # it is worked out on the host, so steps are recorded one by one
                recordings.run(engines.key("step"), engines.run_step)
                self._guide(float(moment), flow, *pull)
            backend.euler_step(engines.state, engines.velocity, flow.step)
        self._stopwatch.lap("denoise")
        if pull is None and not replayed:
            recordings.ran(loop, lambda: self._whole_loop(times, flow.step))
        return np.array(engines.state.numpy()[0, : self._manifest.horizon, : self._manifest.action.width])

    def _whole_loop(self, times: list[Tensor], step: float) -> None:
        """All steps, for a recording, which keeps ``times`` for as long as it lives."""
        for tensor in times:
            self._backend.copy(tensor, self._engines.time)
            self._engines.run_step()
            self._backend.euler_step(self._engines.state, self._engines.velocity, step)

    def _guide(self, moment: float, flow: FlowSchedule, chunking: RealTimeChunking, committed: np.ndarray) -> None:
        velocity, state = self._engines.velocity.numpy()[0], self._engines.state.numpy()[0]
        pulled = chunking.guide(velocity, state, moment, committed, flow.direction)
        self._engines.velocity.write(pulled[None].astype(np.float32))
