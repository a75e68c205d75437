"""The node with a policy that drives: cameras and odometry in, words and then a path out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from nav_msgs.msg import Odometry, Path
from policy_bench import Robot, seconds
from policy_checkpoints import reference

from edgellm_ros.action.chunk import NANOSECONDS
from edgellm_ros.action.observation import Observation
from edgellm_ros.action.policy_runtime import PolicyRuntime
from edgellm_ros.builder.build import build_engine
from edgellm_ros.ros.action_messages import time_message

FOLDER, ARRAYS, CASES = reference("alpamayo")
CAMERAS = tuple(CASES["all"]["cameras"])
STEP = NANOSECONDS // 10


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return build_engine(FOLDER, tmp_path_factory.mktemp("driving") / "engine")


class Vehicle(Robot):
    """A robot with odometry, and an ear for paths."""

    def __init__(self, bench):
        super().__init__(bench, CAMERAS, ())
        self.paths = []
        self.odometry = self.node.create_publisher(Odometry, "odom", 50)
        self.node.create_subscription(Path, "action_path", self.paths.append, 50)

    def drive(self, stamp):
        """The way of the reference up to ``stamp``, as seen from another origin, 20 Hz."""
        for index in range(-50, 1):
            place = np.array([np.interp(index * 0.05, np.arange(-15, 1) * 0.1, ARRAYS["history"][:, axis])
                              for axis in range(3)])  # fmt: skip
            message = Odometry()
            message.header.stamp = time_message(stamp + index * NANOSECONDS // 20)
            pose = message.pose.pose
            pose.position.x, pose.position.y, pose.position.z = 7.0 - place[1], -3.0 + place[0], place[2]
            pose.orientation.z = pose.orientation.w = 0.5**0.5  # it looks to the left of the world's x
            self.odometry.publish(message)

    def show(self, stamp):
        for frame in range(4):
            pictures = {name: ARRAYS["images"][camera][frame] for camera, name in enumerate(CAMERAS)}
            self.see(pictures, stamp - (3 - frame) * STEP)


@pytest.fixture
def start(start_node, engine):
    given = {"engine.backend": "auto", "engine.directory": str(engine), "engine.threads": 1, "images.max_age": 30.0}
    bench = start_node({**given, "action.fixed_delay": 0.1})  # however busy the machine is
    vehicle = Vehicle(bench)
    heard = (*vehicle.images.values(), vehicle.odometry)
    bench.wait(lambda: all(publisher.get_subscription_count() for publisher in heard), "the node listens", 60.0)
    outputs = bench.node.state.policy.outputs
    bench.wait(lambda: outputs.path.get_subscription_count() > 0, "the vehicle listens", 60.0)
    return bench, vehicle


def observe(bench, vehicle, stamp):
    """Drive and see up to ``stamp``, and wait until the node has it all."""
    policy = bench.node.state.policy
    vehicle.drive(stamp)
    vehicle.show(stamp)
    bench.wait(lambda: policy.cameras.frames.next_after(stamp - 1, slop=0.0) is not None, "the images arrive")
    bench.wait(lambda: policy.odometry.events().get("taken", 0) >= 51, "the odometry arrives")
    return policy


def test_a_prompt_gives_words_and_a_path_from_what_was_seen_and_driven(start, engine):
    bench, vehicle = start
    stamp = vehicle.now() - STEP
    policy = observe(bench, vehicle, stamp)
    (report,) = bench.ask("drive on")
    bench.wait(lambda: vehicle.paths and vehicle.chunks, "the path arrives")
    path = vehicle.paths[0]
    history = policy.odometry.history(stamp, 16, 0.1, 0.0)
    assert np.abs(history - ARRAYS["history"]).max() < 1e-6
    images = dict(zip(CAMERAS, ARRAYS["images"], strict=True))
    with PolicyRuntime(engine, threads=1) as runtime:
        seen = Observation(images, np.zeros(0), stamp, history)
        wanted = runtime.compute(seen, "drive on", noise_seed=int(report["seed"]))
    found = [(pose.pose.position.x, pose.pose.position.y, pose.pose.position.z) for pose in path.poses]
    assert np.abs(np.array(found) - wanted.path.positions).max() < 1e-6
    times = [round(seconds(pose.header.stamp) * 10 - stamp / STEP, 3) for pose in path.poses]
    assert times == [1, 2, 3, 4, 5, 6] and path.header.frame_id == "base_link"
    assert np.array_equal(np.reshape(vehicle.chunks[0].data, wanted.rows.shape), wanted.rows)
    words = wanted.reasoning.replace("\0", "\ufffd")  # random weights may say what a message cannot hold
    assert bench.client.responses[-1] == "".join(bench.client.deltas) == words != ""
    assert report["finish_reason"] == "end_id" and report["x0_digest"] == wanted.noise_digest


def test_a_path_that_ends_in_the_past_is_never_published(start):
    bench, vehicle = start
    assert bench.set(action__fixed_delay=-1.0) == [""]
    stamp = vehicle.now() - 12 * STEP  # and the last waypoint is due six steps later
    observe(bench, vehicle, stamp)
    (report,) = bench.ask("drive on")
    assert report["refusal_code"] == "late_chunk" and "the chunk's last action was due" in report["refusal"]
    assert not vehicle.paths and not vehicle.chunks


@pytest.mark.parametrize(("missing", "code"), [("odometry", "stale_observation"), ("earlier pictures", "no_images")])
def test_without_the_whole_observation_there_is_no_path(start, missing, code):
    bench, vehicle = start
    stamp = vehicle.now() - STEP
    policy = bench.node.state.policy
    if missing == "odometry":
        vehicle.show(stamp)
    else:
        vehicle.drive(stamp)
        vehicle.see({name: ARRAYS["images"][camera][3] for camera, name in enumerate(CAMERAS)}, stamp)
    bench.wait(lambda: policy.cameras.frames.next_after(stamp - 1, slop=0.0) is not None, "the images arrive")
    (report,) = bench.ask("drive on")
    assert report["refusal_code"] == code or code in str(report)
    assert not vehicle.paths


def test_a_vehicle_without_odometry_or_pictures_may_not_drive_on(start):
    bench, vehicle = start
    stamp = vehicle.now() - STEP
    policy = observe(bench, vehicle, stamp)
    settings = bench.node.parameters.settings()
    assert policy._silent(settings, stamp + 5 * STEP) is None
    assert policy._silent(settings, stamp + 6 * STEP).code.value == "stale_observation"
    settings = replace(settings, images=replace(settings.images, max_age=0.01))
    assert policy._silent(settings, stamp + 5 * STEP).code.value == "no_images"
