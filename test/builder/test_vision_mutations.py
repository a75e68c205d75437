"""Whatever is broken in one place of a tower, the comparison with the reference notices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import vision_engines
from test_family_mutations import uneven
from vision_engines import LOWERINGS, TOLERANCE, checkpoint, distance_of_images
from vision_inputs import FAMILIES

from edgellm_ros.builder import vision_build
from edgellm_ros.builder.huggingface_checkpoint import HuggingFaceCheckpoint
from edgellm_ros.builder.lowerings import lowering as find_lowering
from edgellm_ros.builder.quantize import precision
from edgellm_ros.builder.vision_build import plan_vision, write_vision
from edgellm_ros.builder.vision_families import read_tower
from edgellm_ros.builder.vision_families.layers import Layers
from edgellm_ros.vision import grid_tables

NOTICED = 10 * TOLERANCE
Mutation = Callable[[Any], Any]


def other(**changes: Any) -> Mutation:
    return lambda tower: replace(tower, **changes)


EVERY: dict[str, Mutation] = {
    "another activation": lambda tower: replace(
        tower, activation="gelu" if tower.activation == "quick_gelu" else "quick_gelu"
    ),
    "heads of another size": lambda tower: replace(tower, heads=tower.heads // 2 or 1 if tower.heads % 2 == 0 else 1),
}
OWN: dict[str, dict[str, Mutation]] = {
    "qwen2_5_vl": {
        "smaller windows": other(window=2),
        "larger windows": other(window=6),
        "no windows": other(window=0),
        "no full layer": other(full_layers=()),
        "another full layer": other(full_layers=(2,)),
    },
    "qwen3_vl": {
        "planes in another order": other(deepstack=(2, 0)),
        "a plane from another layer": other(deepstack=(0, 1)),
    },
    "smolvlm": {"another norm epsilon": other(epsilon=0.1)},
    "paligemma": {"another norm epsilon": other(epsilon=0.1)},
    "gemma3": {"another norm epsilon": other(epsilon=0.1)},
    "internvl": {"another norm epsilon": other(epsilon=0.1), "another projector": other(projector_activation="silu")},
}


@pytest.fixture
def broken_distance(tmp_path, monkeypatch):
    """Builds a tower under a mutation, and says how far it is from the reference of the sound checkpoint."""

    def measure(family: str, name: str = "onnxruntime", mutation: Mutation | None = None) -> float:
        opened = HuggingFaceCheckpoint(checkpoint(family))
        tower = read_tower(opened.config)
        plan = plan_vision(opened, find_lowering(name), precision("fp32"), mutation(tower) if mutation else tower)
        assert plan is not None
        write_vision(
            plan, tmp_path / "visual", ("", "", ""), lambda path, content: path.write_bytes(content), lambda count: None
        )
        return distance_of_images(tmp_path / "visual", family)

    return measure


def cases() -> list[Any]:
    found = []
    for family in FAMILIES:
        for name, mutation in {**EVERY, **OWN.get(family, {})}.items():
            place = LOWERINGS[len(found) % len(LOWERINGS)]
            found.append(pytest.param(family, place, mutation, id=f"{family}-{place}-{name.replace(' ', '-')}"))
    return found


@pytest.mark.parametrize(("family", "lowering", "mutation"), cases())
def test_a_broken_tower_is_noticed(broken_distance, family, lowering, mutation):
    assert broken_distance(family, lowering, mutation) > NOTICED


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sound_tower_is_not(broken_distance, family):
    assert broken_distance(family) < TOLERANCE


def tensors_of_a_tower() -> list[Any]:
    found = []
    for family in FAMILIES:
        tower = read_tower(HuggingFaceCheckpoint(checkpoint(family)).config)
        assert tower is not None
        for name in tower.tensors():
            numbers = [int(part) for part in name.split(".") if part.isdigit()]
            if name.endswith("k_proj.bias") or (numbers and numbers[0] not in (1, 3) and "mlp." not in name):
                continue  # one number for all keys of a query changes nothing; one layer stands for all
            found.append(pytest.param(family, name, id=f"{family}-{name}", marks=pytest.mark.slow))
    return found


@pytest.mark.parametrize(("family", "name"), tensors_of_a_tower())
def test_one_tensor_that_is_a_tenth_off_in_places_is_noticed(broken_distance, monkeypatch, family, name):
    honest = vision_build.vision_weights

    def read(opened: Any, tower: Any) -> Any:
        weights = honest(opened, tower)
        weight = weights[name]
        larger = dataclasses.replace(weight, read=lambda start, stop: weight.read(start, stop) * np.float32(1.1))
        return {**weights, name: uneven(weight) if weight.rows > 1 else larger}

    monkeypatch.setattr(vision_build, "vision_weights", read)
    assert broken_distance(family) > NOTICED


@pytest.mark.parametrize("family", ["smolvlm", "internvl"])
def test_squares_of_patches_joined_column_by_column_are_noticed(broken_distance, monkeypatch, family):
    def joined(layers: Layers, x: Any, side: int, block: int, width: int) -> Any:
        count = side // block
        x = layers.reshape(x, 0, count, block, count, block, width)
        x = layers.transpose(x, 0, 1, 3, 4, 2, 5)
        return layers.reshape(x, 0, count * count, block * block * width)

    monkeypatch.setattr(Layers, "gather_blocks", joined)
    assert broken_distance(family) > NOTICED


def swapped_axes(settings: Any, height: int, width: int) -> dict[str, np.ndarray]:
    tables = HONEST["rotation_tables"](settings, height, width)
    return {name: np.concatenate(np.split(table, 2, axis=1)[::-1], axis=1) for name, table in tables.items()}


def one_patch_turned(settings: Any, height: int, width: int) -> dict[str, np.ndarray]:
    tables = HONEST["rotation_tables"](settings, height, width)
    for table in tables.values():
        table[3] = table[2]
    return tables


def one_patch_elsewhere(settings: Any, height: int, width: int) -> dict[str, np.ndarray]:
    tables = HONEST["window_tables"](settings, height, width)
    tables["window_place"][[0, 5]] = tables["window_place"][[5, 0]]
    return tables


def fillers_seen(settings: Any, height: int, width: int) -> dict[str, np.ndarray]:
    tables = HONEST["window_tables"](settings, height, width)
    return {**tables, "window_mask": np.zeros_like(tables["window_mask"])}


def nearest_corner(settings: Any, height: int, width: int) -> dict[str, np.ndarray]:
    tables = HONEST["position_tables"](settings, height, width)
    weights = tables["position_weight"]
    return {**tables, "position_weight": (weights == weights.max(axis=1, keepdims=True)).astype(np.float32)}


def rows_of_the_grid(height: int, width: int, merge: int) -> tuple[np.ndarray, ...]:
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    return rows.reshape(-1), columns.reshape(-1)


HONEST = {name: getattr(grid_tables, name) for name in ("rotation_tables", "window_tables", "position_tables")}
TABLES = {
    "rows and columns swapped": ("rotation_tables", swapped_axes, ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")),
    "one patch turned as its neighbour": ("rotation_tables", one_patch_turned, ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")),
    "one patch in another window": ("window_tables", one_patch_elsewhere, ("qwen2_5_vl",)),
    "places without a patch seen": ("window_tables", fillers_seen, ("qwen2_5_vl",)),
    "positions not interpolated": ("position_tables", nearest_corner, ("qwen3_vl",)),
    "patches row by row": ("patch_places", rows_of_the_grid, ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_broken_table_is_noticed(monkeypatch, case):
    name, broken, families = TABLES[case]
    monkeypatch.setattr(grid_tables, name, broken)
    for family in families:
        assert distance_of_images(vision_engines.engine(family, "onnxruntime") / "visual", family) > NOTICED
