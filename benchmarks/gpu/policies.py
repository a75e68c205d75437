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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from edgellm_ros.errors import EdgeLLMError

from .policy_chunks import CPU, PARTS, ChunkTimes, compare, measure_chunks
from .policy_shapes import POLICY_SHAPES, PolicyShape, build_policy, engine_folder
from .report import start_report

LEAST_COSINE = 0.999
MOST_DIFFERENCE = 1e-3  # of a chunk's numbers, which are about 1


def _ms(values: list[float]) -> tuple[float, float]:
    """Median and 95th percentile in ms."""
    return 1e3 * statistics.median(values), 1e3 * float(np.percentile(values, 95))


def rows_of(times: ChunkTimes, shape: PolicyShape, precision: str) -> list[dict[str, Any]]:
    """Rows of the results file: the whole chunk, its parts, the chunk of which nothing is recorded, and cosines."""

    def row(metric: str, unit: str, ours: float, values: list[float], **more: Any) -> dict[str, Any]:
        return {
            "case": f"policy {shape.name}", "metric": metric, "unit": unit, "ours": ours, "peer": shape.peer or None,
            "peer_value": None, "ratio": None, **times.facts, "precision": precision,
            "median": statistics.median(values), "p95": float(np.percentile(values, 95)), **more,
            "runs": {"ours": values, "peer": []},
        }  # fmt: skip

    whole = {"whole chunk": times.chunk, **times.parts, "whole chunk, nothing recorded": times.plain}
    rows = []
    for metric, seconds in whole.items():
        aims = {"must": shape.must, "aim": shape.aim}
        target = aims if metric == "whole chunk" and not shape.cut else {}
        values = [1e3 * value for value in seconds]
        rows.append(row(metric, "ms", statistics.median(values), values, recorded=times.recorded, **target))
    for metric, cosines in (("chunk", times.cosines), ("what denoising adds", times.moved_cosines)):
        if cosines:
            rows.append(row(f"least cosine with float32, {metric}", "", min(cosines), cosines))
    return rows


def failures_of(times: ChunkTimes, name: str) -> list[str]:
    """What does not hold: the loop is recorded, and half precision stays near."""
    found = [f"{name}: {failure}" for failure in times.failures]
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
    targets = "" if shape.cut else f" (must {shape.must:g}, aim {shape.aim:g})"
    parts = " ".join(f"{part} {_ms(times.parts[part])[0]:.2f}" for part in PARTS)
    cosine = f", cosine {min(times.cosines):.6f} ({min(times.moved_cosines):.6f} moved)" if times.cosines else ""
    print(
        f"{shape.name}: {median:.2f} ms, p95 {p95:.2f}{targets}; {parts}; nothing "
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
    parser.add_argument("--build-limit", type=float, default=420.0, help="seconds for the builds of all policies")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for all that is measured of one policy")
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
    lowering = _lowering(arguments, name, precision)
    directory = build_policy(name, arguments.models, precision=precision, lowering=lowering, tiny=arguments.tiny)
    if arguments.library == "tensorrt" and not arguments.build_only:
        from edgellm_ros.builder.tensorrt_build import PlanOptions, compile_plan

        compile_plan(directory, PlanOptions(library_tactics=False))
    return directory


def one(arguments: argparse.Namespace) -> ChunkTimes:
    """Everything about one policy; what is known before the comparison is printed before it."""
    (name,) = arguments.names
    shape, directory = POLICY_SHAPES[name], directory_of(arguments, name, arguments.precision)
    times = measure_chunks(directory, shape, arguments.library, arguments.chunks)
    if arguments.no_float32:
        return times
    print(json.dumps(asdict(times)), flush=True)
    try:
        if not (_folder(arguments, name, "fp32") / "manifest.json").is_file():
            raise FileNotFoundError("no fp32 engines were built")
        compare(times, directory, directory_of(arguments, name, "fp32"), shape, arguments.library)
    except Exception as error:  # what was measured is worth more than how near it is
        times.failures.append(f"the comparison with float32 ended with {type(error).__name__}: {error}")
    return times


def _folder(arguments: argparse.Namespace, name: str, precision: str) -> Path:
    lowering = _lowering(arguments, name, precision)
    return engine_folder(name, arguments.models, precision=precision, lowering=lowering, tiny=arguments.tiny)


def _lowering(arguments: argparse.Namespace, name: str, precision: str) -> str:
    """As asked for, but in float32 for words, whose attention of that lowering no CUDA build of the library has yet."""
    speaks = bool(POLICY_SHAPES[name].words) and precision == "fp32"
    return "tensorrt_legacy" if speaks else str(arguments.lowering)


def build_all(arguments: argparse.Namespace) -> dict[str, str]:
    """Every engine directory, each in a process of its own: a build has one thread. What failed, by name."""
    precisions = [arguments.precision, *([] if arguments.no_float32 else ["fp32"])]
    running = [(name, precision, subprocess.Popen(_command(arguments, name, precision, "--build-only")))
               for name in arguments.names for precision in dict.fromkeys(precisions)]  # fmt: skip
    failed, end = {}, time.monotonic() + arguments.build_limit
    for name, precision, builder in running:
        try:
            if not builder.wait(max(end - time.monotonic(), 0.0)):
                continue
            reason = "was not built; the messages above say why"
        except subprocess.TimeoutExpired:
            builder.kill()
            builder.wait()
            reason = f"was not built in {arguments.build_limit:g} s"
        if precision == arguments.precision:
            failed[name] = f"{precision} {reason}"
        else:  # the comparison says that it lacks it
            print(f"{name}: {precision} {reason}", flush=True)
    return failed


def _command(arguments: argparse.Namespace, name: str, precision: str, *more: str) -> list[str]:
    tail = [*(["--tiny"] if arguments.tiny else []), *(["--no-float32"] if arguments.no_float32 else []), *more]
    return [sys.executable, "-m", "benchmarks.gpu", "policies", name, "--models", str(arguments.models),
            "--library", arguments.library, "--lowering", arguments.lowering, "--precision", precision,
            "--chunks", str(arguments.chunks), *tail]  # fmt: skip


def _child(arguments: argparse.Namespace, name: str) -> ChunkTimes | str:
    """The times that a process of its own measured, or the last line of what it said of its failure.

    Where it failed, or took too long, behind its measurements, these are kept.
    """
    command = _command(arguments, name, arguments.precision, "--one")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            said, complaints = child.communicate(timeout=arguments.limit)
            reason = (complaints.strip().splitlines() or ["no message"])[-1] if child.returncode else ""
        except subprocess.TimeoutExpired:
            child.kill()
            said, complaints = child.communicate()
            reason = f"it was ended after {arguments.limit:g} s"
    if reason:
        print(complaints[-2000:], flush=True)
    found = [line for line in said.splitlines() if line.startswith("{")]
    if not found:
        return reason or "it printed nothing"
    times = ChunkTimes(**json.loads(found[-1]))
    if reason:
        times.failures.append(reason)
    return times


def machine(library: str) -> Mapping[str, Any]:
    """Device and versions, for every row."""
    if library == CPU:
        return {"device": platform.machine(), "versions": {"python": platform.python_version()}}
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
    unbuilt = build_all(arguments)
    rows: list[dict[str, Any]] = []
    failed = [f"{name}: {reason}" for name, reason in unbuilt.items()]
    for name in arguments.names:
        if name in unbuilt:
            continue
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
