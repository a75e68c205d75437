"""Write vision_families/: one tiny random vision-language model of each family, and what it sees and answers.

    python test/reference/make_vision_families.py      (needs torch and transformers)

Images are pixel values drawn by a seed (``vision_inputs.py``), so that the tower is checked apart from any image
processor. ``reference.json`` holds the embeddings of three images, and for prompts with none, one and three of them
the float32 logits of the last position and the greedy ids behind it. Shapes are odd on purpose: images of several
grids, windows that do not fill up, planes that come from the wrong layers if they are counted, heads that differ.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from vision_inputs import (
    FAMILIES,
    GRIDS,
    IMAGE,
    IMAGE_SEEDS,
    PROMPTS,
    SECONDS_PER_PATCH,
    VIDEO,
    VIDEO_SEED,
    WITH_VIDEO,
    expanded,
    pixel_values,
)

HERE = Path(__file__).resolve().parent / "vision_families"
TOKENS = 10


def inputs_of(family: str, ids: list[int], prompt: int, seeds: tuple[int, ...]) -> dict[str, Any]:
    """What the model takes for ``ids``, of which the first ``prompt`` are the prompt."""
    kind = FAMILIES[family]
    given: dict[str, Any] = {"input_ids": torch.tensor([ids])}
    images = [torch.from_numpy(pixel_values(family, seed)) for seed in seeds if seed != VIDEO_SEED]
    image_tokens = (given["input_ids"] == IMAGE).int()
    if kind.grids:
        given["mm_token_type_ids"] = image_tokens + 2 * (given["input_ids"] == VIDEO).int()
        if images:
            given["pixel_values"] = torch.cat(images)
            given["image_grid_thw"] = torch.tensor([GRIDS[seed] for seed in seeds if seed != VIDEO_SEED])
        if VIDEO_SEED in seeds:
            given["pixel_values_videos"] = torch.from_numpy(pixel_values(family, VIDEO_SEED))
            given["video_grid_thw"] = torch.tensor([GRIDS[VIDEO_SEED]])
            if family == "qwen2_5_vl":
                given["second_per_grid_ts"] = torch.tensor([SECONDS_PER_PATCH])
    elif images:
        pixels = torch.stack(images)
        given["pixel_values"] = pixels[None] if family == "smolvlm" else pixels
    if family == "paligemma":
        given["token_type_ids"] = (torch.arange(len(ids)) >= prompt).int()[None]
    if family == "gemma3":
        given["token_type_ids"] = image_tokens
    return given


def answer(model: Any, family: str, text: list[int], seeds: tuple[int, ...]) -> dict[str, Any]:
    prompt = expanded(family, text, seeds)
    ids, gaps, first = list(prompt), [], None
    for _ in range(TOKENS):
        logits = model(**inputs_of(family, ids, len(prompt), seeds), use_cache=False).logits[0, -1]
        best = torch.topk(logits, 2).values
        gaps.append(float(best[0] - best[1]))
        first = first or [round(value, 5) for value in logits.tolist()]
        ids.append(int(logits.argmax()))
    return {
        "input_ids": prompt,
        "images": list(seeds),
        "output_ids": ids[len(prompt) :],
        "smallest_top2_gap": round(min(gaps), 6),
        "first_logits": first,
    }


def embeddings(model: Any, family: str) -> list[Any]:
    """The tokens of each image, and the deepstack planes behind them."""
    rows = []
    for seed in IMAGE_SEEDS:
        given = inputs_of(family, [IMAGE], 1, (seed,))
        given = {key: value for key, value in given.items() if key in ("pixel_values", "image_grid_thw")}
        found = model.model.get_image_features(**given)
        planes = [found.pooler_output if hasattr(found, "pooler_output") else found]
        planes += list(getattr(found, "deepstack_features", None) or [])
        planes = [torch.cat(list(plane)) if isinstance(plane, (list, tuple)) else plane for plane in planes]
        rows.append([[round(value, 5) for value in plane.reshape(-1).tolist()] for plane in planes])
    return rows


def telling(rows: list[dict[str, Any]]) -> bool:
    """No close calls that rounding could turn, and answers that say more than one token."""
    return all(row["smallest_top2_gap"] > 2e-3 and len(set(row["output_ids"])) > 1 for row in rows)


def draw(model: Any, family: str, seed: int) -> None:
    """bfloat16 weights of one seed, wide enough that attention is sharp and every layer shows."""
    torch.manual_seed(seed)
    for key, weight in model.named_parameters():
        normed = weight.dim() == 1 and key.endswith("weight") and ("norm" in key or "ln_q" in key)
        offset = 1.0 if normed else 0.0
        if family in ("paligemma", "gemma3") and normed and "vision_tower" not in key:
            offset = 0.0  # Gemma stores the distance from one
        scale = 0.3 if weight.dim() == 1 or "lambda" in key else 1.2 * weight[0].numel() ** -0.5
        weight.copy_((offset + scale * torch.randn_like(weight)).to(torch.bfloat16))


def write_family(family: str, folder: Path) -> None:
    kind = FAMILIES[family]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = getattr(transformers, f"{kind.classes}Config")(**kind.config)
    model = getattr(transformers, f"{kind.classes}ForConditionalGeneration")._from_config(
        config, attn_implementation="eager"
    )
    model = model.eval()
    prompts = [*PROMPTS, *([WITH_VIDEO] if kind.grids else [])]
    for seed in range(41, 4100):
        with torch.inference_mode(False), torch.no_grad():
            draw(model, family, seed)
            model.tie_weights()
            try:
                rows = [answer(model, family, text, seeds) for text, seeds in prompts]
            except ValueError:  # it answered with the token of an image
                continue
            images = embeddings(model, family)
        if telling(rows):
            break
    model.to(torch.bfloat16).save_pretrained(folder)
    for path in folder.glob("generation_config.json"):
        path.unlink()
    versions = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    text = json.dumps({"made_with": versions, "tokens": TOKENS, "embeddings": images, "answers": rows})
    (folder / "reference.json").write_text(text.replace('{"input_ids"', '\n{"input_ids"') + "\n", encoding="utf-8")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(family, seed, [row["smallest_top2_gap"] for row in rows], rows[2]["output_ids"], size, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE)
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    arguments = parser.parse_args()
    for family in arguments.families:
        write_family(family, arguments.output / family)


if __name__ == "__main__":
    main()
