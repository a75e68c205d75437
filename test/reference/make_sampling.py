"""Write sampling.json: what transformers' logits processors make of fixed logits.

    PYTHONPATH=. python test/reference/make_sampling.py      (needs torch, transformers)

Repetition, temperature, top-k, top-p and min-p come from transformers. Presence and frequency penalties do not exist
there; they follow the OpenAI API's formula (subtract ``count * frequency + (count > 0) * presence``, where count is
how often the token was generated), computed here in float64.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from reference_files import HERE, write
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

VOCABULARY = 48
PROMPT = [3, 7, 7, 11, 40]
GENERATED = [5, 7, 5, 5, 21, 40]

CASES: tuple[dict[str, float], ...] = (
    {},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"presence_penalty": 0.7},
    {"presence_penalty": -0.5},
    {"frequency_penalty": 0.4},
    {"frequency_penalty": -0.25},
    {"repetition_penalty": 1.15, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_k": 5},
    {"top_p": 0.8},
    {"top_p": 0.05},
    {"min_p": 0.1},
    {"temperature": 0.7, "top_k": 12, "top_p": 0.9},
    {"temperature": 1.4, "top_k": 20, "top_p": 0.85, "min_p": 0.05},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.2, "temperature": 0.8, "top_k": 10, "top_p": 0.95},
)


def penalised(logits: torch.Tensor, case: dict[str, float]) -> torch.Tensor:
    """Logits [1,V] after the three penalties; prompt and answer count for repetition, the answer for the others."""
    if "repetition_penalty" in case:
        processor = RepetitionPenaltyLogitsProcessor(penalty=case["repetition_penalty"])
        logits = processor(torch.tensor([PROMPT + GENERATED]), logits)
    counts = torch.bincount(torch.tensor(GENERATED), minlength=VOCABULARY).to(torch.float64)
    less = counts * case.get("frequency_penalty", 0.0) + (counts > 0) * case.get("presence_penalty", 0.0)
    return (logits.to(torch.float64) - less).to(torch.float32)


def narrowed(logits: torch.Tensor, case: dict[str, float]) -> torch.Tensor:
    """Logits [1,V] after temperature, top-k, top-p and min-p; what is out is minus infinity."""
    ids = torch.tensor([PROMPT])
    if "temperature" in case:
        logits = TemperatureLogitsWarper(case["temperature"])(ids, logits)
    if "top_k" in case:
        logits = TopKLogitsWarper(int(case["top_k"]))(ids, logits)
    if "top_p" in case:
        logits = TopPLogitsWarper(case["top_p"])(ids, logits)
    if "min_p" in case:
        logits = MinPLogitsWarper(case["min_p"])(ids, logits)
    return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE)
    arguments = parser.parse_args()
    logits = np.random.default_rng(17).normal(0.0, 2.0, VOCABULARY).astype(np.float32).round(4)
    rows: list[dict[str, Any]] = []
    for case in CASES:
        after = penalised(torch.from_numpy(logits)[None].clone(), case)
        probabilities = torch.softmax(narrowed(after.clone(), case).to(torch.float64), dim=-1)[0]
        kept = [index for index in range(VOCABULARY) if probabilities[index] > 0]
        rows.append(
            {
                "parameters": case,
                "logprobs": [round(value, 6) for value in torch.log_softmax(after.double(), -1)[0].tolist()],
                "kept_ids": kept,
                "kept_probabilities": [round(float(probabilities[index]), 7) for index in kept],
            }
        )
        print(case, len(kept))
    write(
        arguments.output / "sampling.json",
        {
            "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
            "prompt_ids": PROMPT,
            "generated_ids": GENERATED,
            "logits": [float(f"{value:.4f}") for value in logits],
            "cases": rows,
        },
    )


if __name__ == "__main__":
    main()
