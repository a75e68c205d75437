"""What must hold on a GPU: the same tokens as on the CPU, memory that stays flat, failures survived."""

from __future__ import annotations

import gc
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from edgellm_ros.backends.base import SamplingRow
from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.backends.cuda.device import Device
from edgellm_ros.backends.cuda.graphs import Recorder
from edgellm_ros.backends.cuda.kernels import Kernels
from edgellm_ros.backends.cuda.kv_cache import CUDAKVCache
from edgellm_ros.backends.cuda.onnxruntime import OnnxRuntimeEngine
from edgellm_ros.backends.cuda.tensor import CUDAMemory, CUDATensor
from edgellm_ros.engine_format import open_engine_directory
from edgellm_ros.errors import BackendError
from edgellm_ros.runtime.executor import ModelExecutor

from .measure import GREEDY, opened

POSITIONS = 512
# rows, chunk, capacity of the calls that the probe, a short prompt and a step make
CALLS_OF_A_LIFE = ((1, 5, 16), (1, 3, 16), (1, 1, 16), (2, 1, 16), (1, 4, 256), (1, 1, 256))
PROMPTS, TOKENS = 4, 64


class CheckError(Exception):
    """A check did not hold; the message says which and by how much."""


def text_ids(directory: Path, text: str) -> list[int]:
    """``POSITIONS`` + 1 ids of a text."""
    from edgellm_ros.runtime.tokenizer import Tokenizer

    ids = Tokenizer.from_directory(directory).encode(text)
    if len(ids) <= POSITIONS:
        raise CheckError(f"the text has {len(ids)} tokens; want more than {POSITIONS}")
    return list(ids[: POSITIONS + 1])


def teacher_forced(executor: ModelExecutor, ids: list[int]) -> list[int]:
    """The most likely id after each position, every true id given in turn by a decode step."""
    executor.start_row(0, GREEDY, ids[:1])
    executor.prefill(0, ids[:1], 0)
    best = []
    for past, token in enumerate(ids[:POSITIONS]):
        best.append(executor.decode([token], [past])[0])
    return best


def continuations(executor: ModelExecutor, seed: int = 5) -> list[list[int]]:
    """Greedy tokens after seeded prompts of different lengths, prefilled in chunks."""
    random = np.random.default_rng(seed)
    answers = []
    for length in (1, 9, 33, 140)[:PROMPTS]:
        prompt = random.integers(0, executor.vocab_size, length).tolist()
        executor.start_row(0, GREEDY, prompt)
        start, token = 0, None
        while token is None:
            start, token = executor.prefill(0, prompt, start)
        answer = [token]
        for past in range(length, length + TOKENS - 1):
            answer.append(executor.decode(answer[-1:], [past])[0])
        answers.append(answer)
    return answers


def cpu_executor(directory: Path, prefill_chunk: int = 64) -> ModelExecutor:
    """The reference: ONNX Runtime on the CPU."""
    from edgellm_ros.backends.cpu import CPUBackend

    return ModelExecutor(open_engine_directory(directory), CPUBackend(), prefill_chunk=prefill_chunk)


def write_reference(path: Path, smollm2: Path, random_model: Path, text: str) -> None:
    """What the CPU backend says in float32: top-1 ids over a text, and greedy tokens of the random model."""
    ids = text_ids(smollm2, text)
    content = {
        "ids": ids,
        "top1": teacher_forced(cpu_executor(smollm2), ids),
        "random_model_tokens": continuations(cpu_executor(random_model)),
    }
    path.write_text(json.dumps(content), encoding="utf-8")


def check_agreement(directory: Path, library: str, reference: dict[str, list[int]]) -> float:
    """Share of positions whose most likely id is the CPU's in float32."""
    with opened(directory, library) as (_, executor):
        ours = teacher_forced(executor, reference["ids"])
        wanted = reference["top1"]
        # Prompts at once must say what the steps say.
        for length in (1, 16, 100, 256, 511):
            executor.start_row(0, GREEDY, reference["ids"][:length])
            _, token = executor.prefill(0, reference["ids"][:length], 0)
            if token not in (ours[length - 1], wanted[length - 1]):
                raise CheckError(f"a prompt of {length} ids gives {token}; steps give {ours[length - 1]}")
    return float(np.mean(np.array(ours) == np.array(wanted)))


def check_tokens(directory: Path, library: str, reference: list[list[int]]) -> int:
    """Tokens compared; all must be equal.

    :raises CheckError: one differs.
    """
    with opened(directory, library) as (_, executor):
        ours = continuations(executor)
    for index, (answer, wanted) in enumerate(zip(ours, reference, strict=True)):
        for place, (token, want) in enumerate(zip(answer, wanted, strict=True)):
            if token != want:
                raise CheckError(f"prompt {index}: token {place} is {token}; the CPU says {want}")
    return sum(map(len, reference))


def _lives(holder: Device, cycles: int, live: Callable[[], None]) -> float:
    """Bytes by which device memory grew over the last nine tenths of ``cycles`` calls, for each call."""
    free: list[int] = []
    first = cycles // 10
    for cycle in range(cycles):
        live()
        gc.collect()
        if cycle in (first, cycles - 1):
            free.append(holder.memory()[0])
    return (free[0] - free[-1]) / (cycles - 1 - first)


