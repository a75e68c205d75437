"""Decode steps of model shapes on a GPU: rows of a results file, and a line of a table for each shape."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from .measure import StepTimes
from .report import Report

TARGETS = {"SmolLM2-135M": (1.19, 1.10), "SmolLM2-360M": (1.49, 1.35), "Qwen2.5-1.5B": (1.97, 1.85)}  # ms: must, aim
TRANSFORMERS = {"SmolLM2-135M": 2.75, "SmolLM2-360M": 3.17, "Qwen2.5-1.5B": 4.52}  # ms, compiled, same GPU


def measure_shape(report: Report, name: str, directory: Path, library: str, *, own_graph: bool) -> None:
    """Rows of one shape, and its line of the table."""
    # A process of its own: what other engines left behind in one has cost a tenth of a step.
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "one", "--models", str(directory), "--library", library,
         *(["--own-graph"] if own_graph else [])],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if child.returncode:
        error = (child.stderr.strip().splitlines() or ["no message"])[-1]
        report.failed.append(f"{name}: {error}")
        print(f"FAILED {name}: {error}", flush=True)
        return
    times = StepTimes(**json.loads(child.stdout.strip().splitlines()[-1]))
    case = f"{library} {directory.name}"
    engine = times.median("engine")
    label = "engine alone, recorded, same run"
    for metric, key in (
        ("whole step in the loop", "step"), ("whole step on the device", "device"),
        ("whole step, temperature and top-p", "sampled"),
    ):  # fmt: skip
        report.add(
            case, metric, "ms", 1e3 * times.median(key), [1e3 * value for value in getattr(times, key)], label,
            1e3 * engine, [1e3 * value for value in times.engine],
        )  # fmt: skip
    if name in TRANSFORMERS:
        report.add(case, "whole step in the loop", "ms", 1e3 * times.median("step"), None,
                   "transformers, static cache, compiled", TRANSFORMERS[name])  # fmt: skip
    report.add(case, "host time of a step", "us", 1e6 * times.median("host"), [1e6 * value for value in times.host])
    report.add(case, "prefill of 512", "ms", 1e3 * times.median("prefill"), [1e3 * value for value in times.prefill])
    if times.own_graph:
        report.add(case, "engine alone, recorded by us", "ms", 1e3 * engine, [1e3 * value for value in times.engine],
                   "recorded by the provider itself", 1e3 * times.median("own_graph"),
                   [1e3 * value for value in times.own_graph])  # fmt: skip
    print_line(name, times)


def print_head() -> None:
    print(f"{'shape':24} {'engine':>8} {'device':>8} {'step':>8} {'over':>7} {'top-p':>8} {'host us':>8} "
          f"{'prefill':>8} {'own':>7} {'must':>6} {'aim':>6}  (ms)")  # fmt: skip


def print_line(name: str, times: StepTimes) -> None:
    must, aim = TARGETS.get(name, (float("nan"),) * 2)
    step, engine = 1e3 * times.median("step"), 1e3 * times.median("engine")
    print(
        f"{name:24} {engine:8.3f} {1e3 * times.median('device'):8.3f} {step:8.3f} {step - engine:7.3f} "
        f"{1e3 * times.median('sampled'):8.3f} {1e6 * times.median('host'):8.1f} {1e3 * times.median('prefill'):8.3f} "
        f"{1e3 * times.median('own_graph'):7.3f} {must:6.2f} {aim:6.2f}  "
        f"{'recorded' if times.recorded else 'NOT RECORDED ' + str(times.details)} {times.details.get('sm_clock', '')}",
        flush=True,
    )
