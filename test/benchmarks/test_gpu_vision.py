"""What ``benchmarks.gpu vision`` would measure, at tiny size on a pretended GPU."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from level_engines import processor_settings
from pretend_gpu import compile_pretended, pretend_backend
from vision_engines import FOLDER

from benchmarks.gpu.__main__ import vision_run
from benchmarks.gpu.vision import VisionRun, run_vision
from benchmarks.vision_shapes import QWEN25_VL, SMOLVLM, VisionShape
from edgellm_ros.builder.vision_families import read_tower
from edgellm_ros.engine_format import BuilderLimits

pytest.importorskip("cv2")


class Report:
    """Rows by metric."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[float, list[float]]] = {}
        self.failed: list[str] = []

    def add(self, case: str, metric: str, unit: str, ours: float, runs: list[float]) -> None:
        self.rows[f"{case}: {metric}"] = (ours, runs)


def tiny(family: str) -> VisionShape:
    config = json.loads((FOLDER / family / "config.json").read_text(encoding="utf-8"))
    return VisionShape(family, config, {**processor_settings(family), "max_pixels": 4096}, (40, 52))


@pytest.mark.todays_graphs
@pytest.mark.parametrize("library", ["onnxruntime", "tensorrt"])
def test_towers_choice_and_prefill_are_measured(library: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"lowering": "onnxruntime", "open_backend": pretend_backend}
    if library == "tensorrt":
        options = {
            "lowering": "tensorrt_legacy",
            "open_backend": lambda: pretend_backend("tensorrt"),
            "compile_plans": compile_pretended,
        }
    run = VisionRun(
        tmp_path, towers=[tiny("qwen2_5_vl")], prompt=tiny("qwen2_5_vl"), precision="fp32",
        limits=BuilderLimits(1, 160, 192), choice=(40, 16), rounds=2, **options,
    )  # fmt: skip
    report = Report()
    run_vision(run, report)
    by_metric = {name.rsplit(": ", 1)[1]: row for name, row in report.rows.items()}
    assert by_metric["smallest cosine to float32 on the CPU"][0] > 0.9999
    assert all(len(by_metric[name][1]) == 2 for name in ("choice of tokens", "preparing a frame", "tower", "whole"))
    assert "whole / pruned" in by_metric and "pruned by 0.5" in by_metric
    assert by_metric["image tokens left out"][0] == 31 and any(
        ", 63 image tokens: whole" in name for name in report.rows
    )
    assert not [failure for failure in report.failed if "cosine" in failure or "Error" in failure]


@pytest.mark.todays_graphs
def test_a_part_that_fails_costs_the_others_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = tiny("qwen2_5_vl")
    run = VisionRun(
        tmp_path, "onnxruntime", pretend_backend, towers=[shape], prompt=shape, precision="fp32",
        limits=BuilderLimits(1, 160, 192), rounds=1,
    )  # fmt: skip
    run.build()
    monkeypatch.setattr("benchmarks.gpu.vision.measure_choice", lambda run: [][0])
    monkeypatch.setattr("benchmarks.gpu.vision.CPUBackend", lambda: pytest.fail("it has been compared with already"))
    monkeypatch.setattr("edgellm_ros.builder.build.build_engine", lambda *_, **__: pytest.fail("it stands already"))
    report = Report()
    run_vision(run, report)
    assert [failure for failure in report.failed if "Error" in failure] == [
        "choice: IndexError: list index out of range"
    ]
    metrics = {name.rsplit(": ", 1)[1] for name in report.rows}
    assert {"whole", "tower", "smallest cosine to float32 on the CPU"} < metrics


@pytest.mark.parametrize("library", ["onnxruntime", "tensorrt"])
def test_layers_cut_every_shape_and_plans_are_compiled_for_tensorrt_alone(library: str, tmp_path: Path) -> None:
    run = vision_run(Namespace(models=tmp_path, library=library, layers=3, lowering="tensorrt_legacy"))
    assert [shape.label for shape in run.towers] == ["SmolVLM-256M-1t-3v", "Qwen2.5-VL-3B-1t-3v"]
    assert run.prompt.label == "Qwen2.5-VL-3B-3t-2v"
    assert (run.compile_plans is not None, run.lowering) == {
        "onnxruntime": (False, "onnxruntime"),
        "tensorrt": (True, "tensorrt_legacy"),
    }[library]


@pytest.mark.parametrize(
    "shape", [SMOLVLM.with_layers(2, 3), QWEN25_VL.with_layers(2, 9)], ids=lambda shape: shape.label
)
def test_shapes_are_those_of_towers_that_are_built(shape: VisionShape, tmp_path: Path) -> None:
    config = json.loads((shape.write(tmp_path) / "config.json").read_text(encoding="utf-8"))
    tower = read_tower(config)
    assert tower is not None and tower.settings()["hidden_size"] in (576, 2048)
    assert shape.label.endswith("v") and "preprocessor_config.json" in {path.name for path in tmp_path.iterdir()}
