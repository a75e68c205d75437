"""``python -m benchmarks.gpu policies``: whole chunks of policies on an NVIDIA GPU, and what half precision changes."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgellm_ros.action.noise import standard_normal
from edgellm_ros.action.observation import Observation
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.backends.base import Backend
from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.errors import EdgeLLMError

from .policy_shapes import POLICY_SHAPES, PolicyShape, build_policy

PARTS = ("images", "vision", "prefix", "denoise")
WARM, OBSERVATIONS = 4, 4
LEAST_COSINE = 0.999
MOST_DIFFERENCE = 1e-3  # of a chunk's numbers, which are about 1
CPU = "cpu"  # instead of a library of GPUs: everything but the GPU itself is tried


@dataclass
class ChunkTimes:
    """Seconds, one value a chunk; ``parts`` on the device's clock but for ``images``, which the host fits."""

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


def open_backend(library: str) -> Backend:
    """The GPU that this machine has, or its CPU."""
    return CPUBackend() if library == CPU else CUDABackend(library)


def _observation(runtime: PolicyRuntime, shape: PolicyShape, seed: int) -> Observation:
    random, manifest = np.random.default_rng(seed), runtime.manifest
    images = {slot.name: random.integers(0, 256, (*shape.picture, 3), dtype=np.uint8) for slot in manifest.seen_cameras}
    return Observation(images, random.uniform(-0.9, 0.9, manifest.state.width))


