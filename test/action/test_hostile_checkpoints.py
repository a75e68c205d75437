"""Policy checkpoints whose files say anything at all: read, or refused in one sentence, before a weight is read."""

from __future__ import annotations

import copy
import json
import random
import shutil
from contextlib import closing

import numpy as np
import pytest
from openpi_checkpoints import write_openpi
from policy_checkpoints import REFERENCE
from safetensors.numpy import load_file, save_file

from edgellm_ros.builder.build_plan import plan_build
from edgellm_ros.builder.checkpoint import open_checkpoint
from edgellm_ros.builder.policy_settings import PolicySettings
from edgellm_ros.errors import CheckpointError, EdgeLLMError

FAMILIES = ("smolvla", "pi0", "pi05", "groot", "alpamayo", "openpi")
ODD = [
    None, True, False, 0, -1, 1, 2, 0.5, 1e308, float("nan"), float("inf"), 10**30, "", "x", "../x", "x" * 300, [], [1],
    [[]], {}, {"a": 1}, ["x"], [None] * 3, [-1.0, 2.0],
]  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path):
    def make(family):
        if family == "openpi":
            return write_openpi(tmp_path / "openpi", "pi05", "libero")
        return shutil.copytree(REFERENCE / family, tmp_path / family)

    return make


def plan(folder):
    settings = PolicySettings(embodiment="libero_sim" if (folder / "embodiment_id.json").exists() else "")
    with closing(open_checkpoint(folder)) as opened:
        return plan_build(opened, precision="fp32", limits=None, lowering="onnxruntime", policy_settings=settings)


def places(value, path=()):
    """The way to everything in a JSON value."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from places(entry, (*path, key))


def changed(value, path, odd):
    """A copy with ``odd`` at a place, or without the place where that is an Ellipsis."""
    whole = [copy.deepcopy(value)]
    holder, path = whole, (0, *path)
    for key in path[:-1]:
        holder = holder[key]
    if odd is ...:
        holder.pop(path[-1])
    else:
        holder[path[-1]] = odd
    return whole[0] if whole else None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_whatever_stands_in_a_file_is_read_or_refused(checkpoint, family, seed):
    random_, folder = random.Random(f"{family} {seed}"), checkpoint(family)
    skipped = ("tokenizer.json", "reference.json", "model.safetensors.index.json")
    files = sorted(path for path in folder.rglob("*.json") if path.name not in skipped)
    sound = {path: path.read_text() for path in files}
    assert plan(folder).policy is not None
    for _ in range(30 if seed else 12):
        path = random_.choice(files)
        content = json.loads(sound[path])
        place = random_.choice(list(places(content)))
        path.write_text(json.dumps(changed(content, place, random_.choice([*ODD, ...]))))
        try:
            plan(folder)
        except EdgeLLMError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000
        path.write_text(sound[path])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: s["action.mean"].__setitem__(0, np.nan), "is nan; want a finite number"),
        (lambda s: s["action.std"].__setitem__(1, np.inf), "is inf; want a finite number"),
        (lambda s: s["action.std"].__setitem__(1, -1.0), "negative deviation"),
        (lambda s: s.__setitem__("action.mean", s["action.mean"][:-1]), r"have shape \(3,\); the policy has 4"),
        (lambda s: s.__setitem__("action.mean", np.array(1.0, np.float32)), "have shape"),
        (lambda s: s.__setitem__("action.mean", s["action.mean"][None]), r"have shape \(1, 4\)"),
        (lambda s: s.pop("action.std"), "lacks action.std"),
    ],
)
def test_statistics_that_are_none_are_refused(checkpoint, change, sentence):
    folder = checkpoint("smolvla")
    (file,) = folder.glob("policy_postprocessor_step*.safetensors")
    statistics = {name: np.array(values) for name, values in load_file(file).items()}
    change(statistics)
    save_file(statistics, file)
    with pytest.raises(CheckpointError, match=sentence):
        plan(folder)


def test_limits_of_a_vehicle_are_the_same_either_way(checkpoint):
    folder = checkpoint("alpamayo")
    config = json.loads((folder / "config.json").read_text())
    config["action_space_cfg"]["accel_bounds"] = [-4.0, 2.0]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"accel_bounds is \[-4.0, 2.0\]; want the same limit either way"):
        plan(folder)
