"""Images on a GPU: a tower in half precision, the choice of tokens, and what that spares of a prefill."""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgellm_ros.backends.base import Backend, DataType
from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.engine_format import BuilderLimits
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.request import (
    LLMGenerationRequest,
    LLMGenerationResponse,
    Message,
    Request,
    SamplingParameters,
)
from edgellm_ros.vision.pruner import VisualPrunerConfig, prune_prompt
from edgellm_ros.vision.runner import VisionRunner

from ..ours_vision import cosines, picture
from ..vision_shapes import QWEN25_VL, SMOLVLM, VisionShape

LIMITS = BuilderLimits(1, 2304, 2560)
SEED = 11
RATIO = 0.5
ROUNDS = 7
TOWERS = (SMOLVLM.with_layers(text=1), QWEN25_VL.with_layers(text=1))
PROMPT = QWEN25_VL.with_layers(vision=2)  # whatever the tower: what it gives is known when the clock starts
MOST_CHOICE = 1.0  # ms of the choice of tokens
LEAST_SPEEDUP = 1.6  # of the prefill
LEAST_COSINE = 0.999


@dataclass(frozen=True)
class VisionRun:
    """Which shapes are measured; ``towers`` are compared with float32 on the CPU, ``prompt`` is prefilled.

    ``open_backend`` opens the GPU, ``compile_plans`` makes the plans of a directory where the library has such.
    """

    folder: Path
    lowering: str
    open_backend: Callable[[], CUDABackend]
    compile_plans: Callable[[Path], object] | None = None
    towers: Sequence[VisionShape] = TOWERS
    prompt: VisionShape = PROMPT
    precision: str = "fp16"
    limits: BuilderLimits = LIMITS
    choice: tuple[int, int] = (2000, 2048)  # image tokens, and their width
    rounds: int = ROUNDS

    def build(self) -> None:
        """Everything that takes no GPU: directories of the shapes, and what towers are compared with."""
        for shape in self.towers:
            self.reference(shape)
        for shape in (*self.towers, self.prompt):
            self._built(shape, self.precision, self.lowering)

    def directory(self, shape: VisionShape, precision: str, lowering: str) -> Path:
        """An engine directory of random weights, with its plans."""
        output = self._built(shape, precision, lowering)
        if lowering == self.lowering and self.compile_plans is not None:
            start = time.monotonic()
            self.compile_plans(output)
            print(f"plans of {output.name} stand after {time.monotonic() - start:.1f} s", flush=True)
        return output

    def _built(self, shape: VisionShape, precision: str, lowering: str) -> Path:
        output = self.folder / f"{shape.label}-{lowering}-{precision}"
        if not output.is_dir():
            from edgellm_ros.builder.build import build_engine  # needs onnx, which a machine that only runs may lack

            start = time.monotonic()
            source = shape.write(self.folder / f"{shape.label}-source")
            build_engine(source, output, precision=precision, limits=self.limits, lowering=lowering, random_seed=SEED)
            print(f"built {output.name} in {time.monotonic() - start:.1f} s", flush=True)
        return output

    def reference(self, shape: VisionShape) -> np.ndarray:
        """Rows of the shape's picture in float32 on the CPU; kept in a file, for a machine without ONNX Runtime."""
        path = self.folder / f"{shape.label}-reference.npy"
        if not path.is_file():
            start = time.monotonic()
            host: Backend = CPUBackend()
            runner = VisionRunner.open(self._built(shape, "fp32", "onnxruntime") / "visual", host, cache_bytes=0)
            np.save(path, runner.encode(runner.place(picture(0, *shape.picture))).embeddings.numpy())
            runner.close()
            host.close()
            print(f"{path.name} stands after {time.monotonic() - start:.1f} s", flush=True)
        return np.asarray(np.load(path))


def measure_choice(run: VisionRun) -> list[float]:
    """Milliseconds of one choice each, the wait for it included."""
    tokens, width = run.choice
    backend = run.open_backend()
    rows = np.random.default_rng(1).standard_normal((tokens + 48, width), dtype=np.float32)
    embeddings = backend.allocate(rows.shape, DataType.FLOAT32)
    embeddings.write(rows)
    config = VisualPrunerConfig(True, reduction_ratio=RATIO)
    seconds = []
    for _ in range(run.rounds + 1):
        backend.synchronize()
        start = time.perf_counter()
        prune_prompt(backend, embeddings, [(24, 24 + tokens)], config)
        seconds.append(time.perf_counter() - start)
    backend.close()
    return [1e3 * value for value in seconds[1:]]


