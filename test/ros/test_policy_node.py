"""The node with a policy: observations in, trajectories out, and what is told of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from openvino_choice import prefer_openvino
from policy_bench import CAMERAS, JOINTS, TASK, Robot, pictures, seconds, show, state
from policy_checkpoints import reference, scaled_error
from visualization_msgs.msg import MarkerArray

from edgellm_ros.action.chunk import NANOSECONDS
from edgellm_ros.action.noise import NoiseMode, NoiseSeeds
from edgellm_ros.action.observation import Observation
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.builder.build import build_engine


def rows(message):
    return np.array([point.positions for point in message.points])


def test_a_prompt_gives_one_chunk_that_equals_the_runtime_s(start_policy, policy_engine):
    bench, robot = start_policy()
    stamp = show(bench, robot)
    (report,) = bench.ask(TASK)
    bench.wait(lambda: robot.trajectories and robot.chunks, "the chunk arrives")
    trajectory, chunk = robot.trajectories[0], robot.chunks[0]
    seed = NoiseSeeds(5, NoiseMode.STAMP).next(stamp)
    assert report["finish_reason"] == "end_id" and report["seed"] == str(seed) and report["chunks"] == "1"
    with PolicyRuntime(policy_engine, threads=1) as runtime:
        wanted = runtime.compute(Observation(pictures(), state(), stamp), TASK, noise_seed=seed)
    assert list(trajectory.joint_names) == list(JOINTS[:4])
    assert scaled_error(rows(trajectory), wanted.rows) < 1e-6
    assert np.array_equal(np.reshape(chunk.data, wanted.rows.shape), wanted.rows)
    assert f"seed={seed} x0={wanted.noise_digest}" in chunk.layout.dim[0].label
    assert report["x0_digest"] == wanted.noise_digest
    times = [seconds(point.time_from_start) for point in trajectory.points]
    assert np.allclose(times, 0.2 * np.arange(1, 8)) and all(not len(point.effort) for point in trajectory.points)


def test_the_order_of_joints_changes_with_every_message(start_policy):
    bench, robot = start_policy({"action.noise_mode": "fixed"})
    show(bench, robot)
    bench.ask(TASK)
    stamp = robot.observe(pictures(), state())
    values = dict(zip(JOINTS, state(), strict=True))
    names = (*reversed(JOINTS), "wheel")
    robot.feel(np.array([*(values[name] for name in reversed(JOINTS)), 9.0]), stamp + 1, names)
    bench.wait(lambda: bench.node.state.policy.joints.at(stamp + 1, 0.0) is not None, "the joints arrive")
    bench.ask(TASK)
    bench.wait(lambda: len(robot.chunks) == 2, "two chunks")
    assert robot.chunks[0].data == robot.chunks[1].data


def test_markers_say_what_is_followed_to_those_who_look(start_policy):
    bench, robot = start_policy({"action.noise_mode": "fixed"})
    show(bench, robot)
    bench.ask(TASK)
    seen = []
    bench.client.create_subscription(MarkerArray, "markers", seen.append, 1)
    bench.wait(bench.node.state.policy.outputs.markers.get_subscription_count, "somebody looks", 60.0)
    bench.ask(TASK)
    bench.wait(lambda: seen, "the markers arrive")
    (marker,) = seen[0].markers
    assert marker.text.startswith("7 actions from ") and marker.text.endswith("seed 5")


def test_diagnostics_show_what_came_and_what_was_followed(start_policy):
    bench, robot = start_policy()
    show(bench, robot)
    bench.ask(TASK)
    bench.wait(lambda: "policy" in bench.diagnostics, "the status")
    bench.wait(
        lambda: {v.key: v.value for v in bench.diagnostics["policy"].values}.get("chunks.followed") == "1", "the count"
    )
    values = {value.key: value.value for value in bench.diagnostics["policy"].values}
    assert values["joint_states.taken"] == "1" and values["chunks.followed"] == "1"
    assert json.loads(values["moving"]) is True


def test_diagnostics_tell_which_library_runs_which_graph(start_policy, monkeypatch):
    pytest.importorskip("openvino")
    prefer_openvino(monkeypatch)
    bench, robot = start_policy({"engine.backend": "openvino"})
    show(bench, robot)
    (report,) = bench.ask(TASK)
    assert report["finish_reason"] == "end_id" and report["chunks"] == "1"
    bench.wait(lambda: "device" in bench.diagnostics, "the status")
    values = {value.key: value.value for value in bench.diagnostics["device"].values}
    assert values["backend"] == "openvino"
    for graph in ("visual", "prefix", "action"):
        assert "times as fast" in values[f"library.{graph}.onnx"]


@pytest.mark.parametrize("stamp", ["observation", "now", "zero"])
def test_the_header_is_stamped_as_asked(start_policy, stamp):
    bench, robot = start_policy({"action.stamp": stamp})
    shown = show(bench, robot)
    bench.ask(TASK)
    bench.wait(lambda: robot.trajectories, "the trajectory arrives")
    header = robot.trajectories[0].header.stamp
    nanoseconds = header.sec * NANOSECONDS + header.nanosec
    assert {"observation": nanoseconds >= shown, "now": nanoseconds > shown, "zero": nanoseconds == 0}[stamp]
    times = [seconds(point.time_from_start) for point in robot.trajectories[0].points]
    assert np.allclose(np.diff(times), 0.2) and 0 < times[0] <= 0.2


def test_joints_that_the_robot_calls_otherwise_are_read_and_told_by_its_names(start_policy):
    names = ("a1", "a2", "a3", "hand")
    given = {"action.joint_names": list(names), "action.execute_steps": 3, "images.on_missing": "wait"}
    bench, robot = start_policy(given)
    robot.joints = ("hand", "wrist", "a3", "a2", "a1")
    stamp = robot.now()
    robot.see(pictures(), stamp)
    robot.feel(state()[[3, 4, 2, 1, 0]], stamp)
    bench.wait(lambda: bench.node.state.policy.joints.at(stamp, 0.0) is not None, "the joints arrive")
    assert np.array_equal(bench.node.state.policy.joints.at(stamp, 0.0)[0], state())
    bench.client.ask(TASK)
    bench.wait(lambda: robot.trajectories, "the trajectory arrives")
    assert tuple(robot.trajectories[0].joint_names) == names and len(robot.trajectories[0].points) == 3
    bench.client.cancel()
    bench.wait(lambda: not robot.trajectories[-1].points, "the robot holds")
    assert tuple(robot.trajectories[-1].joint_names) == names


@pytest.mark.parametrize(("task", "code"), [("", "empty_prompt"), ("move " * 100, "input_too_long")])
def test_a_task_that_cannot_be_read_is_refused(start_policy, task, code):
    bench, robot = start_policy()
    show(bench, robot)
    assert bench.ask(task)[0]["refusal_code"] == code and not robot.chunks


def test_a_policy_of_unknown_meaning_publishes_no_trajectory(start_node, tmp_path):
    path = build_engine(reference("smolvla")[0], tmp_path / "engine")
    names = [f"state_{k}" for k in range(5)]
    given = {"engine.backend": "auto", "engine.directory": str(path), "images.max_age": 30.0}
    bench = start_node({**given, "safety.max_state_age": 10.0})
    assert bench.node.state.policy.outputs.trajectory is None
    robot = Robot(bench, CAMERAS, tuple(names))
    bench.wait(lambda: all(p.get_subscription_count() for p in (*robot.images.values(), robot.states)), "listens", 60.0)
    bench.wait(lambda: bench.node.state.policy.outputs.chunk.get_subscription_count(), "heard", 60.0)
    show(bench, robot)
    assert bench.ask(TASK)[0]["chunks"] == "1"
    bench.wait(lambda: robot.chunks, "the raw chunk arrives")
    assert robot.chunks[0].layout.dim[1].label.startswith("action_0 [unknown]")


def test_the_pruner_leaves_actions_alone_unless_it_is_told_not_to_and_reports_say_so(start_policy):
    bench, robot = start_policy({"action.noise_mode": "fixed"})
    show(bench, robot)
    reports = [bench.ask(TASK)[0]]
    for change in (
        {"visual_pruner__enabled": True, "visual_pruner__min_visual_tokens": 1, "visual_pruner__reduction_ratio": 0.5},
        {"visual_pruner__allow_with_actions": True},
    ):
        assert set(bench.set(**change)) == {""}
        reports += bench.ask(TASK)
    bench.wait(lambda: len(robot.chunks) == 3, "three chunks")
    assert [report["visual_pruning"] for report in reports] == ["off", "actions", "applied"]
    assert [report["visual_tokens_kept"] for report in reports] == ["12", "12", "6"]
    assert robot.chunks[0].data == robot.chunks[1].data != robot.chunks[2].data
