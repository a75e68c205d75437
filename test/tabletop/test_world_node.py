"""The world as a ROS 2 node: a client sees cameras and joints, sends trajectories, resets and asks for the score."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

pytest.importorskip("rclpy")

import rclpy
from builtin_interfaces.msg import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.qos import qos_profile_sensor_data
from rclpy.serialization import serialize_message
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from edgellm_ros.tabletop.episodes import draw_episode
from edgellm_ros.tabletop.geometry import JOINT_NAMES
from edgellm_ros.tabletop.render import render_views
from edgellm_ros.tabletop.world_node import WorldNode

DEADLINE = 60.0
pytestmark = pytest.mark.usefixtures("other_domain")


class Bench:
    """A world and a client in one context, spun by one thread each."""

    def __init__(self, remaps: dict[str, str] | None = None, **parameters: object) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        overrides = [Parameter(name, value=value) for name, value in parameters.items()]
        rules = [word for source, target in (remaps or {}).items() for word in ("-r", f"{source}:={target}")]
        arguments = ["--ros-args", *rules] if rules else []
        self.world = WorldNode(context=self.context, parameter_overrides=overrides, cli_args=arguments)
        self.client = rclpy.create_node("client", context=self.context)
        self.images: dict[str, Image] = {}
        self.joints: list[JointState] = []
        self.clocks: list[int] = []
        for name in ("top", "angled"):
            self.client.create_subscription(
                Image, f"{name}/image_raw", lambda m, name=name: self.images.update({name: m}), qos_profile_sensor_data
            )
        self.client.create_subscription(JointState, "joint_states", self.joints.append, qos_profile_sensor_data)
        self.client.create_subscription(
            Clock, "/clock", lambda m: self.clocks.append(m.clock.sec * 10**9 + m.clock.nanosec), 10
        )
        self.trajectories = self.client.create_publisher(JointTrajectory, "joint_trajectory", 10)
        self.executors = [SingleThreadedExecutor(context=self.context) for _ in range(2)]
        self.threads = [threading.Thread(target=executor.spin, daemon=True) for executor in self.executors]
        for executor, node, thread in zip(self.executors, (self.world, self.client), self.threads, strict=True):
            executor.add_node(node)
            thread.start()

    def trajectories_seen(self) -> int:
        """How many publishers the world's trajectory topic has."""
        return self.world.count_publishers(self.world.resolve_topic_name("joint_trajectory"))

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end, "the deadline passed"
            time.sleep(0.01)

    def call(self, name: str) -> tuple[bool, dict]:
        service = self.client.create_client(Trigger, f"tabletop/{name}")
        assert service.wait_for_service(DEADLINE)
        future = service.call_async(Trigger.Request())
        self.until(future.done)
        return future.result().success, json.loads(future.result().message)

    def close(self) -> None:
        for executor, thread in zip(self.executors, self.threads, strict=True):
            executor.shutdown()
            thread.join(DEADLINE)
        self.world.destroy_node()
        self.client.destroy_node()
        rclpy.shutdown(context=self.context)


@pytest.fixture
def start() -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(**parameters: object) -> Bench:
        benches.append(Bench(**parameters))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


def trajectory(*rows: list[float], names: tuple[str, ...] = JOINT_NAMES) -> JointTrajectory:
    message = JointTrajectory(joint_names=list(names))
    for index, row in enumerate(rows):
        nanoseconds = 200_000_000 * (index + 1)
        message.points.append(JointTrajectoryPoint(positions=row, time_from_start=Duration(nanosec=nanoseconds)))
    return message


def test_cameras_and_joints_carry_the_simulated_time(start):
    bench = start(seed=4, real_time_factor=4.0)
    bench.until(lambda: len(bench.images) == 2 and len(bench.joints) > 5 and len(bench.clocks) > 5)
    expected = render_views(draw_episode(4).worlds, 0)
    for view, name in zip(expected, ("top", "angled"), strict=True):
        image = bench.images[name]
        assert (image.encoding, image.height, image.width, image.step) == ("rgb8", 128, 128, 384)
        assert np.array_equal(np.frombuffer(bytes(image.data), np.uint8).reshape(128, 128, 3), view)
        assert image.header.frame_id == f"{name}_camera"
    assert bench.joints[0].name == list(JOINT_NAMES)
    assert bench.joints[0].position.tolist() == pytest.approx(draw_episode(4).worlds.joints[0].tolist())
    stamps = [message.header.stamp.sec * 10**9 + message.header.stamp.nanosec for message in bench.joints]
    assert all(later > earlier for earlier, later in itertools.pairwise(stamps))
    assert set(stamps) & set(bench.clocks)


