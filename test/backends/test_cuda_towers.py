"""Image towers on a pretended GPU: the numbers of transformers through both libraries, and requests with images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from level_engines import level_engine
from pretend_gpu import compile_pretended, pretend_backend
from vision_engines import TOLERANCE, engine, reference
from vision_inputs import FAMILIES, GRIDS, IMAGE_SEEDS, pixel_values
from vision_requests import SeededProcessor, check, run

import edgellm_ros.vision.runner as vision_runner
from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.backends.cuda.memory_check import needed_bytes
from edgellm_ros.builder.visual_profiles import visual_profiles
from edgellm_ros.engine_format import open_engine_directory
from edgellm_ros.errors import BackendError
from edgellm_ros.runtime import rank_model
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.vision.runner import VisionRunner
from edgellm_ros.vision.tower import Tower
from edgellm_ros.vision.visual_directory import TowerSettings, open_visual_directory

VERSIONS = {"tensorrt": "10.15.0", "tensorrt_legacy": "8.5.3.1"}
PATHS = ("onnxruntime", *VERSIONS)


def opened(directory: Path, lowering: str) -> CUDABackend:
    """The backend that runs a lowering, with the directory's plans compiled where it takes plans."""
    if lowering == "onnxruntime":
        return pretend_backend()
    compile_pretended(directory, VERSIONS[lowering])
    return pretend_backend("tensorrt", VERSIONS[lowering])


@pytest.mark.parametrize("lowering", PATHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_and_planes_equal_those_of_transformers(family: str, lowering: str) -> None:
    directory = engine(family, lowering)
    backend = opened(directory, lowering)
    tower = Tower(open_visual_directory(directory / "visual"), backend)
    for seed in IMAGE_SEEDS:
        values = pixel_values(family, seed)
        grid = GRIDS[seed] if FAMILIES[family].grids else None
        encoded = tower.encode(values if grid else values[None], grid)
        found = [encoded.embeddings, *encoded.planes]
        for rows, wanted in zip(found, reference(family)["embeddings"][seed], strict=True):
            assert np.abs(rows.numpy().reshape(-1) - wanted).max() < TOLERANCE
    backend.close()


def test_the_caches_of_a_language_model_keep_their_order_behind_a_tower() -> None:
    directory = engine("smolvlm", "tensorrt_legacy")
    backend = opened(directory, "tensorrt_legacy")
    model = backend.open_engine(directory)
    before = backend.allocate_kv_cache(model.cache_layout, 1, 16).order
    Tower(open_visual_directory(directory / "visual"), backend)
    assert backend.allocate_kv_cache(model.cache_layout, 1, 16).order is before
    backend.close()


def test_memory_counts_the_tower() -> None:
    directory = open_engine_directory(engine("smolvlm", "onnxruntime"))
    files = directory.manifest.files
    wanted = files["visual/visual.onnx"] + files["visual/visual.onnx.data"]
    assert needed_bytes(directory, "onnxruntime")["images"] == wanted


def test_an_image_beyond_the_longest_prompt_says_what_the_plan_takes() -> None:
    directory = engine("qwen2_vl", "tensorrt_legacy")
    backend = opened(directory, "tensorrt_legacy")
    tower = Tower(open_visual_directory(directory / "visual"), backend)
    values = pixel_values("qwen2_vl", 0).shape[1]
    with pytest.raises(BackendError, match=r"'pixel_values' was run with shape \(1, 800, .*build it for larger limits"):
        tower.encode(np.zeros((800, values), np.float32), (1, 20, 40))
    backend.close()


TOWER = TowerSettings("qwen2_5_vl", "patches", 32, 3, 14, temporal_patch_size=2, spatial_merge_size=2, head_dim=16,
                      window_patches=8)  # fmt: skip


@pytest.mark.parametrize("patches", [4, 64, 260, 1024])
def test_every_frame_and_group_of_frames_lies_in_a_profile(patches: int) -> None:
    profiles = visual_profiles(TOWER, 256)
    count = TOWER.images_at_once(patches)
    for height in range(2, patches // 2 + 1, 2):
        width = patches // height // 2 * 2
        windows = -(-height // 8) * -(-width // 8)
        call = {"images": count, "patches": height * width, "windows": windows, "places": 64 * windows}
        assert any(all(low <= call[name] <= high for name, (low, _, high) in sizes.items()) for sizes in profiles), call


def test_tiles_share_calls_up_to_the_largest_number_of_patches() -> None:
    tiles = TowerSettings("smolvlm", "tiles", 32, 3, 16, image_size=512, tokens_per_tile=64)
    assert visual_profiles(tiles, 1024) == [{"images": (1, 4, 4)}, {"images": (1, 1, 1)}]
    large = TowerSettings("gemma3", "tiles", 32, 3, 14, image_size=896, tokens_per_tile=256)
    assert visual_profiles(large, 1024) == [{"images": (1, 1, 1)}]


@pytest.mark.parametrize("lowering", PATHS)
@pytest.mark.parametrize("family", ["smolvlm", "qwen3_vl"])
def test_prompts_with_images_answer_as_transformers_and_rows_stay_on_the_device(
    family: str, lowering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vision_runner, "open_processor", lambda path: SeededProcessor(family))
    monkeypatch.setattr(rank_model, "open_backend", lambda *_: pytest.fail("the tower was opened elsewhere"))
    directory = engine(family, lowering)
    rows = reference(family)["answers"]
    with LLMInferenceRuntime(directory, backend=opened(directory, lowering)) as runtime:
        check(run(runtime, rows), rows)


def test_a_tower_without_a_plan_runs_beside_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision_runner, "open_processor", lambda path: SeededProcessor("smolvlm"))
    directory = engine("smolvlm", "tensorrt_legacy")
    rows = reference("smolvlm")["answers"]
    backend = opened(directory, "tensorrt_legacy")
    (directory / "visual" / "visual.engine").unlink()
    with LLMInferenceRuntime(directory, backend=backend) as runtime:
        check(run(runtime, rows), rows)


@pytest.mark.parametrize("lowering", PATHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_frame_goes_to_the_gpu_as_it_is_and_is_prepared_there(
    family: str, lowering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = np.random.default_rng(5).integers(0, 256, (40, 52, 3), dtype=np.uint8)
    directory = level_engine(family, lowering)
    host = VisionRunner.open(directory / "visual", CPUBackend(1))
    wanted = host.encode(host.place(frame))
    monkeypatch.setattr(
        "edgellm_ros.vision.image_plan.resize_lines", lambda *_, **__: pytest.fail("resized on the CPU")
    )
    backend = opened(directory, lowering)
    runner = VisionRunner.open(directory / "visual", backend)
    item = runner.place(frame)
    assert item.inputs is None and item.token_count == wanted.embeddings.shape[0]
    found = runner.encode(item)
    for one, other in zip((found.embeddings, *found.planes), (wanted.embeddings, *wanted.planes), strict=True):
        assert np.abs(one.numpy() - other.numpy()).max() < 0.02  # some levels differ by one
    assert runner.encode(runner.place(frame)) is found
    runner.close()
    backend.close()
    host.close()
