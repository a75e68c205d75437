"""The evaluation: what it measures, what it refuses, and that the shipped checkpoint does its tasks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import edgellm_ros
from edgellm_ros.action.chunk import NANOSECONDS, ActionChunk
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.action.timeline import Splice
from edgellm_ros.cli.engine_cache import build_tabletop
from edgellm_ros.cli.main import main
from edgellm_ros.tabletop.engine_policy import EnginePolicy
from edgellm_ros.tabletop.episodes import draw_episode
from edgellm_ros.tabletop.evaluation import Baseline, other_task
from edgellm_ros.tabletop.expert import TICK, expert_command
from edgellm_ros.tabletop.geometry import JOINT_NAMES
from edgellm_ros.tabletop.smoothness import CommandTrace, mean_jerks
from edgellm_ros.tabletop.tasks import TaskBatch
from edgellm_ros.tabletop.timed_episodes import Timing, run_timed


def traced(commands, seams=()):
    trace = CommandTrace()
    for index, command in enumerate(commands):
        if index in seams:
            trace.seam()
        trace.add(command)
    return trace


def test_jerk_is_found_where_plans_meet():
    smooth = np.zeros((24, 4))
    smooth[:, 0] = np.linspace(0.0, 1.0, 24)
    assert mean_jerks([traced(smooth, (6, 12))])["seams"] == pytest.approx(0.0, abs=1e-6)
    kinked = smooth.copy()
    kinked[12:, 0] += 0.1  # a step where the second plan begins
    found = mean_jerks([traced(kinked, (6, 12))])
    assert found["seams"] > 10.0 and found["elsewhere"] == pytest.approx(0.0, abs=1e-6)
    assert mean_jerks([traced(smooth[:3])]) == {}


def test_the_wandering_policy_repeats_with_its_seed():
    joints = np.zeros(4)
    first, second, other, still = (Baseline(seed).chunk(np.empty(0), joints, "", 0).rows for seed in (1, 1, 2, None))
    assert np.array_equal(first, second) and not np.array_equal(first, other)
    assert not still.any()


def test_doing_nothing_and_wandering_stand_beside_every_result_and_fail(engine, capsys):
    command = ["tabletop-eval", "--engine-dir", str(engine), "--episodes", "1", "--held-out", "0", "--questions", "0"]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["controls"] == {"no_op": 0.0, "random": 0.0}
    assert main([*command, "--controls", "0", "--json"]) == 0
    assert "controls" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("count", [1, 2, 60])
def test_a_shuffled_prompt_is_never_the_episode_s_own(count):
    episodes = [draw_episode(seed) for seed in range(count)]
    others = [other_task(episode, episodes[(index + 1) % count]) for index, episode in enumerate(episodes)]
    assert all(other != episode.text for other, episode in zip(others, episodes, strict=True))
    assert len(set(others)) > count // 2


class Recorder:
    """A policy that goes to one place and keeps what it was given."""

    horizon = 16

    def __init__(self):
        self.stamps, self.committed = [], []

    def chunk(self, views, joints, text, stamp, chunking=None, committed=None):
        self.stamps.append(stamp)
        self.committed.append((chunking, committed))
        rows = joints + np.linspace(0.05, 0.8, 16)[:, None] * np.array([0.3, 0.2, 0.1, 0.0])
        return ActionChunk(rows, stamp, round(TICK * NANOSECONDS), JOINT_NAMES, ("rad", "rad", "rad", "1"))


@pytest.mark.parametrize("splice", list(Splice))
@pytest.mark.parametrize("latency", [0.0, 0.15, 0.39])
def test_chunks_come_late_by_the_latency_and_observations_keep_their_period(latency, splice):
    recorder = Recorder()
    found = run_timed(recorder, draw_episode(3), Timing(latency, 6, splice))
    assert np.allclose(np.diff(recorder.stamps), 6 * TICK * NANOSECONDS, atol=100)
    assert np.allclose(found.staleness_ms, 1000.0 * latency, atol=1000 / 60 + 1e-3) and not found.late
    guided = [chunking for chunking, committed in recorder.committed if committed is not None]
    assert bool(guided) == (splice is Splice.RTC)
    if guided:
        assert guided[0].delay == int(np.ceil(latency / TICK - 1e-9)) and guided[0].horizon == guided[0].delay + 3


def test_the_expert_wins_in_the_world_s_own_time():
    class Expert:
        """Plans one tick ahead, from the state of the world that it is given by hand."""

        horizon = 1

        def __init__(self, episode):
            self.tasks = TaskBatch.of([episode.task])

        def chunk(self, views, joints, text, stamp, chunking=None, committed=None):
            command = expert_command(self.worlds, self.tasks)
            rows = np.stack([command[0], command[0]])
            return ActionChunk(rows, stamp, round(TICK * NANOSECONDS), JOINT_NAMES, ("rad", "rad", "rad", "1"))

    won = []
    for seed in range(4):
        episode = draw_episode(seed)
        expert = Expert(episode)

        def watch(simulation, expert=expert):
            expert.worlds = simulation.worlds

        won.append(run_timed(expert, episode, Timing(0.0, 1), on_observation=watch).score.success)
    assert sum(won) >= 3


@pytest.mark.parametrize("part", ["action", "vision", "runtime", "backends", "ros"])
def test_what_acts_knows_nothing_of_the_world(part):
    folder = Path(edgellm_ros.__file__).parent / part
    assert [path.name for path in folder.rglob("*.py") if "tabletop" in path.read_text("utf-8")] == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--episodes", "-1"], "--episodes is -1"),
        (["--questions", "2000000"], "--questions"),
        (["--execute-steps", "17"], "--execute-steps is 17"),
        (["--latency", "nan"], "--latency is nan"),
        (["--pruner", "1"], "--pruner is 1"),
        (["--episodes", "0", "--questions", "0"], "--episodes, --held-out and --questions are all 0"),
        (["--node", "--latency", "5"], "not for --node"),
        (["--domain", "5"], "--domain is given without --node"),
        (["--engine-dir", "somewhere", "--precision", "int8"], "leave one of them out"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(arguments, named, capsys):
    assert main(["tabletop-eval", *arguments]) == 2
    assert named in capsys.readouterr().err


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    pytest.importorskip("onnx")
    return build_tabletop(tmp_path_factory.mktemp("tabletop") / "engine")


def test_equal_seeds_give_equal_episodes_byte_for_byte_whatever_ran_before(engine):
    runs = []
    with PolicyRuntime(engine, threads=1) as runtime:
        policy = EnginePolicy(runtime)
        for seed in (4, 9, 4):
            policy.restart(seed)
            runs.append(run_timed(policy, draw_episode(seed), Timing(0.15, splice=Splice.RTC)))
    first, other, again = (np.stack(run.trace._commands).tobytes() for run in runs)
    assert first == again != other
    assert runs[0].score == runs[2].score


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("options", "accuracy"),
    [
        ([], 0.8),
        (["--latency", "150", "--splice", "blend"], 0.8),
        (["--pruner", "0.25"], 0.3),  # sixteen tokens a picture leave little to leave out
    ],
)
def test_the_shipped_checkpoint_acts_and_answers(options, accuracy, engine, capsys):
    command = ["tabletop-eval", "--engine-dir", str(engine), "--episodes", "8", "--held-out", "4", "--questions", "6"]
    assert main([*command, "--controls", "3", "--json", *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["success_rate"] >= 0.75
    assert result["held_out"]["success_rate"] >= 0.5
    assert result["answer_accuracy"] >= accuracy
    assert max(result["controls"].values()) <= 0.35
    assert result["chunk_latency_ms"]["median"] > 0.0 and result["seam_jerk"]["seams"] > 0.0
    assert result["staleness_ms"]["median"] == pytest.approx(150.0 if options[:1] == ["--latency"] else 0.0, abs=20.0)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_node_does_the_same_through_its_topics(engine, capsys, other_domain):
    pytest.importorskip("rclpy")
    command = ["tabletop-eval", "--engine-dir", str(engine), "--node", "--domain", os.environ["ROS_DOMAIN_ID"]]
    assert main([*command, "--episodes", "3", "--held-out", "1", "--questions", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["mode"] == "node" and result["episodes"] == 3 and result["questions"] == 2
    assert result["success_rate"] >= 0.6 and result["answer_accuracy"] >= 0.5
    assert result["staleness_ms"]["median"] > 0.0 and result["chunk_latency_ms"]["median"] > 0.0
