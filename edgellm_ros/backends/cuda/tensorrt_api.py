"""TensorRT's Python API where its versions differ: 8.5, and 10.3 to 11."""

from __future__ import annotations

import re
from typing import Any

from ...errors import BackendError
from ..base import DataType, TensorSpec
from .packages import load_tensorrt

OLDEST = (8, 5)
_OLDEST_MODERN = (10, 3)
_TYPES = {
    "FLOAT": DataType.FLOAT32,
    "HALF": DataType.FLOAT16,
    "BF16": DataType.BFLOAT16,
    "INT64": DataType.INT64,
    "INT32": DataType.INT32,
    "INT8": DataType.INT8,
    "UINT8": DataType.UINT8,
    "BOOL": DataType.BOOL,
}


class TensorRT:
    """The module, its version, and a logger that remembers the first error for the sentence of a refusal.

    :raises MissingPackageError: not installed.
    :raises BackendError: a version that this package does not know how to use.
    """

    def __init__(self, module: Any | None = None) -> None:
        self.module = load_tensorrt() if module is None else module
        self.version = str(self.module.__version__)
        self.number = tuple(int(part) for part in re.findall(r"\d+", self.version)[:2])
        if self.number < OLDEST or (9, 0) <= self.number < _OLDEST_MODERN:
            raise BackendError(
                f"TensorRT {self.version} is installed; want 10.3 or newer (or 8.5 for the legacy lowering)."
            )
        self.logger = _make_logger(self.module)
        self._runtime: Any = None  # must outlive its engines

    @property
    def modern(self) -> bool:
        """Version 10 or newer."""
        return self.number >= (10, 0)

    def forget_errors(self) -> None:
        """Before a call whose failure is to be explained."""
        self.logger.errors.clear()

    def first_error(self) -> str:
        """What the library logged first since then (what follows it is mostly that it gives up), to end a sentence."""
        return str(self.logger.errors[0]).rstrip(". ") if self.logger.errors else "no message"

    def deserialize(self, plan: Any) -> Any:
        """An engine from the bytes of a plan.

        :raises BackendError: the library refuses them.
        """
        self.forget_errors()
        self._runtime = self._runtime or self.module.Runtime(self.logger)
        engine = self._runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise BackendError(f"TensorRT {self.version} does not load the plan: {self.first_error()}.")
        return engine

    def specs(self, engine: Any) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """Inputs and outputs."""
        inputs: list[TensorSpec] = []
        outputs: list[TensorSpec] = []
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            label = engine.get_tensor_dtype(name).name
            if label not in _TYPES:
                raise BackendError(f"the plan's tensor {name!r} is {label}; want one of {', '.join(_TYPES)}.")
            spec = TensorSpec(name, _TYPES[label], tuple(int(size) for size in engine.get_tensor_shape(name)))
            is_input = engine.get_tensor_mode(name) == self.module.TensorIOMode.INPUT
            (inputs if is_input else outputs).append(spec)
        return inputs, outputs

    def profile_shapes(self, engine: Any, profile: int, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Smallest and largest shape of an input in an optimisation profile."""
        if hasattr(engine, "get_tensor_profile_shape"):
            smallest, _, largest = engine.get_tensor_profile_shape(name, profile)
        else:
            smallest, _, largest = engine.get_profile_shape(profile, name)
        return tuple(int(size) for size in smallest), tuple(int(size) for size in largest)

    def context_memory(self, engine: Any) -> int:
        """Bytes of scratch memory that any context of the engine needs."""
        return int(
            engine.device_memory_size_v2 if hasattr(engine, "device_memory_size_v2") else engine.device_memory_size
        )

    def make_context(self, engine: Any, profile: int, memory: tuple[int, int], stream: int) -> Any:
        """A context of one profile over (address, size) of scratch memory of ours.

        :raises BackendError: the library refuses.
        """
        if self.modern:
            strategy = self.module.ExecutionContextAllocationStrategy.USER_MANAGED
            context = engine.create_execution_context(strategy)
        else:
            context = engine.create_execution_context_without_device_memory()
        if context is None:
            raise BackendError(f"TensorRT {self.version} makes no execution context: {self.first_error()}.")
        if hasattr(context, "set_device_memory"):
            context.set_device_memory(*memory)
        else:
            context.device_memory = memory[0]
        if not context.set_optimization_profile_async(profile, stream):
            raise BackendError(f"TensorRT {self.version} refuses profile {profile}: {self.first_error()}.")
        return context


def _make_logger(module: Any) -> Any:
    class Logger(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (module.ILogger.Severity.ERROR, module.ILogger.Severity.INTERNAL_ERROR):
                self.errors.append(" ".join(message.split())[:300])

    return Logger()
