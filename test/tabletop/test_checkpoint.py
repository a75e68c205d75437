"""The shipped checkpoint: lerobot's layout, within its size, and readable by this package's own parts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgellm_ros.builder.safetensors_file import SafetensorsFile
from edgellm_ros.runtime.tokenizer import Tokenizer
from edgellm_ros.tabletop.checkpoint_files import checkpoint_directory
from edgellm_ros.tabletop.geometry import JOINT_LOWER, JOINT_UPPER

FOLDER = checkpoint_directory()


def test_the_weights_are_small_and_have_lerobots_names():
    file = SafetensorsFile(FOLDER / "model.safetensors")
    shapes = {name: entry.shape for name, entry in file.entries.items()}
    assert sum(int(np.prod(shape)) for shape in shapes.values()) <= 12_000_000
    assert (FOLDER / "model.safetensors").stat().st_size <= 25_000_000
    for name in (
        "model.state_proj.weight",
        "model.action_in_proj.weight",
        "model.action_time_mlp_out.bias",
        "model.vlm_with_expert.vlm.model.vision_model.embeddings.patch_embedding.weight",
        "model.vlm_with_expert.vlm.model.connector.modality_projection.proj.weight",
        "model.vlm_with_expert.vlm.model.text_model.layers.0.self_attn.q_proj.weight",
        "model.vlm_with_expert.vlm.lm_head.weight",
        "model.vlm_with_expert.lm_expert.layers.0.mlp.gate_proj.weight",
    ):
        assert name in shapes


def test_the_configuration_names_cameras_and_joints():
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["type"] == "smolvla"
    assert set(config["input_features"]) == {
        "observation.state",
        "observation.images.top",
        "observation.images.angled",
    }
    assert config["output_features"]["action"]["shape"] == [4]


@pytest.mark.parametrize("name", ["policy_preprocessor.json", "policy_postprocessor.json"])
def test_statistics_lie_where_the_processors_say(name):
    steps = json.loads((FOLDER / name).read_text())["steps"]
    files = [step["state_file"] for step in steps if "state_file" in step]
    assert len(files) == 1
    file = SafetensorsFile(FOLDER / files[0])
    assert set(file.entries) == {"observation.state.mean", "observation.state.std", "action.mean", "action.std"}
    mean = file.read_rows("action.mean", 0, 4)
    assert (mean > JOINT_LOWER).all() and (mean < JOINT_UPPER).all()


def test_the_tokenizer_knows_the_tabletops_words():
    tokenizer = Tokenizer.from_directory(FOLDER / "vlm")
    ids = tokenizer.encode("pick up the purple ring and put it on the orange disc\n")
    assert len(ids) == 13


CARD = (FOLDER / "README.md").read_text("utf-8")
CASES = {
    "as above": ("tabletop", "10 denoise steps, 1 thread"),
    "150 ms late, `replace`": ("tabletop 150 ms late, replace", ""),
    "150 ms late, `blend` over 3 actions": ("tabletop 150 ms late, blend 3", ""),
    "150 ms late, `rtc` over 3 actions": ("tabletop 150 ms late, rtc 3", ""),
    "150 ms late, `blend` over 8 actions": ("tabletop 150 ms late, blend 8", ""),
    "5 denoise steps": ("tabletop 5 denoise steps", "5 denoise steps, 1 thread"),
    "2 denoise steps": ("tabletop 2 denoise steps", "2 denoise steps, 1 thread"),
    "1 denoise step": ("tabletop 1 denoise step", "1 denoise step, 1 thread"),
    "pruner 0.25": ("tabletop pruner 0.25", "pruner 0.25, 1 thread"),
    "pruner 0.5": ("tabletop pruner 0.5", "pruner 0.5, 1 thread"),
}
CONTROLS = {
    "doing nothing": "no_op",
    "wandering joints": "random",
    "the policy with the prompt of another episode": "shuffled_prompts",
    "the policy with black pictures": "black_cameras",
}


@pytest.fixture(scope="module")
def figures() -> dict[tuple[str, str], float]:
    rows = json.loads(
        (Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "cpu-tabletop.json").read_text("utf-8")
    )
    return {(row["case"], row["metric"]): row["ours"] for row in rows}


def cells(label: str) -> list[str]:
    (line,) = [line for line in CARD.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


@pytest.mark.parametrize("label", CASES)
def test_what_the_card_says_of_a_case_is_in_the_results(label, figures):
    case, chunk = CASES[label]
    success, jerk, latency = cells(label)
    share = figures[case, "success_rate"]
    answers = figures.get((case, "answer_accuracy"))
    told = f"{100 * share:.1f} %" + (f", answers {100 * answers:.1f} % of 200" if answers is not None else "")
    assert (success, jerk) == (told, f"{figures[case, 'jerk seams']:.0f}")
    assert latency == (f"{figures[f'tabletop chunk, {chunk}', 'chunk_latency median']:.1f} ms" if chunk else "")


@pytest.mark.parametrize("label", CONTROLS)
def test_what_the_card_says_of_a_control_is_in_the_results(label, figures):
    value = figures["tabletop held out and questions", f"success_rate control {CONTROLS[label]}"]
    assert cells(label) == [f"{100 * value:.0f} %"]


@pytest.mark.parametrize(
    ("label", "case", "metric"),
    [
        ("all motion tasks, seen combinations", "tabletop", "success_rate"),
        ("touch", "tabletop", "success_rate touch"),
        ("pick up and put on", "tabletop", "success_rate put"),
        ("held-out combinations", "tabletop held out and questions", "success_rate held out"),
        ("questions: list, count, colour, where", "tabletop held out and questions", "answer_accuracy"),
    ],
)
def test_what_the_card_counts_is_in_the_results(label, case, metric, figures):
    right, of, share = cells(label)
    assert round(figures[case, metric] * int(of)) == int(right)
    assert float(share.partition(" ")[0]) == pytest.approx(100 * figures[case, metric], abs=0.05)
