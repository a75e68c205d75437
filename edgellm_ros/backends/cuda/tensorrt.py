"""TensorRT engines behind the seam: one context for each optimisation profile, all over one piece of scratch memory.

Shapes and addresses of a kind of call are set when it differs from the last one of its context; a decode step that
repeats costs one enqueue.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from ...engine_format import PLAN_FILE
from ...errors import BackendError
from .device import Device
from .engine_frame import Call, EngineFrame
from .graphs import Recorder
from .kernels import Kernels
from .plan_file import PlanInfo, check_plan, plan_of
from .tensor import CUDAMemory
from .tensorrt_api import TensorRT


class TensorRTEngine(EngineFrame):
    """A plan.

    :raises MissingPackageError: TensorRT is not installed.
    :raises BackendError: the plan is missing, damaged, of another version or GPU, or there is not enough memory.
    """

    def __init__(
        self, device: Device, kernels: Kernels, recorder: Recorder, path: Path, *, module: Any | None = None
    ) -> None:
        path = path / PLAN_FILE if path.is_dir() else plan_of(path)
        self.api = TensorRT(module)
        self.info: PlanInfo = check_plan(path, self.api.version, device.architecture, device.name)
        device.enter()
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
            self._engine: Any = self.api.deserialize(plan)
        inputs, outputs = self.api.specs(self._engine)
        self._memory = CUDAMemory(device, self.api.context_memory(self._engine), zero=False)
        scratch = (self._memory.address, self._memory.size)
        self._contexts = [
            self.api.make_context(self._engine, profile, scratch, device.stream_address)
            for profile in range(self._engine.num_optimization_profiles)
        ]
        self._current: list[Call | None] = [None] * len(self._contexts)
        self._limits = [
            {spec.name: self.api.profile_shapes(self._engine, profile, spec.name) for spec in inputs}
            for profile in range(len(self._contexts))
        ]
        super().__init__(device, kernels, recorder, path, inputs, outputs)

    @property
    def version(self) -> str:
        """Of TensorRT."""
        return self.api.version

    def largest(self, name: str) -> tuple[int, ...]:
        """Largest shape of an input over all profiles; empty where it has none of the name."""
        return max((limits[name][1] for limits in self._limits if name in limits), default=())

    def _prepare(self, call: Call) -> int:
        """The narrowest profile that takes the shapes of a call: the last one that does, decode standing last."""
        for profile in reversed(range(len(self._limits))):
            if all(_within(placed.shape, self._limits[profile][placed.name]) for placed in call.inputs):
                return profile
        found = {placed.name: placed.shape for placed in call.inputs}
        for name, shape in found.items():
            ranges = [limits[name] for limits in self._limits]
            if not any(_within(shape, limits) for limits in ranges):
                raise BackendError(
                    f"{name!r} was run with shape {shape}; the plan takes {ranges[0][0]} to {self.largest(name)}: "
                    "build it for larger limits."
                )
        raise BackendError(f"no profile of {self._path} takes the shapes {found}; build it for larger limits.")

    def _execute(self, call: Call) -> None:
        profile: int = call.prepared
        context = self._contexts[profile]
        self._device.enter()
        self.api.forget_errors()
        if self._current[profile] is not call:
            self._current[profile] = None
            for placed in call.inputs:
                if not context.set_input_shape(placed.name, placed.shape):
                    raise BackendError(f"TensorRT refuses {placed.name!r} {placed.shape}: {self.api.first_error()}.")
            for placed in (*call.inputs, *call.outputs):
                if not context.set_tensor_address(placed.name, placed.address):
                    raise BackendError(f"TensorRT refuses the address of {placed.name!r}: {self.api.first_error()}.")
            self._current[profile] = call
        if not context.execute_async_v3(self._device.stream_address):
            self._current[profile] = None
            raise BackendError(f"TensorRT failed while running {self._path}: {self.api.first_error()}.")

    def _release(self, call: Call) -> None:
        for profile, current in enumerate(self._current):
            if current is call:
                self._current[profile] = None

    def close(self) -> None:
        """Let go of everything; a second call does nothing."""
        super().close()
        self._contexts.clear()
        self._current.clear()
        self._engine = None


def _within(shape: tuple[int, ...], limits: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
    return all(low <= size <= high for low, size, high in zip(limits[0], shape, limits[1], strict=True))