def measure_tower(run: VisionRun, shape: VisionShape) -> tuple[dict[str, list[float]], np.ndarray]:
    """Device milliseconds of preparing a frame and of the tower, and the tower's rows."""
    directory = run.directory(shape, run.precision, run.lowering)
    backend = run.open_backend()
    runner = VisionRunner.open(directory / "visual", backend, cache_bytes=0)
    found: dict[str, list[float]] = {"prepare_ms": [], "tower_ms": []}
    frame = picture(0, *shape.picture)
    for index in range(run.rounds + 1):
        item = runner.place(frame)
        with backend.device.timing() as preparing:
            pixels = runner.pixels(item)
        with backend.device.timing() as encoding:
            encoded = runner.tower.encode(pixels, item.grid)
        if index:
            found["prepare_ms"].append(1e3 * preparing[0])
            found["tower_ms"].append(1e3 * encoding[0])
    rows = encoded.embeddings.numpy()
    runner.close()
    backend.close()
    return found, rows


def measure_prefill(run: VisionRun) -> dict[str, list[float]]:
    """Milliseconds to the first token of a prompt whose image is known, whole and pruned in turns."""
    directory = run.directory(run.prompt, run.precision, run.lowering)
    found: dict[str, list[float]] = {"whole_ms": [], "pruned_ms": [], "tokens": [], "left_out": []}
    frame = picture(0, *run.prompt.picture)
    backend = run.open_backend()
    with LLMInferenceRuntime(directory, backend=backend, prefill_chunk=run.limits.max_input_len) as runtime:
        for index in range(run.rounds + 1):
            for name, config in (
                ("whole_ms", VisualPrunerConfig(False)),
                ("pruned_ms", VisualPrunerConfig(True, reduction_ratio=RATIO)),
            ):
                runtime.rank.set_visual_pruner_config(config)
                seconds = _first_token(runtime, frame)
                if index:
                    found[name].append(1e3 * seconds)
        counts = runtime.rank.get_multimodal_metrics()
    found["tokens"] = [counts.total_image_tokens / (2 * (run.rounds + 1))]
    found["left_out"] = [counts.pruned_image_tokens / (run.rounds + 1)]
    return found


def _first_token(runtime: Any, frame: np.ndarray) -> float:
    request = LLMGenerationRequest(
        [Request((Message.of("user", frame, "What is this?"),), ignore_eos=True)],
        sampling=SamplingParameters(temperature=0.0),
        max_generate_length=1,
    )
    response = LLMGenerationResponse()
    if not runtime.handle_request(request, response):
        raise RuntimeError(f"the runtime refused the request: {runtime.last_refusal}")
    times = response.times[0]
    return float(times.first_token - times.prefill_start)


def run_vision(run: VisionRun, report: Any) -> None:
    """All of it, as rows of the report; a figure that misses its target counts as failed, and so does a part.

    No part's failure costs the others their figures.
    """

    def add(case: str, metric: str, unit: str, values: list[float], least: float = 0.0, most: float = 1e30) -> None:
        value = statistics.median(values)
        report.add(case, metric, unit, value, values)
        print(f"{case}: {metric} = {value:.4g} {unit}", flush=True)
        if not least <= value <= most:
            report.failed.append(f"{case}: {metric} is {value:.4g} {unit}; want {least:g} to {most:g}")

    label = f"{run.lowering} {run.precision}"

    def choice() -> None:
        tokens, width = run.choice
        add(f"pruner, {tokens} x {width}", "choice of tokens", "ms", measure_choice(run), most=MOST_CHOICE)

    def prefill() -> None:
        found = measure_prefill(run)
        case = f"prefill of {run.prompt.label}, {label}, {found['tokens'][0]:.0f} image tokens"
        add(case, "image tokens left out", "tokens", found["left_out"])
        add(case, "whole", "ms", found["whole_ms"])
        add(case, f"pruned by {RATIO}", "ms", found["pruned_ms"])
        ratios = [whole / pruned for whole, pruned in zip(found["whole_ms"], found["pruned_ms"], strict=True)]
        add(case, "whole / pruned", "x", ratios, least=LEAST_SPEEDUP)

    def tower(shape: VisionShape) -> None:
        case = f"tower of {shape.label}, {label}, {shape.picture[1]} x {shape.picture[0]}"
        found, rows = measure_tower(run, shape)
        add(case, "preparing a frame", "ms", found["prepare_ms"])
        add(case, "tower", "ms", found["tower_ms"])
        near = cosines(rows, run.reference(shape))
        add(case, "smallest cosine to float32 on the CPU", "cosine", [float(near.min())], least=LEAST_COSINE)

    for part in (choice, prefill, *(partial(tower, shape) for shape in run.towers)):
        try:
            part()
        except Exception as error:  # a machine is lent for minutes: what the other parts can tell is wanted
            name = getattr(part, "func", part).__name__
            report.failed.append(f"{name}: {type(error).__name__}: {error}")
            traceback.print_exc()
