"""An engine without caches that runs on the library that is faster at it here, where both agree.

The first run decides: both libraries run its shapes, on its inputs with some noise added (so that a black picture, too,
tells whether they agree). OpenVINO is taken where every output lies within ``ALLOWED_ERROR`` of ONNX Runtime's and it
is ``LEAST_GAIN`` times as fast; the other is let go of. What OpenVINO cannot load, or fails to run later, ONNX Runtime
runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import BackendError
from .base import EngineCapabilities, KVCache, Tensor, TensorSpec
from .cpu_engine import CPUEngine
from .engine_tensors import NamedTensors
from .host_tensor import HostTensor, aligned_zeros, host_tensor
from .openvino_graph import OpenVINOGraph, version
from .values import DataType

_log = logging.getLogger(__name__)

ALLOWED_ERROR = 0.04  # of an output, as a share of its size (root of the squares): a cosine of 0.9992 or more
LEAST_GAIN = 1.2  # times as fast; for less, the choice would differ from start to start, and with it the last digits
LIBRARY = "library"  # detail of the capabilities
_TIMED_RUNS = 2
_LONG_RUN = 0.5  # seconds; a run that long is timed once

Shapes = Mapping[str, tuple[int, ...]]


class ChosenEngine:
    """``engine`` is the graph in ONNX Runtime; ``path`` its file. Belongs to the thread of its backend."""

    def __init__(self, path: Path, engine: CPUEngine, threads: int) -> None:
        self._path, self._threads = path, threads
        self._plain: CPUEngine | None = engine
        self._other: OpenVINOGraph | None = None
        self._decided = self._closed = False
        self._bound: dict[str, HostTensor] = {}
        self._tensors = NamedTensors(path, engine.inputs, engine.outputs)
        self._capabilities = engine.capabilities
        self._say("to be found in the first run")

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        """Inputs by name."""
        return self._tensors.inputs

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """Outputs by name."""
        return self._tensors.outputs

    @property
    def path(self) -> Path:
        """The file of the graph."""
        return self._path

    @property
    def library(self) -> str:
        """Which library runs it, and why."""
        return self._capabilities.details[LIBRARY]

    @property
    def capabilities(self) -> EngineCapabilities:
        """As ONNX Runtime's engine, with the library that runs it among the details."""
        return self._capabilities

    def bind(self, name: str, tensor: Tensor) -> None:
        """:raises ValueError: unknown name or another element type."""
        self._tensors.find(name, tensor.dtype)
        self._bound[name] = host_tensor(tensor)
        for engine in (self._plain, self._other):
            if engine is not None:
                engine.bind(name, self._bound[name])

    def bind_cache(self, cache: KVCache) -> None:
        """:raises BackendError: always, since such a graph has none."""
        raise BackendError(f"{self._path} has no cache to bind; only language models have.")

    def length_bucket(self, positions: int) -> int:
        """0: there are no caches."""
        return 0

    def run(self, shapes: Shapes, first_row: int = 0, cache_length: int = 0) -> None:
        """Run once; the first run also decides which library does.

        :raises BackendError: a tensor is not bound or too small, or ONNX Runtime refused or failed.
        """
        if self._closed:
            raise BackendError(f"the engine {self._path} is closed; open a new one.")
        if not self._decided:
            self._choose(shapes)
        if self._other is not None:
            try:
                self._other.run(shapes)
                return
            except BackendError as error:
                self._return_to_plain(str(error))
        if self._plain is not None:
            self._plain.run(shapes)

    def _choose(self, shapes: Shapes) -> None:
        plain = self._plain
        assert plain is not None
        probe = _Probe(shapes, self._bound, self._tensors)
        # ONNX Runtime packed its weights when it loaded, OpenVINO does so in its first run. Bad calls are raised here.
        plain_seconds, wanted = probe.run(plain.bind, plain.run, packs_first=False)
        try:
            other = OpenVINOGraph(self._path, self._threads, self._tensors)
            seconds, found = probe.run(other.bind, other.run, packs_first=True)
            error = max(map(_relative_error, found, wanted))
        except BackendError as refused:
            self._decide(f"ONNX Runtime ({refused})", plain)
            return
        measured = (
            f"OpenVINO {version()} in {other.precision}: {plain_seconds / seconds:.1f} times as fast, error {error:.2g}"
        )
        objection = objection_to(error, plain_seconds, seconds)
        if objection:
            other.close()
            self._decide(f"ONNX Runtime ({measured}; {objection})", plain)
            return
        self._decide(measured, other)
        self._other, self._plain = other, None
        plain.close()

    def _decide(self, library: str, engine: CPUEngine | OpenVINOGraph) -> None:
        self._decided = True
        self._say(library)
        self._rebind(engine)

    def _return_to_plain(self, reason: str) -> None:
        """Load the graph in ONNX Runtime again after OpenVINO failed in a run."""
        _log.warning("%s goes on in ONNX Runtime: %s", self._path, reason)
        if self._other is not None:
            self._other.close()
        self._other = None
        self._plain = CPUEngine(self._path, self._threads)
        self._rebind(self._plain)
        self._say(f"ONNX Runtime ({reason})")

    def _rebind(self, engine: CPUEngine | OpenVINOGraph) -> None:
        for name, tensor in self._bound.items():
            engine.bind(name, tensor)

    def _say(self, library: str) -> None:
        details = {**self._capabilities.details, LIBRARY: library}
        self._capabilities = replace(self._capabilities, details=details)
        if self._decided:
            _log.info("%s: %s", self._path, library)

    def close(self) -> None:
        """Let go of everything; a second call does nothing."""
        self._closed = True
        for engine in (self._plain, self._other):
            if engine is not None:
                engine.close()
        self._plain = self._other = None
        self._bound.clear()