def test_a_trajectory_is_followed_and_held(start):
    bench = start(real_time_factor=4.0)
    bench.until(lambda: bool(bench.joints) and bench.trajectories.get_subscription_count() == 1)
    goal = (np.array(bench.joints[-1].position) + np.array([0.1, -0.1, 0.05, 0.0])).tolist()
    bench.trajectories.publish(trajectory(goal))
    bench.until(lambda: bench.joints[-1].position.tolist() == pytest.approx(goal, abs=1e-6))


def test_a_malformed_trajectory_is_refused_and_counted(start):
    bench = start(real_time_factor=4.0)
    bench.until(lambda: bool(bench.joints) and bench.trajectories.get_subscription_count() == 1)
    before = bench.joints[-1].position.tolist()
    bench.trajectories.publish(trajectory([1.0, 1.0], names=JOINT_NAMES[:2]))
    bench.until(lambda: bench.world.refused == 1)
    assert bench.call("score")[1]["refused_trajectories"] == 1
    assert bench.joints[-1].position.tolist() == pytest.approx(before)


@pytest.mark.parametrize("kind", ["nothing", "cut", "noise", "large", "nowhere"])
def test_a_hostile_trajectory_is_refused_and_the_world_goes_on(start, kind):
    bench = start(real_time_factor=4.0)
    bench.until(lambda: bool(bench.joints) and bench.trajectories.get_subscription_count() == 1)
    whole = serialize_message(trajectory([1.0, 1.0, 1.0, 0.0]))
    if kind == "large":
        many = trajectory([0.0] * 4)
        many.points *= 20_000
        whole = serialize_message(many)
    elif kind == "nowhere":
        whole = serialize_message(trajectory([1e308] * 4, [-1e308] * 4))
    else:
        whole = {"nothing": whole[:4], "cut": whole[: len(whole) // 2], "noise": whole[:4] + b"\xff" * 200}[kind]
    bench.trajectories.publish(whole)
    bench.until(lambda: bench.world.refused == 1)
    heard = len(bench.joints)
    bench.until(lambda: len(bench.joints) > heard + 3)
    assert np.isfinite(bench.joints[-1].position).all()


def test_services_reset_with_a_seed_and_score(start):
    bench = start(seed=1, real_time_factor=4.0)
    bench.world.set_parameters([Parameter("seed", value=9)])
    done, told = bench.call("reset")
    assert done and told == {"seed": 9, "held_out": False, "task": draw_episode(9).text}
    success, score = bench.call("score")
    assert not success and score["seed"] == 9 and score["task"] == draw_episode(9).text


def test_the_nodes_own_clock_can_stamp_instead(start):
    bench = start(simulated_time=False)
    bench.until(lambda: bool(bench.joints))
    assert abs(bench.joints[-1].header.stamp.sec - time.time()) < DEADLINE
    assert bench.clocks == []


def world_process(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "edgellm_ros.tabletop.world_process", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["INT", "TERM", "HUP"])
def test_a_signal_ends_the_process_without_a_word_while_it_publishes(number, other_domain):
    context = rclpy.Context()
    rclpy.init(context=context)
    listener, heard = rclpy.create_node("listener", context=context), []
    listener.create_subscription(JointState, "joint_states", heard.append, qos_profile_sensor_data)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(listener)
    process = world_process("--ros-args", "-p", "real_time_factor:=50.0")  # so that it is always about to publish
    try:
        end = time.monotonic() + DEADLINE
        while not heard:
            assert time.monotonic() < end and process.poll() is None
            executor.spin_once(0.05)
        process.send_signal(number)
        said, _ = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
        executor.shutdown()
        listener.destroy_node()
        rclpy.shutdown(context=context)
    assert (process.returncode, said) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["fast"], "The argument fast is unknown"),
        (["--ros-args", "-p", "seed:=-1"], "seed"),
        (["--ros-args", "-p", "seed:=soon"], "seed"),
        (["--ros-args", "-p", "real_time_factor:=1000.0"], "real_time_factor"),
        (["--ros-args", "--params-file", "nowhere.yaml"], "nowhere.yaml"),
    ],
    ids=["unknown", "out of range", "wrong type", "too fast", "no file"],
)
def test_a_command_line_that_cannot_be_taken_ends_with_2_and_one_sentence(arguments, reason, other_domain):
    process = world_process(*arguments)
    said, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 2
    (line,) = [line for line in said.splitlines() if "[FATAL]" in line]
    assert reason in line and "Traceback" not in said
