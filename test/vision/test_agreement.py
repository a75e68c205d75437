"""A processor whose pixels or counts are not those of its tower is refused when it is loaded, not at a prompt."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from level_engines import level_engine, processor_settings
from vision_inputs import FAMILIES

from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.builder.vision_families import read_tower
from edgellm_ros.errors import CheckpointError, EngineDirectoryError
from edgellm_ros.vision.agreement import check_fit, mrope_rule
from edgellm_ros.vision.processor import Processor, open_processor
from edgellm_ros.vision.runner import VisionRunner
from edgellm_ros.vision.visual_directory import TowerSettings, open_visual_directory

pytest.importorskip("cv2")

FOLDER = os.environ.get("EDGELLM_HUB_CONFIGS", "")


def processor(family: str, folder: Path, tokens: int = 9, **changes: object) -> Processor:
    """That of the family's tiny tower, with changes."""
    config = {**FAMILIES[family].config, "model_type": family, "tower": {"pixels": "levels"}}
    names = {"image_seq_len": tokens, "image_seq_length": tokens}
    contents = {
        "config.json": config,
        "preprocessor_config.json": {**processor_settings(family), **changes},
        "processor_config.json": names,
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content), "utf-8")
    return open_processor(folder)


def load(family: str, found: Processor) -> None:
    backend = CPUBackend(1)
    try:
        VisionRunner(open_visual_directory(level_engine(family, "onnxruntime") / "visual"), backend, processor=found)
    finally:
        backend.close()


@pytest.mark.parametrize("family", ["smolvlm", "qwen2_5_vl", "qwen3_vl", "internvl", "paligemma", "gemma3"])
def test_the_processor_of_a_checkpoint_fits_its_tower(family, tmp_path):
    load(family, processor(family, tmp_path))


@pytest.mark.skipif(not FOLDER, reason="EDGELLM_HUB_CONFIGS names no folder of published configurations")
def test_published_processors_fit_the_towers_of_their_configurations():
    fitting = []
    for path in sorted(Path(FOLDER).glob("*/config.json")):
        config = json.loads(path.read_text(encoding="utf-8"))
        if (
            not isinstance(config.get("vision_config"), dict)
            or not (path.parent / "preprocessor_config.json").is_file()
        ):
            continue
        try:
            tower = read_tower(config)
        except CheckpointError:
            continue  # refused by name, which is a test of the builder
        if tower is None:
            continue
        directory: Any = SimpleNamespace(tower=TowerSettings(**tower.settings()), config=config, path=path.parent)
        check_fit(open_processor(path.parent), directory, (480, 640))
        mrope_rule(directory)
        fitting.append(path.parent.name)
    assert len(fitting) > 5, fitting


@pytest.mark.parametrize(("family", "changes"), [
    ("smolvlm", {"max_image_size": {"longest_edge": 16}}),
    ("smolvlm", {"tokens": 8}),
    ("qwen2_5_vl", {"patch_size": 4}),
    ("qwen2_5_vl", {"temporal_patch_size": 1}),
    ("qwen3_vl", {"merge_size": 1}),
    ("internvl", {"size": {"height": 32, "width": 32}}),
    ("internvl", {"tokens": 16}),
    ("paligemma", {"image_seq_length": 16}),
    ("gemma3", {"size": {"height": 48, "width": 24}}),
    ("qwen3_vl", {"min_pixels": 1 << 30, "max_pixels": 1 << 31}),
], ids=str)  # fmt: skip
def test_one_that_does_not_is_refused_with_the_numbers(family, changes, tmp_path):
    with pytest.raises(EngineDirectoryError, match=r"preprocessor_config.json: an image .* becomes .* tokens"):
        load(family, processor(family, tmp_path, **changes))
