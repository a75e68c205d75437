"""Cameras keep their size: what follows from it is computed once, and planes of a tower keep their order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from level_engines import level_engine
from vision_inputs import FAMILIES

import edgellm_ros.vision.tower as tower_module
from edgellm_ros.backends.base import DataType, TensorSpec
from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.errors import EngineDirectoryError
from edgellm_ros.vision.device_images import DeviceImages
from edgellm_ros.vision.resize import _blocks
from edgellm_ros.vision.resize_taps import taps
from edgellm_ros.vision.runner import VisionRunner
from edgellm_ros.vision.tower import Tower
from edgellm_ros.vision.visual_directory import TowerSettings

pytest.importorskip("cv2")


def frame(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (43, 57, 3), dtype=np.uint8)


@pytest.mark.parametrize("on_device", [False, True], ids=["by the processor", "by kernels"])
@pytest.mark.parametrize("family", ["smolvlm", "qwen2_5_vl", "qwen3_vl", "internvl"])
def test_a_second_frame_of_one_size_computes_no_table(family, on_device, monkeypatch):
    backend = CPUBackend(1)
    runner = VisionRunner.open(level_engine(family, "onnxruntime") / "visual", backend, cache_bytes=0)
    if on_device:
        runner._device = DeviceImages(backend)
    runner.encode(runner.place(frame(0)))
    before = (_blocks.cache_info().misses, taps.cache_info().misses)
    monkeypatch.setattr(tower_module, "grid_tables", lambda *_: pytest.fail("tables of a grid that is known"))
    monkeypatch.setattr("edgellm_ros.vision.device_images.taps", lambda *_: pytest.fail("weights that are known"))
    runner.encode(runner.place(frame(1)))
    assert (_blocks.cache_info().misses, taps.cache_info().misses) == before
    assert runner.metrics.encoded == 2 and FAMILIES[family]
    runner.close()
    backend.close()


@pytest.mark.parametrize("family", ["smolvlm", "qwen2_5_vl", "qwen3_vl"])
def test_more_than_one_call_takes_gives_the_rows_of_one(family, monkeypatch):
    backend = CPUBackend(1)
    tower = VisionRunner.open(level_engine(family, "onnxruntime") / "visual", backend).tower
    settings, grid = tower.settings, None if family == "smolvlm" else (6, 6, 8)
    values = settings.num_channels * settings.temporal_patch_size * settings.patch_size**2
    side = settings.image_size
    shape = (6, settings.num_channels, side, side) if grid is None else (6 * 6 * 8, values)
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.float32)
    whole = tower.encode(pixels, grid)
    positions = settings.tile_positions if grid is None else 6 * 8
    monkeypatch.setattr("edgellm_ros.vision.visual_directory.MOST_POSITIONS", 4 * positions)
    assert settings.images_at_once(positions) == 4
    parts = tower.encode(pixels, grid)
    assert len(parts.planes) == len(whole.planes) == settings.deepstack_planes
    for found, wanted in zip((parts.embeddings, *parts.planes), (whole.embeddings, *whole.planes), strict=True):
        assert np.abs(found.numpy() - wanted.numpy()).max() < 1e-4
    backend.close()


def tower_with(names: list[str], told: int) -> Tower:
    """A tower whose engine gives ``names`` beside its rows, and whose settings tell of ``told`` planes."""
    rows = TensorSpec("image_embeds", DataType.FLOAT32, (-1, -1, 8))
    pixels = TensorSpec("pixel_values", DataType.FLOAT32, (-1, -1, 24))
    engine = SimpleNamespace(
        close=lambda: None,
        inputs={"pixel_values": pixels},
        outputs={"image_embeds": rows, **dict.fromkeys(names, rows)},
    )
    settings = TowerSettings("qwen3_vl", "patches", 8, 3, 2, temporal_patch_size=2, spatial_merge_size=2, head_dim=4,
                             deepstack_planes=told)  # fmt: skip
    directory: Any = SimpleNamespace(tower=settings, graph="visual.onnx")
    backend: Any = SimpleNamespace(open_engine=lambda graph: engine)
    return Tower(directory, backend)


def test_planes_go_by_their_numbers_however_many_there_are():
    names = [f"deepstack_{index}" for index in range(12)]
    assert tower_with(names[::-1], 12).planes == names


@pytest.mark.parametrize(
    ("names", "told"), [(["deepstack_0"], 2), (["deepstack_1"], 1), (["deepstack_0", "deepstack_2"], 2)]
)
def test_planes_that_are_not_those_of_the_settings_are_refused(names, told):
    with pytest.raises(
        EngineDirectoryError, match=f"gives rows of 8 numbers and {len(names)} planes; config.json tells of"
    ):
        tower_with(names, told)
