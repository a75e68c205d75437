"""Writes mrope.json: positions and deltas of transformers. Run with version 5, then once more with version 4.57.1."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from mrope_cases import CASES, IMAGE, LONG_CASES, START, TOKENS_PER_SECOND, VIDEO, prompt

PATH = Path(__file__).resolve().parent / "mrope.json"
CLASSES = {"qwen2_vl": "Qwen2VLModel", "qwen2_5_vl": "Qwen2_5_VLModel", "qwen3_vl": "Qwen3VLModel"}
OLD = transformers.__version__.startswith("4.")


def answer(family: str, parts: list[Any], seconds: list[float]) -> dict[str, Any]:
    model_class = getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), CLASSES[family])
    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=TOKENS_PER_SECOND)
    tokens = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": START}
    model = SimpleNamespace(config=SimpleNamespace(vision_config=vision, **tokens))
    if not OLD:
        model.get_vision_position_ids = model_class.get_vision_position_ids.__get__(model)
    ids, images, videos = prompt(family, parts)
    ids = torch.from_numpy(ids)[None]
    keywords: dict[str, Any] = {"attention_mask": torch.ones_like(ids)}
    for name, grids in (("image_grid_thw", images), ("video_grid_thw", videos)):
        keywords[name] = None if grids is None else torch.from_numpy(grids)
    if family == "qwen2_5_vl" and seconds:
        keywords["second_per_grid_ts"] = torch.tensor(seconds, dtype=torch.float64)
    if not OLD:
        keywords["mm_token_type_ids"] = (ids == IMAGE).int() + 2 * (ids == VIDEO).int()
    positions, delta = model_class.get_rope_index(model, ids, **keywords)
    return {"positions": positions[:, 0].tolist(), "delta": int(delta[0])}


def main() -> None:
    stored = json.loads(PATH.read_text("utf-8")) if PATH.exists() else {}
    cases = LONG_CASES if OLD else CASES
    stored.update({name: answer(*case) for name, case in cases.items()})
    PATH.write_text(json.dumps(stored) + "\n", "utf-8")


if __name__ == "__main__":
    main()
