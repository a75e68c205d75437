"""Write families/: one tiny random model of each family as transformers saves it, and what it answers.

    python test/reference/make_families.py      (needs torch and transformers)

Shapes are odd on purpose: head size unrelated to hidden size / heads, a prime vocabulary, windows shorter than the
prompts, soft caps that bend. Weights are bfloat16 and wide, so that attention is sharp and every layer shows.
``reference.json`` holds, for each prompt, the float32 logits of its last position and the greedy ids behind it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers

HERE = Path(__file__).resolve().parent / "families"
COMMON: dict[str, Any] = {
    "vocab_size": 263,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "rms_norm_eps": 3e-6,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ROPE = {"rope_type": "default", "rope_theta": 3000.0}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 3000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
SLIDES = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": False, "attention_bias": True}),
    "smollm3": ("SmolLM3", {"rope_parameters": ROPE, "no_rope_layers": [1, 0, 1, 1]}),
    "qwen2": (
        "Qwen2",
        {"rope_parameters": ROPE, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2},
    ),
    "qwen3": ("Qwen3", {"rope_parameters": ROPE, "tie_word_embeddings": True}),
    "gemma": ("Gemma", {"rope_parameters": ROPE}),
    "gemma2": (
        "Gemma2",
        {
            "rope_parameters": ROPE, "sliding_window": 6, "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 7,
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            "sliding_window": 6, "layer_types": SLIDES, "query_pre_attn_scalar": 7, "final_logit_softcapping": None,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 3000.0, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 90.0},
            },
        },
    ),
}  # fmt: skip
PROMPTS = ([72, 101, 108, 108, 111], list(range(3, 250, 11)), [257, 117, 10, 104, 105, 258, 10, 9, 8, 7, 6, 5])
TOKENS = 12


def make_config(name: str) -> transformers.PretrainedConfig:
    family, settings = FAMILIES[name]
    kind = "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config"
    return getattr(transformers, kind)(**{**COMMON, **settings}, attn_implementation="eager")


def answers(model: transformers.PreTrainedModel) -> list[dict[str, Any]]:
    rows = []
    for prompt in PROMPTS:
        ids, gaps, first = list(prompt), [], None
        for _ in range(TOKENS):
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
            best = torch.topk(logits, 2).values
            gaps.append(float(best[0] - best[1]))
            first = first or [round(value, 5) for value in logits.tolist()]
            ids.append(int(logits.argmax()))
        rows.append(
            {
                "input_ids": list(prompt),
                "output_ids": ids[len(prompt) :],
                "smallest_top2_gap": round(min(gaps), 6),
                "first_logits": first,
            }
        )
    return rows


def telling(rows: list[dict[str, Any]]) -> bool:
    """No close calls that rounding could turn, and answers that say more than one token."""
    return all(row["smallest_top2_gap"] > 2e-3 and len(set(row["output_ids"])) > 1 for row in rows)


def draw(model: transformers.PreTrainedModel, seed: int, *, norm: float) -> None:
    """bfloat16 weights of one seed; ``norm`` is what norms lie around."""
    torch.manual_seed(seed)
    for key, weight in model.named_parameters():
        values = norm + 0.3 * torch.randn_like(weight) if "norm" in key else 0.3 * torch.randn_like(weight)
        weight.copy_(values.to(torch.bfloat16))


def write_family(name: str, folder: Path) -> None:
    family, _ = FAMILIES[name]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = getattr(transformers, f"{family}ForCausalLM")(make_config(name)).eval()
    for seed in range(41, 4100):
        with torch.inference_mode(False), torch.no_grad():
            draw(model, seed, norm=0.0 if name.startswith("gemma") else 1.0)  # Gemma stores the distance from one
            rows = answers(model)
        if telling(rows):
            break
    model.to(torch.bfloat16).save_pretrained(folder)
    for path in folder.glob("generation_config.json"):
        path.unlink()
    versions = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    text = json.dumps({"made_with": versions, "tokens": TOKENS, "answers": rows})
    (folder / "reference.json").write_text(text.replace('{"input_ids"', '\n{"input_ids"') + "\n", encoding="utf-8")
    print(name, seed, [row["smallest_top2_gap"] for row in rows], rows[0]["output_ids"], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE)
    arguments = parser.parse_args()
    for name in FAMILIES:
        write_family(name, arguments.output / name)


if __name__ == "__main__":
    main()
