"""The node with a policy: observations in, trajectories out, and everything that stops motion."""

from __future__ import annotations

import json

import numpy as np
import pytest
from lifecycle_msgs.msg import Transition
from openvino_choice import prefer_openvino
from policy_bench import Robot, seconds
from policy_checkpoints import reference, scaled_error
from visualization_msgs.msg import MarkerArray

from edgellm_ros.action.chunk import NANOSECONDS
from edgellm_ros.action.noise import NoiseMode, NoiseSeeds
from edgellm_ros.action.observation import Observation
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.builder.build import build_engine
from edgellm_ros.ros.client import pairs

JOINTS = ("pan", "lift", "elbow", "grip", "wrist")
CAMERAS = ("top", "wrist", "side")
TASK = "put the red cube on the blue disc"
SETTINGS = """
meaning: joint_position
step_time: 0.2
state: {names: [pan, lift, elbow, grip, wrist], units: [rad, rad, rad, m, rad]}
action: {names: [pan, lift, elbow, grip], units: [rad, rad, rad, m]}
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    root = tmp_path_factory.mktemp("policy")
    (root / "robot.yaml").write_text(SETTINGS)
    return build_engine(reference("smolvla")[0], root / "engine", policy_settings=root / "robot.yaml")


@pytest.fixture
def start(start_node, engine):
    def starts(parameters=None, **options):
        given = {"engine.backend": "auto", "engine.directory": str(engine), "engine.threads": 1, "images.max_age": 30.0}
        given |= {"safety.max_state_age": 10.0, **(parameters or {})}
        bench = start_node(given, **options)
        robot = Robot(bench, CAMERAS, JOINTS)
        bench.wait(
            lambda: all(publisher.get_subscription_count() for publisher in (*robot.images.values(), robot.states)),
            "the node listens",
            60.0,
        )
        wanted = [bench.node.state.policy.outputs.chunk, bench.node.state.policy.outputs.trajectory]
        bench.wait(lambda: all(p.get_subscription_count() for p in wanted if p is not None), "the robot listens", 60.0)
        return bench, robot

    return starts


def pictures():
    _, arrays, _ = reference("smolvla")
    return {name: arrays[f"image_{name}"] for name in CAMERAS}


def state():
    return reference("smolvla")[1]["all_state"]


def show(bench, robot, stamp=None):
    """Publish one observation and wait until the node has it."""
    stamp = robot.observe(pictures(), state(), stamp)
    policy = bench.node.state.policy
    cameras = policy.cameras

    def came():
        cameras._look()  # frames wait to be used
        return cameras.frames.next_after(stamp - 1, slop=0.0) is not None

    bench.wait(came, "the images arrive")
    bench.wait(lambda: policy.joints.at(stamp, 0.0) is not None, "the joints arrive")
    return stamp


def rows(message):
    return np.array([point.positions for point in message.points])


def test_a_prompt_gives_one_chunk_that_equals_the_runtime_s(start, engine):
    bench, robot = start()
    stamp = show(bench, robot)
    (report,) = bench.ask(TASK)
    bench.wait(lambda: robot.trajectories and robot.chunks, "the chunk arrives")
    trajectory, chunk = robot.trajectories[0], robot.chunks[0]
    seed = NoiseSeeds(5, NoiseMode.STAMP).next(stamp)
    assert report["finish_reason"] == "end_id" and report["seed"] == str(seed) and report["chunks"] == "1"
    with PolicyRuntime(engine, threads=1) as runtime:
        wanted = runtime.compute(Observation(pictures(), state(), stamp), TASK, noise_seed=seed)
    assert list(trajectory.joint_names) == list(JOINTS[:4])
    assert scaled_error(rows(trajectory), wanted.rows) < 1e-6
    assert np.array_equal(np.reshape(chunk.data, wanted.rows.shape), wanted.rows)
    assert f"seed={seed} x0={wanted.noise_digest}" in chunk.layout.dim[0].label
    assert report["x0_digest"] == wanted.noise_digest
    times = [seconds(point.time_from_start) for point in trajectory.points]
    assert np.allclose(times, 0.2 * np.arange(1, 8)) and all(not len(point.effort) for point in trajectory.points)


def test_the_order_of_joints_changes_with_every_message(start):
    bench, robot = start({"action.noise_mode": "fixed"})
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


@pytest.mark.parametrize("mode", ["fixed", "sequence"])
def test_seeds_follow_the_mode_and_live_changes(start, mode):
    bench, robot = start({"action.noise_mode": mode, "action.noise_seed": 7})
    show(bench, robot)
    seeds = [bench.ask(TASK)[0]["seed"] for _ in range(2)]
    assert seeds == (["7", "7"] if mode == "fixed" else ["7", "8"])
    assert bench.set(action__noise_seed=-1) == [""]
    assert "action.noise_seed" in bench.set(action__noise_seed=2**31)[0]
    if mode == "sequence":
        bench.trigger("reset")
    assert bench.ask(TASK)[0]["seed"] == "-1"


def test_a_random_seed_is_named_and_gives_the_bytes_again(start):
    bench, robot = start({"action.noise_mode": "random"})
    show(bench, robot)
    seeds = [bench.ask(TASK)[0]["seed"] for _ in range(2)]
    bench.wait(lambda: len(robot.chunks) == 2, "two chunks")
    assert seeds[0] != seeds[1] and robot.chunks[0].data != robot.chunks[1].data
    assert bench.set(action__noise_mode="fixed", action__noise_seed=int(seeds[0])) == ["", ""]
    bench.ask(TASK)
    bench.wait(lambda: len(robot.chunks) == 3, "three chunks")
    assert robot.chunks[2].data == robot.chunks[0].data


def test_markers_say_what_is_followed_to_those_who_look(start):
    bench, robot = start({"action.noise_mode": "fixed"})
    show(bench, robot)
    bench.ask(TASK)
    seen = []
    bench.client.create_subscription(MarkerArray, "markers", seen.append, 1)
    bench.wait(bench.node.state.policy.outputs.markers.get_subscription_count, "somebody looks", 60.0)
    bench.ask(TASK)
    bench.wait(lambda: seen, "the markers arrive")
    (marker,) = seen[0].markers
    assert marker.text.startswith("7 actions from ") and marker.text.endswith("seed 5")


@pytest.mark.parametrize(
    ("break_it", "code", "sentence"),
    [
        ("nothing shown", "no_images", "No image has come"),
        ("no joints", "bad_observation", "No joint states have come yet"),
        ("a joint is missing", "bad_observation", "lack 'wrist'"),
        ("a joint is not finite", "bad_observation", "'lift' is nan"),
        ("old joints", "stale_observation", "joint states are"),
    ],
)
def test_without_a_valid_observation_nothing_moves(start, break_it, code, sentence):
    bench, robot = start({"safety.max_state_age": 0.5})
    policy = bench.node.state.policy
    if break_it != "nothing shown":
        stamp = robot.now()
        values = np.array(state())
        names = JOINTS
        if break_it == "a joint is missing":
            names, values = JOINTS[:4], values[:4]
        elif break_it == "a joint is not finite":
            values[1] = np.nan
        elif break_it == "old joints":
            robot.feel(values, stamp - NANOSECONDS)
        _show_parts(robot, names, values, stamp, break_it)
        bench.wait(lambda: policy.cameras.frames.next_after(stamp - 1, slop=0.0) is not None, "the images arrive")
        if break_it != "no joints":
            bench.wait(lambda: policy.joints.events(), "the joints arrive")
    (report,) = bench.ask(TASK)
    assert report["refusal_code"] == code and sentence in report["refusal"]
    assert not robot.trajectories and not robot.chunks


def _show_parts(robot, names, values, stamp, break_it):
    robot.see(pictures(), stamp)
    if break_it not in ("no joints", "old joints"):
        robot.feel(values, stamp, names)


def test_a_chunk_beyond_a_limit_holds_the_robot_and_says_which_joint(start):
    bench, robot = start({"safety.upper": [100.0, -100.0, 100.0, 100.0], "action.noise_mode": "fixed"})
    show(bench, robot)
    (report,) = bench.ask(TASK)
    assert report["seed"] == "5"
    assert "lift" in report["refusal"] and "above its upper limit" in report["refusal"]
    bench.wait(lambda: robot.trajectories, "the hold arrives")
    assert not robot.trajectories[0].points and not robot.chunks


UNFIT = [
    ("safety.max_step", [0.1], "safety.max_step has 1 entries; want 4"),
    ("safety.lower", [0.1] * 5, "safety.lower has 5 entries; want 4"),
    ("action.execute_steps", 8, "action.execute_steps is 8; a chunk of this policy has 7 actions"),
]


@pytest.mark.parametrize(("name", "value", "sentence"), UNFIT)
def test_what_does_not_fit_the_policy_stops_the_configuration(start_node, engine, name, value, sentence):
    bench = start_node({"engine.backend": "auto", "engine.directory": str(engine), name: value}, active=False)
    assert not bench.change(Transition.TRANSITION_CONFIGURE)
    assert sentence in bench.node.state.failure
    assert bench.lifecycle == "unconfigured"


def test_what_does_not_fit_the_policy_is_refused_while_it_runs(start):
    bench, _robot = start()
    for name, value, sentence in UNFIT:
        assert sentence in bench.set(**{name.replace(".", "__"): value})[0]
    assert set(bench.set(action__execute_steps=7, safety__max_step=[1.0] * 4)) == {""}
    assert bench.set(safety__max_step=[]) == [""]


@pytest.mark.parametrize("way", ["cancel", "disable", "deactivate", "reset"])
def test_whatever_ends_a_task_holds_the_robot_at_once(start, way):
    bench, robot = start({"action.rate": 5.0, "generation.timeout": 0.0})
    show(bench, robot)
    bench.client.ask(TASK)
    bench.wait(lambda: robot.trajectories, "the robot moves")
    if way == "cancel":
        bench.client.cancel()
    elif way == "disable":
        bench.enable(False)
    elif way == "deactivate":
        assert bench.change(Transition.TRANSITION_DEACTIVATE)
    else:
        bench.trigger("reset")
    bench.wait(lambda: bench.client.reports, "the task ends")
    bench.wait(lambda: not robot.trajectories[-1].points, "the robot holds")
    count = len(robot.trajectories)
    assert pairs(bench.client.reports[-1])["refusal_code"] in ("cancelled", "disabled", "not_active")
    assert not bench.node.state.policy.motion.moving
    show(bench, robot)
    assert len(robot.trajectories) == count


def test_a_running_task_takes_new_observations_and_live_settings(start):
    bench, robot = start({"action.rate": 20.0, "generation.timeout": 0.0, "action.noise_mode": "fixed"})
    show(bench, robot)
    bench.client.ask(TASK)
    bench.wait(lambda: len(robot.chunks) >= 2, "chunks come")
    assert bench.set(action__noise_seed=11) == [""]
    bench.wait(lambda: " seed=11 " in robot.chunks[-1].layout.dim[0].label, "the new seed is used")
    stamp = show(bench, robot)
    label = f"stamp={stamp // NANOSECONDS}.{stamp % NANOSECONDS:09d}"
    bench.wait(lambda: label in robot.chunks[-1].layout.dim[0].label, "the new observation is used")


@pytest.mark.parametrize("on_missing", ["reject", "wait"])
def test_a_camera_that_stops_holds_the_robot_until_it_is_back(start, on_missing):
    given = {"action.rate": 20.0, "generation.timeout": 0.0, "images.max_age": 0.5, "images.on_missing": on_missing}
    bench, robot = start(given)
    show(bench, robot)
    bench.client.ask(TASK)
    bench.wait(lambda: robot.trajectories, "the robot moves")
    bench.wait(lambda: not robot.trajectories[-1].points, "the robot holds")
    counts = bench.node.state.policy.motion.counts()
    assert counts["fault.no_images"] and "starved" not in counts  # at once, not at the end of its plan
    show(bench, robot)
    bench.wait(lambda: robot.trajectories[-1].points, "the robot moves again")
    assert not bench.client.reports  # the task was never ended


def test_diagnostics_show_what_came_and_what_was_followed(start):
    bench, robot = start()
    show(bench, robot)
    bench.ask(TASK)
    bench.wait(lambda: "policy" in bench.diagnostics, "the status")
    bench.wait(
        lambda: {v.key: v.value for v in bench.diagnostics["policy"].values}.get("chunks.followed") == "1", "the count"
    )
    values = {value.key: value.value for value in bench.diagnostics["policy"].values}
    assert values["joint_states.taken"] == "1" and values["chunks.followed"] == "1"
    assert json.loads(values["moving"]) is True


def test_diagnostics_tell_which_library_runs_which_graph(start, monkeypatch):
    pytest.importorskip("openvino")
    prefer_openvino(monkeypatch)
    bench, robot = start({"engine.backend": "openvino"})
    show(bench, robot)
    (report,) = bench.ask(TASK)
    assert report["finish_reason"] == "end_id" and report["chunks"] == "1"
    bench.wait(lambda: "device" in bench.diagnostics, "the status")
    values = {value.key: value.value for value in bench.diagnostics["device"].values}
    assert values["backend"] == "openvino"
    for graph in ("visual", "prefix", "action"):
        assert "times as fast" in values[f"library.{graph}.onnx"]


@pytest.mark.parametrize("stamp", ["observation", "now", "zero"])
def test_the_header_is_stamped_as_asked(start, stamp):
    bench, robot = start({"action.stamp": stamp})
    shown = show(bench, robot)
    bench.ask(TASK)
    bench.wait(lambda: robot.trajectories, "the trajectory arrives")
    header = robot.trajectories[0].header.stamp
    nanoseconds = header.sec * NANOSECONDS + header.nanosec
    assert {"observation": nanoseconds >= shown, "now": nanoseconds > shown, "zero": nanoseconds == 0}[stamp]


@pytest.mark.parametrize(("task", "code"), [("", "empty_prompt"), ("move " * 100, "input_too_long")])
def test_a_task_that_cannot_be_read_is_refused(start, task, code):
    bench, robot = start()
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


def test_the_pruner_leaves_actions_alone_unless_it_is_told_not_to_and_reports_say_so(start):
    bench, robot = start({"action.noise_mode": "fixed"})
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
