"""The whole chain over ROS: world, cameras, the acting node with the shipped checkpoint, trajectories, score."""

from __future__ import annotations

import json
import time

import pytest

pytest.importorskip("rclpy")

from rclpy.node import NodeNameNonExistentError
from std_msgs.msg import Empty, String
from test_world_node import Bench

from edgellm_ros.builder.build import build_engine
from edgellm_ros.ros.launch_spec import NodeSpec
from edgellm_ros.ros.node_process import NodeProcess
from edgellm_ros.tabletop.checkpoint_files import checkpoint_directory
from edgellm_ros.tabletop.episodes import draw_episode
from edgellm_ros.tabletop.launch_spec import tabletop_specs
from edgellm_ros.tabletop.tasks import TaskKind

TIME_LIMIT = 30.0  # s for a task that takes about eight on an idle machine
REST_LIMIT = 15.0  # s until the arm has been still for a second of the world's time
TRIES = 2  # a busy machine starves the node now and then
pytestmark = pytest.mark.usefixtures("other_domain")


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    source = checkpoint_directory()
    folder = tmp_path_factory.mktemp("tabletop") / "engine"
    return build_engine(source, folder, precision="int8", policy_settings=source / "policy_settings.yaml")


def seed_of(kind: TaskKind) -> int:
    return next(seed for seed in range(3000, 3100) if draw_episode(seed).task.kind == kind)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_acting_node_hears_cameras_joints_and_words_and_calls_no_service(engine):
    _, spec = tabletop_specs({"engine_dir": str(engine)})
    bench = Bench(seed=1)
    heard = {"/top/image_raw", "/angled/image_raw", "/joint_states", "/prompt", "/cancel", "/clock"}

    def topics():
        return {name for name, _ in bench.client.get_subscriber_names_and_types_by_node(spec.name, "/")}

    try:
        with NodeProcess(spec) as node:
            bench.until(lambda: node.exit_code is not None or bench.trajectories_seen())  # it is configured
            bench.until(lambda: node.exit_code is not None or _knows(topics, heard))
            assert node.exit_code is None, node.output()
            assert topics() - {"/parameter_events"} == heard
            assert bench.client.get_client_names_and_types_by_node(spec.name, "/") == []
    finally:
        bench.close()


def _knows(topics, heard):
    try:
        return heard <= topics()
    except NodeNameNonExistentError:  # discovery has not found it yet
        return False


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [TaskKind.TOUCH, TaskKind.PUSH_LEFT, TaskKind.PUT], ids=lambda kind: kind.name.lower())
def test_a_sentence_on_a_topic_moves_the_arm_until_the_task_is_done(engine, kind):
    # The world's clock is slow, so that chunks of a busy machine are not too old for it.
    bench = Bench(remaps={"joint_trajectory": "action_trajectory"}, seed=seed_of(kind), real_time_factor=0.5)
    spec = NodeSpec(
        "edgellm",
        "",
        parameters={
            "engine.directory": str(engine),
            "action.rate": 4.0,
            "images.on_missing": "wait",
            "autostart": True,
            "use_sim_time": True,
        },
    )
    try:
        prompt = bench.client.create_publisher(String, "prompt", 10)
        cancel = bench.client.create_publisher(Empty, "cancel", 10)
        with NodeProcess(spec) as node:
            bench.until(lambda: node.exit_code is not None or prompt.get_subscription_count() == 1)
            bench.until(lambda: node.exit_code is not None or bench.trajectories_seen() == 1)
            assert node.exit_code is None, node.output()
            time.sleep(1.0)  # the discovery of services goes on while topics are known already
            score = {"reached": False, "success": False}

            def look(name, seconds):
                end = time.monotonic() + seconds
                while not score[name] and time.monotonic() < end:
                    time.sleep(0.5)
                    score.update(bench.call("score")[1])

            for _ in range(TRIES):
                bench.call("reset")
                score.update(reached=False)
                prompt.publish(String(data=bench.world.simulation.episode.text))
                look("reached", TIME_LIMIT)
                cancel.publish(Empty())  # judged at rest, as evaluations do: a policy may go on fidgeting
                look("success", REST_LIMIT)
                if score["success"]:
                    break
            assert score["success"], json.dumps(score) + node.output()
    finally:
        bench.close()
