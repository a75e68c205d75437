"""Times of one engine directory on a GPU backend, engine alone and whole steps in turns."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgellm_ros.backends.base import SamplingRow
from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.backends.cuda.onnxruntime import OnnxRuntimeEngine
from edgellm_ros.engine_format import open_engine_directory
from edgellm_ros.runtime.executor import ModelExecutor

CONTEXT = 512
STEPS = 96  # of a round, half before the context and half behind it
ROUNDS = 5
GREEDY = SamplingRow()
SAMPLED = SamplingRow(temperature=0.8, top_p=0.9, seed=3)


@dataclass
class StepTimes:
    """Seconds, one value a round."""

    engine: list[float] = field(default_factory=list)  # its recorded run alone, on the device
    device: list[float] = field(default_factory=list)  # the whole recorded step, on the device
    step: list[float] = field(default_factory=list)  # the whole step in the loop, ids read back
    sampled: list[float] = field(default_factory=list)  # the same with temperature and top-p
    host: list[float] = field(default_factory=list)  # of the loop, without waiting for the device
    prefill: list[float] = field(default_factory=list)
    own_graph: list[float] = field(default_factory=list)  # the provider's own graph around the engine
    recorded: bool = False
    details: dict[str, str] = field(default_factory=dict)

    def median(self, name: str) -> float:
        """Median of a list of rounds; not a number where it is empty."""
        values: list[float] = getattr(self, name)
        return statistics.median(values) if values else float("nan")


@contextmanager
def opened(directory: Path, library: str) -> Iterator[tuple[CUDABackend, ModelExecutor]]:
    """A backend and an executor with a prefill chunk of 512."""
    backend = CUDABackend(library)
    try:
        yield backend, ModelExecutor(open_engine_directory(directory), backend, prefill_chunk=CONTEXT)
    finally:
        backend.close()


def decode_steps(executor: ModelExecutor, first: int, count: int, parameters: SamplingRow = GREEDY) -> float:
    """Seconds for ``count`` steps from position ``first`` on; what the cache holds there does not matter for time."""
    executor.start_row(0, parameters, [1] * first)
    ids = [7]
    start = time.perf_counter()
    for past in range(first, first + count):
        ids = executor.decode(ids, [past])
    return time.perf_counter() - start


def engine_shapes(executor: ModelExecutor) -> dict[str, tuple[int, ...]]:
    """Shapes of a decode call of one row."""
    engine = executor.engine
    specs = {**engine.inputs, **engine.outputs}
    return {name: tuple(1 if size == -1 else size for size in spec.shape) for name, spec in specs.items()}


def measure(directory: Path, library: str, *, own_graph: bool = False) -> StepTimes:
    """Five rounds, the parts of each in turns; a round before them is dropped."""
    times = StepTimes()
    with opened(directory, library) as (backend, executor):
        prompt = np.random.default_rng(1).integers(0, executor.vocab_size, CONTEXT).tolist()
        executor.start_row(0, GREEDY, prompt)
        executor.prefill(0, prompt, 0)
        engine, shapes = executor.engine, engine_shapes(executor)
        bucket = engine.length_bucket(CONTEXT)
        alone = backend.capture("engine alone", lambda: engine.run(shapes, 0, bucket))
        first = CONTEXT - STEPS // 2
        waiting = _count_waiting(backend)
        for index in range(ROUNDS + 1):
            executor.start_row(0, GREEDY, prompt)
            start = time.perf_counter()
            executor.prefill(0, prompt, 0)
            prefill = time.perf_counter() - start
            waiting.clear()
            step = decode_steps(executor, first, STEPS)
            host = step - sum(waiting)
            sm_clock = _sm_clock()
            sampled = decode_steps(executor, first, STEPS, SAMPLED)
            decode_steps(executor, first, 2)
            captured = executor.calls.get(1, 1, 0, CONTEXT).step
            engine_time = _replay(backend, alone)
            executor._standing = None
            executor.decode([7], [first])
            device = _replay(backend, captured)
            executor._standing = None  # the replays went on without it
            if index:
                times.prefill.append(prefill)
                times.step.append(step / STEPS)
                times.host.append(host / STEPS)
                times.sampled.append(sampled / STEPS)
                times.engine.append(engine_time)
                times.device.append(device)
        times.recorded = bool(getattr(captured, "recorded", False))
        times.details = {**executor.engine_details, "sm_clock": sm_clock}
        if not times.recorded:
            times.details["step"] = getattr(captured, "failure", "")
        if own_graph and isinstance(engine, OnnxRuntimeEngine):
            times.own_graph = _own_graph(backend, executor, shapes)
    return times


def _sm_clock() -> str:
    """Clock of the GPU right after work, as nvidia-smi tells it; empty where it does not."""
    command = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def _count_waiting(backend: CUDABackend) -> list[float]:
    """Seconds that each wait for a readback takes, from now on."""
    waits: list[float] = []
    read = backend.read_async

    class Waiting:
        def __init__(self, readback: Any) -> None:
            self._readback = readback

        def wait(self) -> Any:
            start = time.perf_counter()
            values = self._readback.wait()
            waits.append(time.perf_counter() - start)
            return values

    backend.read_async = lambda tensor: Waiting(read(tensor))  # type: ignore[method-assign]
    return waits


def _replay(backend: CUDABackend, step: Any, count: int = 50) -> float:
    """Seconds of one run on the device, of many one behind the other."""
    step.run()
    step.run()
    backend.synchronize()
    with backend.device.timing() as seconds:
        for _ in range(count):
            step.run()
    return seconds[0] / count


def _own_graph(backend: CUDABackend, executor: ModelExecutor, shapes: dict[str, tuple[int, ...]]) -> list[float]:
    """The same engine recorded by ONNX Runtime's provider itself."""
    first = executor.engine
    assert isinstance(first, OnnxRuntimeEngine)
    engine = OnnxRuntimeEngine(backend.device, backend.kernels, backend._recorder, first._path, own_graph=True)
    try:
        for name, tensor in executor.tensors.bound.items():
            engine.bind(name, tensor)
        engine.bind_cache(executor.cache)
        rounds = []
        for index in range(ROUNDS + 1):
            for _ in range(4):
                engine.run(shapes)
            backend.synchronize()
            start = time.perf_counter()
            for _ in range(50):
                engine.run(shapes)
            backend.synchronize()
            if index:
                rounds.append((time.perf_counter() - start) / 50)
        return rounds
    finally:
        engine.close()
