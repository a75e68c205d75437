"""What the shipped policy is trained on: the same from the same seed, and nothing of what is held out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgellm_ros.builder.safetensors_file import SafetensorsFile
from edgellm_ros.tabletop.checkpoint_files import checkpoint_directory
from edgellm_ros.tabletop.objects import HELD_OUT, HELD_OUT_COMBINATIONS
from training.tabletop.rollouts import Sample, choose_ticks, motion_sample, question_sample, roll
from training.tabletop.text import Codec

pytest.importorskip("cv2")

TRAINING = Path(__file__).resolve().parents[2] / "training" / "tabletop"


def drawn(seed: int, worlds: int = 4, questions: int = 6) -> list[Sample]:
    rng = np.random.default_rng([seed, 0, 0])
    rollout = roll(rng, worlds)
    samples = [motion_sample(rng, rollout, *place) for place in choose_ticks(rng, rollout, 2)]
    return samples + [question_sample(rng, rollout if index % 3 == 0 else None) for index in range(questions)]


def bytes_of(samples: list[Sample]) -> list[tuple[str, bytes, bytes, bytes]]:
    chunks = (b"" if sample.chunk is None else sample.chunk.tobytes() for sample in samples)
    return [
        (sample.text, sample.images.tobytes(), sample.state.tobytes(), chunk)
        for sample, chunk in zip(samples, chunks, strict=True)
    ]


def test_a_seed_gives_the_same_samples_byte_for_byte():
    first, again, other = (bytes_of(drawn(seed)) for seed in (8, 8, 9))
    assert first == again != other


def test_no_held_out_combination_is_shown_or_named():
    samples = drawn(8, worlds=40, questions=300)
    shown = {
        (int(colour), int(shape))
        for looks in [sample.looks for sample in samples]
        for colour, shape in looks
        if colour >= 0
    }
    assert len(shown) > 15 and not shown & set(HELD_OUT_COMBINATIONS)
    said = " ".join(f"{sample.text} {sample.question.answer if sample.question else ''}" for sample in samples).lower()
    assert "red cube" in said
    assert [f"{colour} {shape}" for colour, shape in HELD_OUT if f"{colour} {shape}" in said] == []


def test_the_shipped_checkpoint_has_the_tokenizer_and_the_statistics_of_the_training():
    folder = checkpoint_directory()
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (folder / "vlm" / name).read_text() == (TRAINING / "tokenizer" / name).read_text()
    statistics = json.loads((TRAINING / "statistics.json").read_text())
    (file,) = folder.glob("policy_preprocessor_step_*.safetensors")
    for name in ("state_mean", "state_std", "action_mean", "action_std"):
        kind, _, figure = name.partition("_")
        key = f"{'observation.state' if kind == 'state' else 'action'}.{figure}"
        assert SafetensorsFile(file).read_rows(key, 0, 4) == pytest.approx(statistics[name])


def test_sentences_come_back_from_their_ids():
    codec = Codec(TRAINING / "tokenizer", 16)
    samples = drawn(4, questions=30)
    for sample in samples:
        if sample.question is None:
            assert codec.decode(codec.task(sample.text)).strip() == sample.text
        else:
            ids, start = codec.dialogue(sample.text, sample.question.answer)
            assert codec.decode(list(ids[start:])).strip() == sample.question.answer
