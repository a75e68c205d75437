"""Tiny vision-language checkpoints of every family, their towers, and how far a tower is from the reference."""

from __future__ import annotations

import atexit
import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from vision_inputs import FAMILIES, GRIDS, IMAGE_SEEDS, VOCABULARY, pixel_values

from edgellm_ros.backends.base import DataType
from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_vision import image_template, image_tokens
from edgellm_ros.builder.random_weights import tiny_tokenizer_files
from edgellm_ros.engine_format import BuilderLimits
from edgellm_ros.vision.grid_tables import grid_tables
from edgellm_ros.vision.visual_directory import open_visual_directory

FOLDER = Path(__file__).resolve().parent.parent / "reference" / "vision_families"
LIMITS = BuilderLimits(max_batch_size=4, max_input_len=144, max_kv_cache_capacity=176)
TOLERANCE = 1e-4  # of numbers that are given to five digits
LOWERINGS = ("onnxruntime", "tensorrt", "tensorrt_legacy")

_folder = TemporaryDirectory(prefix="edgellm-vision-")
atexit.register(_folder.cleanup)


@cache
def reference(family: str) -> dict[str, Any]:
    """What transformers gave."""
    content: dict[str, Any] = json.loads((FOLDER / family / "reference.json").read_text(encoding="utf-8"))
    return content


@cache
def checkpoint(family: str) -> Path:
    """The checkpoint with a tokenizer beside it, which the reference leaves out."""
    place = Path(_folder.name) / family / "checkpoint"
    shutil.copytree(FOLDER / family, place)
    config = json.loads((place / "config.json").read_text(encoding="utf-8"))
    control = image_tokens(config, VOCABULARY)
    for name, content in tiny_tokenizer_files(VOCABULARY, control, image_template(config)).items():
        (place / name).write_bytes(content)
    return place


@cache
def engine(family: str, lowering: str, precision: str = "fp32") -> Path:
    """The engine directory of one family under one lowering, its tower at a precision."""
    output = Path(_folder.name) / family / f"{lowering}-{precision}"
    return build_engine(checkpoint(family), output, lowering=lowering, limits=LIMITS, vision_precision=precision)


def tower_outputs(
    visual: Path, family: str, seeds: tuple[int, ...], kind: type[CPUBackend] = CPUBackend
) -> list[list[np.ndarray]]:
    """For each image its embeddings and planes [tokens,width], all in one call: they must be of one grid."""
    directory = open_visual_directory(visual)
    backend = kind(1)
    tower = backend.open_engine(directory.graph)
    values = {"pixel_values": np.stack([pixel_values(family, seed) for seed in seeds])}
    if FAMILIES[family].grids:
        values |= grid_tables(directory.tower, *GRIDS[seeds[0]][1:])
        tokens = GRIDS[seeds[0]][1] * GRIDS[seeds[0]][2] // directory.tower.spatial_merge_size**2
    else:
        tokens = directory.tower.tokens_per_tile
    shapes: dict[str, tuple[int, ...]] = {}
    assert set(values) == set(tower.inputs)
    for name, array in values.items():
        tensor = backend.allocate(array.shape, tower.inputs[name].dtype)
        tensor.write(array)
        tower.bind(name, tensor)
        shapes[name] = array.shape
    outputs = {}
    for name in tower.outputs:
        shapes[name] = (len(seeds), tokens, directory.tower.hidden_size)
        outputs[name] = backend.allocate(shapes[name], DataType.FLOAT32)
        tower.bind(name, outputs[name])
    tower.run(shapes)
    names = sorted(outputs, key=lambda name: ("image" not in name, name))
    found = [[outputs[name].numpy()[index].copy() for name in names] for index in range(len(seeds))]
    backend.close()
    return found


def distance_of_images(visual: Path, family: str, kind: type[CPUBackend] = CPUBackend) -> float:
    """The largest difference of any number of any image from what transformers gave."""
    worst = 0.0
    for seed in IMAGE_SEEDS:
        (found,) = tower_outputs(visual, family, (seed,), kind)
        wanted = reference(family)["embeddings"][seed]
        assert len(found) == len(wanted)
        worst = max(worst, *(float(np.abs(a.reshape(-1) - b).max()) for a, b in zip(found, wanted, strict=True)))
    return worst
