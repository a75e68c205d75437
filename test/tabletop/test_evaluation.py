"""The evaluation: what it measures, what it refuses, and that the shipped checkpoint does its tasks."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest

import edgellm_ros
from edgellm_ros.cli.main import main
from edgellm_ros.tabletop import engine_policy
from edgellm_ros.tabletop.episodes import draw_episode, run_episodes
from edgellm_ros.tabletop.evaluation import no_op, random_policy, seam_jerk


def test_jerk_is_found_where_chunks_meet():
    smooth = np.zeros((24, 1, 4))
    smooth[:, 0, 0] = np.linspace(0.0, 1.0, 24)
    assert seam_jerk([smooth], 6)["seams"] == pytest.approx(0.0, abs=1e-6)
    kinked = smooth.copy()
    kinked[12:, 0, 0] += 0.1  # a step at the start of the third chunk
    found = seam_jerk([kinked], 6)
    assert found["seams"] > 10.0
    assert found["elsewhere"] == pytest.approx(0.0, abs=1e-6)


def test_every_command_of_a_run_is_recorded():
    trace: list[np.ndarray] = []
    run_episodes(no_op, [draw_episode(0), draw_episode(1)], execute=5, ticks=10, commands=trace)
    assert np.stack(trace).shape == (10, 2, 4)


def test_the_wandering_policy_repeats_with_its_seed():
    joints = np.zeros((2, 4))
    first, second, other = (random_policy(seed)(joints, joints, []) for seed in (1, 1, 2))
    assert np.array_equal(first, second) and not np.array_equal(first, other)


@pytest.mark.parametrize("part", ["action", "vision", "runtime", "backends", "ros"])
def test_what_acts_knows_nothing_of_the_world(part):
    folder = Path(edgellm_ros.__file__).parent / part
    assert [path.name for path in folder.rglob("*.py") if "tabletop" in path.read_text("utf-8")] == []


def test_the_policy_of_an_engine_reads_no_state_of_the_world():
    tree = ast.parse(Path(engine_policy.__file__).read_text("utf-8"))
    own = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1}
    assert own == {"cameras", "geometry"}  # the cameras' names and the type of arrays


@pytest.mark.parametrize(
    ("option", "value"), [("--episodes", "-1"), ("--questions", "2000000"), ("--execute-steps", "17")]
)
def test_numbers_out_of_range_are_refused_by_name(option, value, capsys):
    assert main(["tabletop-eval", option, value]) == 2
    assert option in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_shipped_checkpoint_acts_and_answers(capsys):
    command = ["tabletop-eval", "--episodes", "8", "--held-out", "4", "--questions", "6", "--controls", "3", "--json"]
    assert main(command) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["success_rate"] >= 0.75
    assert result["held_out"]["success_rate"] >= 0.5
    assert result["answer_accuracy"] >= 0.8
    assert max(result["controls"].values()) <= 0.35
    assert result["chunk_latency_ms"]["median"] > 0.0