def _bare_life(holder: Device, directory: Path) -> None:
    """A session of ONNX Runtime alone, run with the shapes of a life: what it leaves behind is not ours."""
    recorder, kernels = Recorder(holder), Kernels(holder)
    engine = OnnxRuntimeEngine(holder, kernels, recorder, directory)
    shapes = {}
    for rows, chunk, capacity in CALLS_OF_A_LIFE:
        cache = CUDAKVCache(holder, kernels, engine.cache_layout, rows, capacity, engine.caches.order)
        engine.bind_cache(cache)
        for name, spec in {**engine.inputs, **engine.outputs}.items():
            free = iter((rows, 1 if name in ("last_token_index", "logits") else chunk))
            shapes[name] = tuple(next(free) if size == -1 else size for size in spec.shape)
            size = math.prod(shapes[name]) * spec.dtype.numpy.itemsize
            engine.bind(name, CUDATensor(CUDAMemory(holder, size), shapes[name], spec.dtype))
        engine.run(shapes)
    holder.synchronize()
    engine.close()
    kernels.close()


def check_leaks(directory: Path, library: str, cycles: int = 200, steps: int = 10_000) -> dict[str, float]:
    """Bytes that device memory grew by over cycles of creation and over steps.

    One context is held open all the while, as another library in the process would. A session of ONNX Runtime leaves
    something behind for every shape of attention that it ran; what bare sessions leave is subtracted.

    :raises CheckError: it grew by more than a few blocks of the driver's own.
    """
    holder = Device()

    def live() -> None:
        with opened(directory, library) as (_, executor):
            executor.start_row(0, GREEDY, [1, 2, 3])
            executor.prefill(0, [1, 2, 3], 0)
            executor.decode([5], [3])

    start = time.monotonic()
    try:
        grown_by_life = _lives(holder, cycles, live)
        seconds = (time.monotonic() - start) / cycles
        grown_by_bare = 0.0
        if library == "onnxruntime":
            grown_by_bare = _lives(holder, max(20, cycles // 2), lambda: _bare_life(holder, directory))
        with opened(directory, library) as (backend, executor):
            executor.start_row(0, SamplingRow(temperature=1.0, seed=1), [1])
            capacity = executor.limits.max_kv_cache_capacity
            ids, marks = [1], []
            for step in range(steps):
                ids = executor.decode(ids, [step % (capacity - 1)])
                if step in (steps // 10, steps - 1):
                    marks.append(backend.memory())
    finally:
        holder.close()
    grown = {
        "bytes_grown_over_cycles": (grown_by_life - grown_by_bare) * cycles,
        "bytes_of_a_life": grown_by_life,
        "bytes_of_a_bare_session": grown_by_bare,
        "bytes_grown_over_steps": float(marks[0]["free"] - marks[-1]["free"]),
        "bytes_allocated_over_steps": float(
            sum(marks[-1].values()) - marks[-1]["free"] - sum(marks[0].values()) + marks[0]["free"]
        ),
        "seconds_of_a_cycle": seconds,
    }
    if grown["bytes_grown_over_cycles"] > 8 << 20 or grown["bytes_grown_over_steps"] > 0:
        raise CheckError(f"device memory grew: {grown}")
    return grown


def check_failures(directory: Path, library: str) -> None:
    """Out of memory and a refused run leave a backend that goes on as before.

    :raises CheckError: it does not.
    """
    with opened(directory, library) as (backend, executor):
        wanted = continuations(executor)
        refused = 0
        for _ in range(3):
            try:
                backend.allocate_kv_cache(executor.engine.cache_layout, 1024, 1 << 21)  # type: ignore[attr-defined]
            except BackendError as error:
                refused += "out of memory" in str(error)
            try:
                executor.engine.run({"inputs_embeds": (1, 1 << 20, 1)})
            except BackendError:
                refused += 1
        if refused != 6:
            raise CheckError(f"{refused} of 6 failures were told")
        if continuations(executor) != wanted:
            raise CheckError("other tokens after failures than before")


def check_stale_bucket(directory: Path, library: str) -> None:
    """A recording under too short a length must give other tokens: else the checks above would prove nothing.

    :raises CheckError: the engine did not notice.
    """
    with opened(directory, library) as (_, executor):
        if executor.engine.length_bucket(1) == executor.engine.length_bucket(200):
            return  # this engine has no buckets
        wanted = continuations(executor)
        executor.engine.length_bucket = lambda positions: 128  # type: ignore[method-assign]
        executor.calls.made.clear()
        if continuations(executor) == wanted:
            raise CheckError("a prefix that is too short went unnoticed")


def cuda_versions(backend: CUDABackend) -> dict[str, str]:
    """Driver and GPU, for results."""
    call = backend.device.driver.call
    version = int(call("cuDriverGetVersion"))
    return {"cuda_driver": f"{version // 1000}.{version % 1000 // 10}", "gpu": backend.device.name}
