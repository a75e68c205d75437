"""Prompts with images and videos, as (kind, grid) parts; numbers are lengths of text."""

from __future__ import annotations

from typing import Any

import numpy as np

IMAGE, VIDEO, START, END = 1001, 1002, 1003, 1004
TOKENS_PER_SECOND = 2

# name -> (family, parts, seconds per temporal patch of each video); grids before merging by 2
CASES: dict[str, tuple[str, list[Any], list[float]]] = {
    "text": ("qwen2_vl", [7], []),
    "one image": ("qwen2_vl", [3, ("image", (1, 4, 6)), 5], []),
    "image first and last": ("qwen2_vl", [("image", (1, 2, 8)), 4, ("image", (1, 8, 2))], []),
    "three images": ("qwen2_5_vl", [2, *[("image", (1, 6, 4)), 1] * 3, 9], []),
    "video": ("qwen2_vl", [2, ("video", (3, 8, 6)), 6], []),
    "slow video": ("qwen2_5_vl", [2, ("video", (3, 12, 14)), 6, ("image", (1, 4, 4)), 2], [1.0]),
    "video of fractions": ("qwen2_5_vl", [2, ("video", (4, 12, 14)), 6], [0.67]),
    "two videos": ("qwen2_5_vl", [1, ("video", (2, 8, 8)), 3, ("video", (3, 16, 4)), 1], [0.25, 1.5]),
    "image and frames": ("qwen3_vl", [1, ("image", (1, 6, 6)), 3, ("video", (3, 4, 8)), 4], []),
}
# here time outruns rows and columns: transformers 5 lets what follows start inside the video, which the checkpoints
# were not trained with; version 4 starts it behind
LONG_CASES: dict[str, tuple[str, list[Any], list[float]]] = {
    "long video": ("qwen2_vl", [2, ("video", (9, 4, 6)), 6, ("image", (1, 4, 4)), 3], []),
    "long slow video": ("qwen2_5_vl", [2, ("video", (4, 4, 4)), 6], [3.0]),
}


def prompt(family: str, parts: list[Any]) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Token ids, grids of the images, grids of the videos."""
    ids: list[int] = []
    grids: dict[str, list[tuple[int, int, int]]] = {"image": [], "video": []}
    for part in parts:
        if isinstance(part, int):
            ids += list(range(10, 10 + part))
            continue
        kind, (times, rows, columns) = part
        grids[kind].append((times, rows, columns))
        token = IMAGE if kind == "image" else VIDEO
        count = rows * columns // 4
        if family == "qwen3_vl" and kind == "video":
            for time in range(times):
                ids += [20 + time, START, *[token] * count, END]
        else:
            ids += [START, *[token] * (times * count), END]
    arrays = [np.array(grids[kind], np.int64) if grids[kind] else None for kind in ("image", "video")]
    return np.array(ids), arrays[0], arrays[1]
