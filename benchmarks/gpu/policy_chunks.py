"""Chunks of policies and what is measured of them: times, what is recorded, how near half precision stays."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgellm_ros.action.noise import standard_normal
from edgellm_ros.action.observation import Observation
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.backends.base import Backend
from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.backends.cuda.backend import CUDABackend

from .policy_shapes import PolicyShape

PARTS = ("images", "vision", "prefix", "denoise")
WARM, OBSERVATIONS = 4, 4
CPU = "cpu"  # instead of a library of GPUs: everything but the GPU itself is tried


@dataclass
class ChunkTimes:
    """Seconds, one value a chunk; ``parts`` on the device's clock, ``images`` with the host's share of them."""

    chunk: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)
    plain: list[float] = field(default_factory=list)  # chunks of which nothing is recorded, in turns with the others
    recorded: dict[str, object] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    cosines: list[float] = field(default_factory=list)  # of chunks, with float32
    moved_cosines: list[float] = field(default_factory=list)  # of what denoising adds to the noise
    differences: list[float] = field(
        default_factory=list
    )  # of a replayed chunk: with a later one, and with a plain one
    failures: list[str] = field(default_factory=list)  # of checks that did not come to their end


def open_backend(library: str) -> Backend:
    """The GPU that this machine has, or its CPU."""
    return CPUBackend() if library == CPU else CUDABackend(library)


def _observation(runtime: PolicyRuntime, shape: PolicyShape, seed: int) -> Observation:
    random, manifest = np.random.default_rng(seed), runtime.manifest
    driving = manifest.driving
    size = (*(() if driving is None else (driving.frames,)), *shape.picture, 3)
    images = {slot.name: random.integers(0, 256, size, dtype=np.uint8) for slot in manifest.seen_cameras}
    state = random.uniform(-0.9, 0.9, manifest.state.width)
    if driving is None:
        return Observation(images, state)
    way = np.zeros((driving.history.points, 3))
    way[:, 0] = np.linspace(-0.5 * (driving.history.points - 1), 0.0, driving.history.points)  # 5 m/s, straight on
    return Observation(images, state, history=way)


def _views(runtime: PolicyRuntime, shape: PolicyShape) -> Iterator[Observation]:
    """The same one again and again, or new ones for a policy that knows pictures again."""
    first = _observation(runtime, shape, 0)
    for seed in itertools.count():
        yield first if runtime.manifest.driving is None else _observation(runtime, shape, seed)


def _says(runtime: PolicyRuntime, words: int) -> None:
    """A policy that reasons says so many tokens, since random weights find no end."""
    if runtime.manifest.driving is not None:
        runtime.reasoning_tokens = words


def measure_chunks(directory: Path, shape: PolicyShape, library: str, chunks: int) -> ChunkTimes:
    """``chunks`` recorded chunks, and half as many plain ones in turns with them."""
    times, backend = ChunkTimes(), open_backend(library)
    with PolicyRuntime(directory, backend=backend) as runtime:
        _says(runtime, shape.words)
        views = _views(runtime, shape)
        seen, recordings = next(views), runtime.recordings
        for _ in range(WARM):
            runtime.compute(seen, shape.task)
        times.differences = _replays(runtime, seen, shape)
        for index in range(chunks):
            seen = next(views)
            started = time.perf_counter()
            chunk = runtime.compute(seen, shape.task)
            times.chunk.append(time.perf_counter() - started)
            assert chunk is not None
            for part in PARTS:
                times.parts.setdefault(part, []).append(chunk.timings[f"{part}_ms"] / 1e3)
            if index == chunks // 2:
                times.recorded = recordings.report()
                _measure_plain(runtime, views, shape, times, chunks // 2)
        manifest = runtime.manifest
        times.facts = {
            "model": manifest.family, "views": len(manifest.seen_cameras), "resolution": list(manifest.image_size),
            "prefix_tokens": runtime.prefix_length, "horizon": manifest.rows, "steps": manifest.denoise_steps,
            "backend": backend.name, "library": library, "nodes": recordings.nodes(),
            **({"words": shape.words} if manifest.driving is not None else {}),
            **({"cut": shape.cut} if shape.cut else {}),
        }  # fmt: skip
    backend.close()
    return times


def _replays(runtime: PolicyRuntime, seen: Observation, shape: PolicyShape) -> list[float]:
    """Largest differences of a chunk that is replayed: with one behind chunks of other shapes, and with a plain one."""

    def chunk(task: str, steps: int = 0) -> np.ndarray:
        made = runtime.compute(seen, task, denoise_steps=steps)
        assert made is not None and made.normalised is not None
        return made.normalised

    first = chunk(shape.task)
    for steps in (1, 2, 1, 2):
        chunk(shape.task[: len(shape.task) // 2], steps)
    later = chunk(shape.task)
    runtime.recordings.clear()
    plain = chunk(shape.task)
    for _ in range(WARM):
        chunk(shape.task)
    return [float(np.abs(other - first).max()) for other in (later, plain)]


def _measure_plain(
    runtime: PolicyRuntime, views: Iterator[Observation], shape: PolicyShape, times: ChunkTimes, chunks: int
) -> None:
    for _ in range(chunks):
        runtime.recordings.clear()  # a step is recorded behind its second run
        seen = next(views)
        started = time.perf_counter()
        runtime.compute(seen, shape.task)
        times.plain.append(time.perf_counter() - started)
    for _ in range(WARM):
        runtime.compute(seen, shape.task)


def chunks_of(directory: Path, shape: PolicyShape, library: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What the network gives for a few observations, and the noise that it starts from, float64 [H,A] each.

    Of a policy that reasons there is one, as it sees far more, in one step: its waves are so fast that a rounding in
    one is another angle in the next. No words are said before it, for those of another precision may be others.
    """
    found, noises = [], []
    backend = open_backend(library)
    with PolicyRuntime(directory, backend=backend) as runtime:
        manifest = runtime.manifest
        _says(runtime, 0)
        reasons = manifest.driving is not None
        for seed in range(1 if reasons else OBSERVATIONS):
            noise = standard_normal(seed, (manifest.rows, manifest.action.padded))
            seen = _observation(runtime, shape, seed)
            chunk = runtime.compute(seen, shape.task, noise=noise, denoise_steps=int(reasons))
            assert chunk is not None and chunk.normalised is not None
            found.append(chunk.normalised.astype(np.float64))
            noises.append(noise[: manifest.horizon, : manifest.action.width].astype(np.float64))
    backend.close()
    return found, noises


def _cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float((first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum()))


def compare(times: ChunkTimes, directory: Path, wanted: Path, shape: PolicyShape, library: str) -> None:
    """Cosines of the chunks of two engine directories of one model on one machine.

    What its provider for GPUs does not run of a language model in float32, the CPU does.
    """
    other = CPU if shape.words and library == "onnxruntime" else library
    (ours, noises), (exact, _) = (chunks_of(path, shape, on) for path, on in ((directory, library), (wanted, other)))
    times.cosines = [_cosine(*pair) for pair in zip(ours, exact, strict=True)]
    moved = zip(ours, exact, noises, strict=True)
    times.moved_cosines = [_cosine(first - noise, second - noise) for first, second, noise in moved]