def objection_to(error: float, plain_seconds: float, seconds: float) -> str:
    """What speaks against OpenVINO, given its relative error and the seconds of a run in both; empty: nothing."""
    if not error <= ALLOWED_ERROR:
        return f"an error of {ALLOWED_ERROR:g} is allowed"
    return "" if seconds * LEAST_GAIN <= plain_seconds else f"it must be {LEAST_GAIN:g} times as fast"


class _Probe:
    """Copies of a call's tensors, for runs that nobody else sees."""

    def __init__(self, shapes: Shapes, bound: Mapping[str, HostTensor], tensors: NamedTensors) -> None:
        random = np.random.default_rng(0)
        self._shapes, self._outputs = shapes, [name for name in shapes if name in tensors.outputs]
        self._copies: dict[str, HostTensor] = {}
        for name, shape in shapes.items():
            spec, _ = tensors.place(name, tuple(shape), bound)
            array = aligned_zeros(tuple(shape), spec.dtype.numpy)
            if name in tensors.inputs:
                array[...] = bound[name].prefix(tuple(shape)).array
                if spec.dtype is DataType.FLOAT32:
                    array += random.standard_normal(array.shape, dtype=np.float32)
                elif spec.dtype is DataType.UINT8:  # levels of pixels, modulo 256
                    array += random.integers(0, 256, array.shape, dtype=np.uint8)
            self._copies[name] = HostTensor(array, spec.dtype)

    def run(
        self, bind: Callable[[str, HostTensor], None], run: Callable[[Shapes], None], *, packs_first: bool
    ) -> tuple[float, list[np.ndarray]]:
        """Seconds of the fastest run, and copies of the outputs.

        The first run does not count, unless it is a long one that does nothing but the others' work.

        :raises BackendError: it does not run.
        """
        for name, tensor in self._copies.items():
            bind(name, tensor)
        seconds: list[float] = []
        for number in range(1 + _TIMED_RUNS):
            start = time.perf_counter()
            run(self._shapes)
            took = time.perf_counter() - start
            if number or (took > _LONG_RUN and not packs_first):
                seconds.append(took)
                if took > _LONG_RUN:
                    break
        return min(seconds), [self._copies[name].array.copy() for name in self._outputs]


def _relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Size of the difference as a share of the size of ``wanted``; infinity where something is not finite."""
    difference = np.linalg.norm((found.astype(np.float64) - wanted).ravel())
    size = max(float(np.linalg.norm(wanted.astype(np.float64).ravel())), 1e-20)
    return float(difference / size) if np.isfinite(difference) and np.isfinite(size) else float("inf")
