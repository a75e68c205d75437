"""``python -m benchmarks.gpu``: build, check against the CPU and measure on an NVIDIA GPU."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgellm_ros.errors import EdgeLLMError

from . import checks, policies
from .measure import StepTimes, measure
from .models import SHAPES, build_shape, build_smollm2

if TYPE_CHECKING:
    from .vision import VisionRun

TARGETS = {"SmolLM2-135M": (1.19, 1.10), "SmolLM2-360M": (1.49, 1.35), "Qwen2.5-1.5B": (1.97, 1.85)}  # ms: must, aim
TRANSFORMERS = {"SmolLM2-135M": 2.75, "SmolLM2-360M": 3.17, "Qwen2.5-1.5B": 4.52}  # ms, compiled, same GPU
TASKS = ["reference", "models", "kernels", "onnxruntime", "all", "tensorrt", "vision-models", "vision", "one"]
LEGACY_LAYERS = "SmolLM2-135M, 4 layers"


@dataclass
class Report:
    """Rows of a results file, and whether every check held."""

    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    path: Path | None = None  # written after every row, so that a run cut short leaves what it had

    def add(
        self, case: str, metric: str, unit: str, ours: float, runs: list[float] | None = None,
        peer: str | None = None, peer_value: float | None = None, peer_runs: list[float] | None = None,
    ) -> None:  # fmt: skip
        """One row of the results file."""
        ratio = ours / peer_value if peer_value else None
        self.rows.append(
            {
                "case": case, "metric": metric, "unit": unit, "ours": ours, "peer": peer, "peer_value": peer_value,
                "ratio": ratio, "device": self.device, "versions": self.versions,
                "runs": {"ours": runs or [ours], "peer": peer_runs or []},
            }
        )  # fmt: skip
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.rows, indent=1) + "\n", encoding="utf-8")

    def check(self, case: str, metric: str, unit: str, run: Callable[[], float], least: float | None = None) -> None:
        """Run a check; a value below ``least``, or an exception, counts as failed."""
        start = time.monotonic()
        try:
            value = run()
        except (checks.CheckError, EdgeLLMError) as error:
            self.failed.append(f"{case}: {metric}: {error}")
            print(f"FAILED {case}: {metric}: {error}", flush=True)
            return
        self.add(case, metric, unit, value)
        if least is not None and value < least:
            self.failed.append(f"{case}: {metric} is {value}; want at least {least}")
        print(f"{case}: {metric} = {value:.6g} {unit} ({time.monotonic() - start:.1f} s)", flush=True)


def start_report(library: str) -> Report:
    from edgellm_ros.backends.cuda.backend import CUDABackend

    backend = CUDABackend(library)
    report = Report(device=backend.device.name, versions={"python": platform.python_version()})
    report.versions |= {**checks.cuda_versions(backend), "compute": backend.device.architecture}
    backend.close()
    for package in ("cuda-bindings", "numpy", "onnxruntime-gpu", "tensorrt"):
        try:
            report.versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return report


def check_kernels(report: Report) -> None:
    """The tests that compare every kernel with its twin, here."""

    def run() -> float:
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "test/backends"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        print(found.stdout[-1500:], flush=True)
        last = found.stdout.strip().splitlines()[-1]
        if found.returncode or "passed" not in last:
            raise checks.CheckError(last)
        return float(last.split(" passed")[0].split()[-1])

    report.check("kernels", "tests passed", "tests", run)


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


def run_all(arguments: argparse.Namespace, report: Report) -> None:
    """Kernels, then all of ``onnxruntime``, whose engines are built meanwhile: building takes no GPU."""
    command = [sys.executable, "-m", "benchmarks.gpu", "models", "--models", str(arguments.models),
               "--lowering", "onnxruntime", "--precision", "fp16", "--shape", *arguments.shape]  # fmt: skip
    with subprocess.Popen(command) as builder:
        check_kernels(report)
        if builder.wait():
            raise checks.CheckError(f"the builder ended with {builder.returncode}")
    run_onnxruntime(arguments, report)


def run_onnxruntime(arguments: argparse.Namespace, report: Report) -> None:
    folder, library = arguments.models, "onnxruntime"
    reference = json.loads(arguments.reference.read_text(encoding="utf-8"))
    if arguments.gguf:
        model = build_smollm2(arguments.gguf, folder, precision="fp16", lowering="onnxruntime")
        report.check("SmolLM2-135M-Instruct fp16", "top-1 agreement with the CPU in float32, 512 positions", "share",
                     lambda: checks.check_agreement(model, library, reference), 0.98)  # fmt: skip
    tiny = build_shape("tiny", folder, precision="fp16", lowering="onnxruntime", capacity=256)
    report.check("tiny fp16", "failures survived", "yes", lambda: float(not checks.check_failures(tiny, library)))
    legacy = build_shape(LEGACY_LAYERS, folder, precision="fp32", lowering="tensorrt_legacy")
    report.check("legacy graph, 4 layers, fp32", "tokens equal to the CPU's", "tokens",
                 lambda: float(checks.check_tokens(legacy, library, reference["random_model_tokens"])))  # fmt: skip
    report.check("legacy graph", "too short a bucket is noticed", "yes",
                 lambda: float(not checks.check_stale_bucket(legacy, library)))  # fmt: skip
    measure_all(arguments, report, library, "onnxruntime")
    run_leaks(arguments, report, tiny, library)


def run_tensorrt(arguments: argparse.Namespace, report: Report) -> None:
    from edgellm_ros.backends.cuda.device import Device
    from edgellm_ros.builder.tensorrt_build import PlanOptions, compile_plan

    library = "tensorrt"
    reference = json.loads(arguments.reference.read_text(encoding="utf-8"))
    options = PlanOptions(library_tactics=not arguments.no_library_tactics)
    holder = Device()
    for directory in sorted(path for path in arguments.models.iterdir() if "tensorrt" in path.name and path.is_dir()):
        start = time.monotonic()
        try:
            compile_plan(directory, options, device=holder)
        except EdgeLLMError as error:
            report.failed.append(f"{directory.name}: {error}")
            print(f"FAILED {directory.name}: {error}", flush=True)
            continue
        seconds = time.monotonic() - start
        report.add(f"plan of {directory.name}", "compile", "s", seconds)
        print(f"plan of {directory.name} in {seconds:.1f} s", flush=True)
        if "fp32" in directory.name and "4layers" in directory.name:
            report.check(directory.name, "tokens equal to the CPU's", "tokens",
                         lambda d=directory: float(  # type: ignore[misc]
                             checks.check_tokens(d, library, reference["random_model_tokens"])))  # fmt: skip
            report.check(directory.name, "too short a bucket is noticed", "yes",
                         lambda d=directory: float(not checks.check_stale_bucket(d, library)))  # type: ignore[misc]  # fmt: skip
            report.check(directory.name, "failures survived", "yes",
                         lambda d=directory: float(not checks.check_failures(d, library)))  # type: ignore[misc]  # fmt: skip
        if not directory.name.startswith("tiny"):
            print_head()
            measure_shape(report, directory.name, directory, library, own_graph=False)
    for directory in arguments.models.glob("tiny*"):
        run_leaks(arguments, report, directory, library)
    holder.close()


def vision_run(arguments: argparse.Namespace) -> VisionRun:
    """What tasks vision-models and vision are about."""
    from edgellm_ros.backends.cuda.backend import CUDABackend

    from .vision import VisionRun

    library, layers = arguments.library or "onnxruntime", arguments.layers
    run = VisionRun(arguments.models, library, lambda: CUDABackend(library))
    if library == "tensorrt":
        run = replace(run, lowering=arguments.lowering, compile_plans=partial(compile_plans, arguments))
    if layers:
        towers = [shape.with_layers(text=1, vision=layers) for shape in run.towers]
        run = replace(run, towers=towers, prompt=run.prompt.with_layers(text=layers, vision=2))
    return run


def compile_plans(arguments: argparse.Namespace, directory: Path) -> object:
    from edgellm_ros.builder.tensorrt_build import PlanOptions, compile_plan

    return compile_plan(directory, PlanOptions(library_tactics=not arguments.no_library_tactics))


def run_images(arguments: argparse.Namespace, report: Report) -> None:
    from .vision import run_vision

    run_vision(vision_run(arguments), report)


def measure_all(arguments: argparse.Namespace, report: Report, library: str, lowering: str) -> None:
    print_head()
    for name in arguments.shape:
        directory = build_shape(name, arguments.models, precision="fp16", lowering=lowering)
        measure_shape(report, name, directory, library, own_graph=True)


def run_leaks(arguments: argparse.Namespace, report: Report, directory: Path, library: str) -> None:
    if not arguments.cycles:
        return

    def run() -> float:
        grown = checks.check_leaks(directory, library, arguments.cycles, arguments.steps)
        print(grown, flush=True)
        return grown["bytes_grown_over_cycles"]

    report.check(directory.name, f"bytes grown over {arguments.cycles} lives, {arguments.steps} steps", "bytes", run)


def main() -> int:
    if sys.argv[1:2] == ["policies"]:
        return policies.main(sys.argv[2:])
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, epilog="'policies --help' tells of policies."
    )
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--models", type=Path, default=Path("benchmarks/.cache/gpu"), help="where engines are built")
    parser.add_argument("--reference", type=Path, default=Path("benchmarks/gpu/reference.json"))
    parser.add_argument("--gguf", type=Path, help="SmolLM2-135M-Instruct, for the check with real weights")
    parser.add_argument("--text", type=Path, default=Path("LICENSE"), help="what the reference is teacher-forced on")
    parser.add_argument("--shape", nargs="*", default=list(TARGETS), choices=list(SHAPES))
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--no-library-tactics", action="store_true", help="TensorRT without cuBLAS and cuDNN")
    parser.add_argument("--lowering", default="tensorrt_legacy", help="of tasks models, vision-models and vision")
    parser.add_argument(
        "--layers", type=int, default=0, help="of task vision; TensorRT 8 compiles whole models for long"
    )
    parser.add_argument("--precision", default="fp32", help="of task models")
    parser.add_argument("--library", choices=["onnxruntime", "tensorrt"], help="of tasks one and vision")
    parser.add_argument("--own-graph", action="store_true", help="of task one: the provider's own recording too")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if arguments.task == "one":
        print(json.dumps(asdict(measure(arguments.models, arguments.library, own_graph=arguments.own_graph))))
        return 0
    if arguments.task == "models":
        for name in arguments.shape:
            capacity = 256 if name == "tiny" else 1024
            build_shape(name, arguments.models, precision=arguments.precision, lowering=arguments.lowering,
                        capacity=capacity)  # fmt: skip
        return 0
    if arguments.task == "vision-models":
        vision_run(arguments).build()
        return 0
    if arguments.task == "reference":
        real = build_smollm2(arguments.gguf, arguments.models, precision="fp32", lowering="onnxruntime")
        random = build_shape(LEGACY_LAYERS, arguments.models, precision="fp32", lowering="onnxruntime")
        checks.write_reference(arguments.reference, real, random, arguments.text.read_text(encoding="utf-8"))
        return 0
    tensorrt = arguments.task == "tensorrt" or (arguments.task == "vision" and arguments.library == "tensorrt")
    report = start_report("tensorrt" if tensorrt else "onnxruntime")
    report.path = arguments.output
    {
        "kernels": lambda a, r: check_kernels(r),
        "onnxruntime": run_onnxruntime,
        "all": run_all,
        "tensorrt": run_tensorrt,
        "vision": run_images,
    }[arguments.task](arguments, report)
    for failure in report.failed:
        print(f"FAILED {failure}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
