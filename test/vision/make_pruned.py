"""Writes pruned.json: transformers on whole prompts in which nobody attends to some image tokens.

The tokens are still there, with their positions; only their keys are masked, in every layer, for all but themselves.
That is what leaving them out must equal. Uses the checkpoints of test/reference/vision_families.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from pruned_cases import FAMILIES, dropped
from vision_inputs import FAMILIES as KINDS
from vision_inputs import GRIDS, IMAGE, VIDEO_SEED, pixel_values

HERE = Path(__file__).resolve().parent
CHECKPOINTS = HERE.parent / "reference" / "vision_families"
TOKENS = 6


def answer(model: Any, family: str, prompt: list[int], seeds: list[int]) -> dict[str, Any]:
    gone = dropped(prompt, IMAGE)
    ids, first, gaps = list(prompt), None, []
    images = [torch.from_numpy(pixel_values(family, seed)) for seed in seeds]
    for _ in range(TOKENS):
        length = len(ids)
        given: dict[str, Any] = {"input_ids": torch.tensor([ids])}
        if KINDS[family].grids:
            grids = torch.tensor([GRIDS[seed] for seed in seeds])
            tokens = (given["input_ids"] == IMAGE).int()
            positions, _ = model.model.get_rope_index(given["input_ids"], tokens, image_grid_thw=grids)
            given |= {"pixel_values": torch.cat(images), "image_grid_thw": grids, "position_ids": positions}
            given["mm_token_type_ids"] = tokens
        else:
            pixels = torch.stack(images)
            given["pixel_values"] = pixels[None] if family == "smolvlm" else pixels
            given["position_ids"] = torch.arange(length)[None]
        seen = torch.tril(torch.ones(length, length, dtype=torch.bool))
        if family == "paligemma":  # its prompt sees itself in both directions
            seen[: len(prompt), : len(prompt)] = True
            given["token_type_ids"] = (torch.arange(length) >= len(prompt)).int()[None]
        seen[:, gone] = False
        seen[gone, gone] = True
        mask = torch.zeros(length, length).masked_fill(~seen, torch.finfo(torch.float32).min)
        given["attention_mask"] = mask[None, None]
        logits = model(**given, use_cache=False).logits[0, -1]
        best = torch.topk(logits, 2).values
        gaps.append(float(best[0] - best[1]))
        first = first or [round(value, 5) for value in logits.tolist()]
        ids.append(int(logits.argmax()))
    return {"output_ids": ids[len(prompt) :], "first_logits": first, "smallest_top2_gap": round(min(gaps), 6)}


def main() -> None:
    stored: dict[str, Any] = {"transformers": transformers.__version__}
    for family in FAMILIES:
        model_class = getattr(transformers, f"{KINDS[family].classes}ForConditionalGeneration")
        model = model_class.from_pretrained(CHECKPOINTS / family, dtype=torch.float32, attn_implementation="eager")
        rows = json.loads((CHECKPOINTS / family / "reference.json").read_text("utf-8"))["answers"]
        with torch.no_grad():
            stored[family] = [
                answer(model.eval(), family, row["input_ids"], row["images"])
                for row in rows
                if row["images"] and VIDEO_SEED not in row["images"]
            ]
        print(family, [row["smallest_top2_gap"] for row in stored[family]], [r["output_ids"] for r in stored[family]])
    (HERE / "pruned.json").write_text(json.dumps(stored) + "\n", "utf-8")


if __name__ == "__main__":
    main()
