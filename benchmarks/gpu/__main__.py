"""``python -m benchmarks.gpu``: build, check against the CPU and measure on an NVIDIA GPU."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from edgellm_ros.errors import EdgeLLMError

from . import checks, policies
from .measure import measure
from .models import SHAPES, build_shape, build_smollm2
from .report import Report, start_report
from .step_table import TARGETS, measure_shape, print_head

if TYPE_CHECKING:
    from .vision import VisionRun

TASKS = ["reference", "models", "kernels", "onnxruntime", "all", "tensorrt", "vision-models", "vision", "one"]
LEGACY_LAYERS = "SmolLM2-135M, 4 layers"


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
