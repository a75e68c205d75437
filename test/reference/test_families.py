"""Checkpoints of every family as transformers saves them answer as transformers does, under every lowering."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from seam_runner import SeamRunner

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import tiny_tokenizer_files
from edgellm_ros.engine_format import BuilderLimits

FOLDER = Path(__file__).resolve().parent / "families"
FAMILIES = sorted(path.name for path in FOLDER.iterdir())
LIMITS = BuilderLimits(max_batch_size=4, max_input_len=32, max_kv_cache_capacity=64)
TOLERANCE = 1e-4  # of logits that are given to five digits


def prepared(family: str, folder: Path) -> tuple[Path, dict]:
    """The checkpoint with a tokenizer beside it, which the reference leaves out, and what transformers answered."""
    checkpoint = folder / family
    shutil.copytree(FOLDER / family, checkpoint)
    for name, content in tiny_tokenizer_files(263).items():
        (checkpoint / name).write_bytes(content)
    return checkpoint, json.loads((checkpoint / "reference.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("lowering", ["onnxruntime", "tensorrt", "tensorrt_legacy"])
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_equal_those_of_transformers(family, lowering, tmp_path):
    checkpoint, reference = prepared(family, tmp_path)
    engine = build_engine(checkpoint, tmp_path / "engine", lowering=lowering, limits=LIMITS)
    rows = reference["answers"]
    prompts = [row["input_ids"] for row in rows]
    runner = SeamRunner(engine)
    last = [logits[-1] for logits in runner.run(prompts)]
    assert max(np.abs(logits - row["first_logits"]).max() for logits, row in zip(last, rows, strict=True)) < TOLERANCE
    runner.past = [0] * len(rows)
    assert runner.greedy(prompts, reference["tokens"]) == [row["output_ids"] for row in rows]
    runner.close()