def measure_chunks(directory: Path, shape: PolicyShape, library: str, chunks: int) -> ChunkTimes:
    """``chunks`` recorded chunks, and half as many plain ones in turns with them."""
    times, backend = ChunkTimes(), open_backend(library)
    with PolicyRuntime(directory, backend=backend) as runtime:
        seen, recordings = _observation(runtime, shape, 0), runtime.recordings
        for _ in range(WARM):
            runtime.compute(seen, shape.task)
        times.differences = _replays(runtime, seen, shape)
        for index in range(chunks):
            started = time.perf_counter()
            chunk = runtime.compute(seen, shape.task)
            times.chunk.append(time.perf_counter() - started)
            assert chunk is not None
            for part in PARTS:
                times.parts.setdefault(part, []).append(chunk.timings[f"{part}_ms"] / 1e3)
            if index == chunks // 2:
                times.recorded = recordings.report()
                _measure_plain(runtime, seen, shape, times, chunks // 2)
        manifest = runtime.manifest
        times.facts = {
            "model": manifest.family, "views": len(manifest.seen_cameras), "resolution": list(manifest.image_size),
            "prefix_tokens": runtime.prefix_length, "horizon": manifest.rows, "steps": manifest.denoise_steps,
            "backend": backend.name, "library": library, "nodes": recordings.nodes(),
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
    runtime: PolicyRuntime, seen: Observation, shape: PolicyShape, times: ChunkTimes, chunks: int
) -> None:
    for _ in range(chunks):
        runtime.recordings.clear()  # a step is recorded behind its second run
        started = time.perf_counter()
        runtime.compute(seen, shape.task)
        times.plain.append(time.perf_counter() - started)
    for _ in range(WARM):
        runtime.compute(seen, shape.task)


def chunks_of(directory: Path, shape: PolicyShape, library: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What the network gives for a few observations, and the noise that it starts from, float64 [H,A] each."""
    found, noises = [], []
    backend = open_backend(library)
    with PolicyRuntime(directory, backend=backend) as runtime:
        manifest = runtime.manifest
        for seed in range(OBSERVATIONS):
            noise = standard_normal(seed, (manifest.rows, manifest.action.padded))
            chunk = runtime.compute(_observation(runtime, shape, seed), shape.task, noise=noise)
            assert chunk is not None and chunk.normalised is not None
            found.append(chunk.normalised.astype(np.float64))
            noises.append(noise[: manifest.horizon, : manifest.action.width].astype(np.float64))
    backend.close()
    return found, noises


def _cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float((first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum()))


def compare(times: ChunkTimes, directory: Path, wanted: Path, shape: PolicyShape, library: str) -> None:
    """Cosines of the chunks of two engine directories of one model on one machine."""
    (ours, noises), (exact, _) = (chunks_of(path, shape, library) for path in (directory, wanted))
    times.cosines = [_cosine(*pair) for pair in zip(ours, exact, strict=True)]
    moved = zip(ours, exact, noises, strict=True)
    times.moved_cosines = [_cosine(first - noise, second - noise) for first, second, noise in moved]


def _ms(values: list[float]) -> tuple[float, float]:
    """Median and 95th percentile in ms."""
    return 1e3 * statistics.median(values), 1e3 * float(np.percentile(values, 95))


def rows_of(times: ChunkTimes, shape: PolicyShape, precision: str) -> list[dict[str, Any]]:
    """Rows of the results file: the whole chunk, its parts, and the chunk of which nothing is recorded."""
    whole = {"whole chunk": times.chunk, **times.parts, "whole chunk, nothing recorded": times.plain}
    rows = []
    for metric, values in whole.items():
        median, p95 = _ms(values)
        target = {"must": shape.must, "aim": shape.aim} if metric == "whole chunk" else {}
        rows.append(
            {
                "case": f"policy {shape.name}", "metric": metric, "unit": "ms", "ours": median, "p95": p95,
                "precision": precision, "peer": shape.peer, **times.facts, **target, "recorded": times.recorded,
                "runs": {"ours": [1e3 * value for value in values]},
            }
        )  # fmt: skip
    for metric, cosines in (("chunk", times.cosines), ("what denoising adds", times.moved_cosines)):
        if cosines:
            rows.append(
                {
                    "case": f"policy {shape.name}", "metric": f"least cosine with float32, {metric}", "unit": "",
                    "ours": min(cosines), "precision": precision, **times.facts, "runs": {"ours": cosines},
                }
            )  # fmt: skip
    return rows


def failures_of(times: ChunkTimes, name: str) -> list[str]:
    """What does not hold: the loop is recorded, and half precision stays near."""
    found = []
    if times.facts.get("library") != CPU and not isinstance(times.recorded.get("recorded.denoise"), int):
        found.append(f"{name}: the denoise loop is not recorded: {times.recorded}")
    if not max(times.differences, default=0.0) <= MOST_DIFFERENCE:
        found.append(f"{name}: replayed chunks differ by {times.differences}; want {MOST_DIFFERENCE:g} at most")
    if times.cosines and not min(times.cosines) >= LEAST_COSINE:
        found.append(f"{name}: a cosine with float32 is {min(times.cosines):.6f}; want at least {LEAST_COSINE}")
    return found


def print_line(times: ChunkTimes, shape: PolicyShape) -> None:
    """One line of the table."""
    (median, p95), (plain, _) = _ms(times.chunk), _ms(times.plain)
    parts = " ".join(f"{part} {_ms(times.parts[part])[0]:.2f}" for part in PARTS)
    cosine = f", cosine {min(times.cosines):.6f} ({min(times.moved_cosines):.6f} moved)" if times.cosines else ""
    print(
        f"{shape.name}: {median:.2f} ms, p95 {p95:.2f} (must {shape.must:g}, aim {shape.aim:g}); {parts}; nothing "
        f"recorded {plain:.2f}{cosine}; {times.facts}; {times.recorded}",
        flush=True,
    )


def _arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu policies", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(POLICY_SHAPES)}; all where none is")
    parser.add_argument("--models", type=Path, default=Path("benchmarks/.cache/gpu"), help="where engines are built")
    parser.add_argument(
        "--library",
        choices=["onnxruntime", "tensorrt", CPU],
        default="onnxruntime",
        help="cpu, with --tiny, tries everything but the GPU",
    )
    parser.add_argument("--lowering", help="onnxruntime, or tensorrt_legacy with the library tensorrt")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--chunks", type=int, default=50)
    parser.add_argument("--no-float32", action="store_true", help="leave the comparison with float32 out")
    parser.add_argument("--tiny", action="store_true", help="tiny policies of the same kinds, to try the way there")
    parser.add_argument("--build-only", action="store_true", help="build, and run nothing")
    parser.add_argument("--one", action="store_true", help="measure one name in this process, and print JSON")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args(given)
    arguments.names = arguments.names or list(POLICY_SHAPES)
    unknown = [name for name in arguments.names if name not in POLICY_SHAPES]
    if unknown:
        parser.error(f"{unknown[0]!r} is unknown; want some of {', '.join(POLICY_SHAPES)}")
    default = "tensorrt_legacy" if arguments.library == "tensorrt" else "onnxruntime"
    arguments.lowering = arguments.lowering or default
    return arguments


def directory_of(arguments: argparse.Namespace, name: str, precision: str) -> Path:
    """The engine directory, built and with its plans."""
    directory = build_policy(
        name, arguments.models, precision=precision, lowering=arguments.lowering, tiny=arguments.tiny
    )
    if arguments.library == "tensorrt" and not arguments.build_only:
        from edgellm_ros.builder.tensorrt_build import PlanOptions, compile_plan

        compile_plan(directory, PlanOptions(library_tactics=False))
    return directory


def one(arguments: argparse.Namespace) -> ChunkTimes:
    """Everything about one policy."""
    (name,) = arguments.names
    shape, directory = POLICY_SHAPES[name], directory_of(arguments, name, arguments.precision)
    times = measure_chunks(directory, shape, arguments.library, arguments.chunks)
    if not arguments.no_float32:
        compare(times, directory, directory_of(arguments, name, "fp32"), shape, arguments.library)
    return times


def build_all(arguments: argparse.Namespace) -> None:
    """Every engine directory, each in a process of its own: a build has one thread."""
    precisions = [arguments.precision, *([] if arguments.no_float32 else ["fp32"])]
    commands = [_command(arguments, name, precision, "--build-only") for name in arguments.names
                for precision in dict.fromkeys(precisions)]  # fmt: skip
    running = [subprocess.Popen(command) for command in commands]
    statuses = [builder.wait() for builder in running]
    if any(statuses):
        raise SystemExit("a policy was not built; the messages above say why")


def _command(arguments: argparse.Namespace, name: str, precision: str, *more: str) -> list[str]:
    tail = [*(["--tiny"] if arguments.tiny else []), *(["--no-float32"] if arguments.no_float32 else []), *more]
    return [sys.executable, "-m", "benchmarks.gpu", "policies", name, "--models", str(arguments.models),
            "--library", arguments.library, "--lowering", arguments.lowering, "--precision", precision,
            "--chunks", str(arguments.chunks), *tail]  # fmt: skip


def _child(arguments: argparse.Namespace, name: str) -> ChunkTimes | str:
    """The times that a process of its own measured, or the last line of what it said of its failure."""
    found = subprocess.run(
        _command(arguments, name, arguments.precision, "--one"), capture_output=True, text=True, check=False
    )
    if found.returncode:
        print(found.stderr[-2000:], flush=True)
        return (found.stderr.strip().splitlines() or ["no message"])[-1]
    return ChunkTimes(**json.loads(found.stdout.strip().splitlines()[-1]))


def machine(library: str) -> Mapping[str, Any]:
    """Device and versions, for every row."""
    if library == CPU:
        return {"device": platform.machine(), "versions": {"python": platform.python_version()}}
    from .__main__ import start_report

    report = start_report(library)
    return {"device": report.device, "versions": report.versions}


def main(given: list[str]) -> int:
    """Build, measure, compare; 1 when a check did not hold."""
    arguments = _arguments(given)
    if arguments.build_only:
        for name in arguments.names:
            directory_of(arguments, name, arguments.precision)
        return 0
    if arguments.one:
        print(json.dumps(asdict(one(arguments))))
        return 0
    try:
        facts = machine(arguments.library)  # before anything is built, since that takes minutes
    except EdgeLLMError as error:
        print(f"FAILED {error}", flush=True)
        return 1
    build_all(arguments)
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    for name in arguments.names:
        times = _child(arguments, name)
        if isinstance(times, str):
            failed.append(f"{name}: {times}")
            continue
        print_line(times, POLICY_SHAPES[name])
        failed += failures_of(times, name)
        rows += [{**row, **facts} for row in rows_of(times, POLICY_SHAPES[name], arguments.precision)]
        if arguments.output is not None:  # after every policy, so that a run cut short leaves what it had
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            arguments.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for failure in failed:
        print(f"FAILED {failure}", flush=True)
    return 1 if failed else 0
