"""Towers that take pixels as cameras give them: what a processor does to them is in the first product."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from level_engines import MEAN, STD, level_checkpoint, level_engine
from vision_engines import LIMITS, LOWERINGS
from vision_inputs import FAMILIES

from edgellm_ros.backends.base import DataType
from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.vision_families.levels import Normalisation, folded
from edgellm_ros.builder.weight_views import constant_weight
from edgellm_ros.errors import EngineDirectoryError
from edgellm_ros.vision.processor import open_processor
from edgellm_ros.vision.tower import Tower
from edgellm_ros.vision.visual_directory import open_visual_directory

pytest.importorskip("cv2")

FRAME = np.random.default_rng(5).integers(0, 256, (40, 52, 3), dtype=np.uint8)


def rows_of(visual: Path, *, normalise: bool | None = None) -> np.ndarray:
    """The tower's rows for the frame, processed as its directory or ``normalise`` says."""
    backend = CPUBackend(1)
    done = open_processor(visual, normalise=normalise).process([FRAME])
    tower = Tower(open_visual_directory(visual), backend)
    encoded = tower.encode(done.inputs["pixel_values"], None if done.grids is None else tuple(done.grids[0].tolist()))
    found = np.concatenate([rows.numpy() for rows in (encoded.embeddings, *encoded.planes)])
    backend.close()
    return found


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_levels_give_the_rows_of_normalised_pixels(family, lowering, tmp_path, monkeypatch):
    visual = level_engine(family, lowering) / "visual"
    assert open_visual_directory(visual).tower.pixels == "levels"
    dtype = CPUBackend(1).open_engine(visual / "visual.onnx").inputs["pixel_values"].dtype
    assert dtype is (DataType.FLOAT32 if lowering == "tensorrt_legacy" else DataType.UINT8)
    monkeypatch.setattr("edgellm_ros.builder.vision_build.read_normalisation", lambda *_: None)
    plain = build_engine(level_checkpoint(family), tmp_path / "engine", lowering=lowering, limits=LIMITS) / "visual"
    wanted = rows_of(plain)
    assert open_visual_directory(plain).tower.pixels == ""
    assert np.abs(rows_of(visual) - wanted).max() < 2e-5 * max(1, np.abs(wanted).max())


@pytest.mark.parametrize("family", ["smolvlm", "qwen2_vl", "internvl"])
def test_half_precision_errs_by_as_little_as_with_normalised_pixels(family, tmp_path, monkeypatch):
    wanted = rows_of(level_engine(family, "onnxruntime") / "visual")
    levels = rows_of(level_engine(family, "tensorrt_legacy", "fp16") / "visual")
    monkeypatch.setattr("edgellm_ros.builder.vision_build.read_normalisation", lambda *_: None)
    options = {"lowering": "tensorrt_legacy", "precision": "fp16", "limits": LIMITS}
    plain = rows_of(build_engine(level_checkpoint(family), tmp_path / "engine", **options) / "visual")
    errors = [float(np.sqrt(np.square(found - wanted).mean())) for found in (levels, plain)]
    assert errors[0] < 1.5 * errors[1]


# of operators of opset 23 that a tower might use, those whose CUDA kernel is registered for an older opset alone
LEFT_TO_THE_CPU = {"ConstantOfShape", "Cos", "DequantizeLinear", "Flatten", "Pad", "QuantizeLinear", "Sin", "Size"}


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in ("gemma3", "paligemma")])
def test_no_node_of_half_precision_is_one_that_the_cuda_provider_leaves_to_the_cpu(family):
    graph = onnx.load(level_engine(family, "onnxruntime", "fp16") / "visual" / "visual.onnx", load_external_data=False)
    assert not {node.op_type for node in graph.graph.node} & LEFT_TO_THE_CPU


@pytest.mark.parametrize("element", ["float32", "float16", "bfloat16"])
def test_the_offset_makes_good_for_rounded_weights_at_the_mean(element):
    random = np.random.default_rng(3)
    kernel = constant_weight("kernel", random.standard_normal((5, 3, 4, 4)).astype(np.float32))
    bias = constant_weight("bias", random.standard_normal(5).astype(np.float32))
    rule = Normalisation(1 / 255, tuple(MEAN), tuple(STD))
    matrix, offset = folded(kernel, bias, rule, element)
    values = matrix.read(0, 5)
    if element == "float16":
        values = values.astype(np.float16).astype(np.float64)
    elif element == "bfloat16":
        bits = values.view(np.uint32)
        values = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32).astype(np.float64)
    mean = np.repeat(np.array(MEAN) * 255 / 128 - 1, 16)
    assert np.abs(values @ mean + offset.read(0, 5) - bias.read(0, 5)).max() < 1e-5


@pytest.mark.parametrize("change", [
    {"image_std": [0.5, 0.0, 0.5]}, {"do_rescale": False}, {"image_mean": None}, {"rescale_factor": 0},
    {"rescale_factor": 1e38},
], ids=str)  # fmt: skip
def test_a_processor_that_the_runtime_refuses_changes_no_weights(change, tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for path in level_checkpoint("smolvlm").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    built = build_engine(folder, tmp_path / "engine", limits=LIMITS)
    assert open_visual_directory(built / "visual").tower.pixels == ""


@pytest.mark.parametrize("content", [
    b"", b"[]", b'"x"', b"null", b'{"a', b"[" * 200_000, b'{"a":' * 100_000, b'{"\xff": 1}',
    b'{"patch_size": ' + b"9" * 10_000 + b"}", "{}".encode("utf-16"),
], ids=lambda content: repr(content[:12]))  # fmt: skip
def test_a_processor_s_file_of_any_content_is_refused_in_a_sentence(content, tmp_path):
    folder = tmp_path / "checkpoint"
    shutil.copytree(level_checkpoint("qwen2_5_vl"), folder)
    (folder / "preprocessor_config.json").write_bytes(content)
    built = build_engine(folder, tmp_path / "engine", limits=LIMITS)
    with pytest.raises(EngineDirectoryError, match=r"preprocessor_config\.json"):
        open_processor(built / "visual")
