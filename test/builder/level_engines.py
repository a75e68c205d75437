"""Tiny checkpoints whose processor's files are there, so that their towers take pixels of 0 to 255."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from vision_engines import LIMITS, checkpoint
from vision_inputs import FAMILIES

from edgellm_ros.builder.build import build_engine

MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def processor_settings(family: str) -> dict[str, Any]:
    """A processor's file for the family, of sizes that its tiny tower takes."""
    vision = FAMILIES[family].config["vision_config"]
    side = vision.get("image_size", 0)
    side = side[0] if isinstance(side, list) else side
    whole: dict[str, Any] = {"image_mean": MEAN, "image_std": STD, "resample": 3}
    if FAMILIES[family].grids:
        return {**whole, "patch_size": 3, "temporal_patch_size": 2, "merge_size": 2, "min_pixels": 36,
                "max_pixels": 432}  # fmt: skip
    if family == "smolvlm":
        return {**whole, "resample": 1, "max_image_size": {"longest_edge": side}, "size": {"longest_edge": 2 * side}}
    if family == "internvl":
        return {**whole, "size": {"height": side, "width": side}, "min_patches": 1, "max_patches": 4}
    return {**whole, "size": {"height": side, "width": side}, "image_seq_length": 9}


@cache
def level_checkpoint(family: str) -> Path:
    """As ``vision_engines.checkpoint``, with the processor's files."""
    place = checkpoint(family).with_name("levels")
    shutil.copytree(checkpoint(family), place)
    (place / "preprocessor_config.json").write_text(json.dumps(processor_settings(family)), encoding="utf-8")
    tokens = {"image_seq_len": 9} if family == "smolvlm" else {"image_seq_length": 9}
    (place / "processor_config.json").write_text(json.dumps(tokens), encoding="utf-8")
    return place


@cache
def level_engine(family: str, lowering: str, precision: str = "fp32") -> Path:
    """The engine directory of such a checkpoint, its tower and text at a precision."""
    output = level_checkpoint(family).with_name(f"levels-{lowering}-{precision}")
    return build_engine(level_checkpoint(family), output, lowering=lowering, limits=LIMITS, precision=precision)
