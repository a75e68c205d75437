"""The same tiny random pi0 and pi0.5 in openpi's files and in lerobot's, for each of openpi's robots."""

from __future__ import annotations

import json
import shutil

import numpy as np
from policy_checkpoints import REFERENCE
from safetensors.numpy import load_file, save_file

from edgellm_ros.action.observation import Observation

PADDED, SIDE = 16, 32
WIDTHS = {"libero": (8, 7), "droid": (8, 8), "aloha": (14, 14)}
HORIZONS = {"pi0": {"libero": 50, "droid": 10, "aloha": 50}, "pi05": {"libero": 10, "droid": 15, "aloha": 50}}
ASSETS = {"libero": "physical-intelligence/libero", "droid": "droid", "aloha": "trossen"}
CAMERAS = {
    "libero": ("image", "wrist_image"),
    "droid": ("exterior_image_1_left", "wrist_image_left"),
    "aloha": ("cam_high", "cam_left_wrist", "cam_right_wrist"),
}
CASES = [(family, contract) for family in HORIZONS for contract in WIDTHS]


def weights(family):
    """Of the stored reference, with adapters as wide as ``PADDED`` instead of its own."""
    found = load_file(REFERENCE / family / "model.safetensors")
    rng = np.random.default_rng(8)
    for name in ("action_in_proj", "action_out_proj", "state_proj"):
        if f"model.{name}.weight" in found:
            wide, width = (PADDED, 24) if name == "action_out_proj" else (24, PADDED)
            matrix = rng.standard_normal((wide, width)) / np.sqrt(width)
            found[f"model.{name}.weight"] = matrix.astype(np.float32)
            found[f"model.{name}.bias"] = (0.2 * rng.standard_normal(wide)).astype(np.float32)
    return found


def statistics(contract, *, spread=64.0):
    """As norm_stats.json has them; beside a ``spread`` of 64 no small number that is added counts."""
    rng = np.random.default_rng(4)
    content = {}
    for feature, width in zip(("state", "actions"), WIDTHS[contract], strict=True):
        low = np.round(rng.uniform(-spread, 0, width), 3)
        content[feature] = {
            "mean": (low + spread / 2).tolist(), "std": rng.uniform(spread, 2 * spread, width).tolist(),
            "q01": low.tolist(), "q99": (low + rng.uniform(spread, 2 * spread, width)).tolist(),
        }  # fmt: skip
    return content


def write_openpi(folder, family, contract, *, asset=None, numbers=None, **changes):
    """A folder as openpi's conversion writes it, with the tokenizer and sizes of a tiny language model under vlm."""
    folder.mkdir(parents=True)
    shutil.copytree(REFERENCE / family / "vlm", folder / "vlm")
    save_file({name.removeprefix("model."): value for name, value in weights(family).items()},
              folder / "model.safetensors")  # fmt: skip
    config = {
        "action_dim": PADDED, "action_horizon": HORIZONS[family][contract], "paligemma_variant": "gemma_2b",
        "action_expert_variant": "gemma_300m", "precision": "float32", **changes,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    add_statistics(folder, ASSETS[contract] if asset is None else asset, numbers or statistics(contract))
    return folder


def add_statistics(folder, asset, numbers):
    place = folder / "assets" / asset
    place.mkdir(parents=True, exist_ok=True)
    (place / "norm_stats.json").write_text(json.dumps({"norm_stats": numbers}))


def write_lerobot(folder, family, contract):
    """The same weights and statistics as lerobot keeps them."""
    folder.mkdir(parents=True)
    shutil.copytree(REFERENCE / family / "vlm", folder / "vlm")
    save_file(weights(family), folder / "model.safetensors")
    (state, action), numbers = WIDTHS[contract], statistics(contract)
    mode, horizon = "MEAN_STD" if family == "pi0" else "QUANTILES", HORIZONS[family][contract]
    images = {f"observation.images.{name}": {"type": "VISUAL", "shape": [3, SIDE, SIDE]} for name in CAMERAS[contract]}
    config = {
        "type": family, "chunk_size": horizon, "n_action_steps": horizon, "max_state_dim": PADDED,
        "max_action_dim": PADDED, "num_inference_steps": 10, "image_resolution": [SIDE, SIDE],
        "tokenizer_max_length": 200, "paligemma_variant": "gemma_2b",
        "input_features": {"observation.state": {"type": "STATE", "shape": [state]}, **images},
        "output_features": {"action": {"type": "ACTION", "shape": [action]}},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    normalised = {
        "config": {"eps": 1e-8, "norm_map": {"STATE": mode, "ACTION": mode}},
        "state_file": "numbers.safetensors",
    }
    for file, step in (("policy_preprocessor", "normalizer"), ("policy_postprocessor", "unnormalizer")):
        steps = [{"registry_name": f"{step}_processor", **normalised}]
        (folder / f"{file}.json").write_text(json.dumps({"steps": steps}))
    rows = {f"{feature}.{name}": np.array(values, np.float32)
            for feature, part in (("observation.state", "state"), ("action", "actions"))
            for name, values in numbers[part].items()}  # fmt: skip
    save_file(rows, folder / "numbers.safetensors")
    return folder


def seen(contract, state, *, cameras=None, side=SIDE):
    """An observation of random pictures with ``state`` in robot units."""
    rng = np.random.default_rng(6)
    pictures = {name: rng.integers(0, 256, (side, side, 3), np.uint8) for name in CAMERAS[contract]}
    return Observation({name: pictures[name] for name in cameras or CAMERAS[contract]}, state)
