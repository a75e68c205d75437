"""A node, a client beside it and threads that spin both, in a context of their own for each test.

The environment (domain, discovery range, profile, log folder) is set by the conftest of the folder above, before
anything imports rclpy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from camera_bench import CameraBench
    from check_bench import Check
    from node_bench import NodeBench
    from policy_bench import Robot


@pytest.fixture(autouse=True)
def _own_domain(other_domain: None) -> None:
    """What is left of an earlier test cannot be taken for a part of this one.

    A client counts the servers that it sees: one that goes late takes the one that stays with it, and the client waits
    for ever.
    """


@pytest.fixture
def start_node() -> Iterator[Callable[..., NodeBench]]:
    """A function that starts a node with these parameters; all are stopped at the end of the test."""
    from node_bench import NodeBench

    benches: list[NodeBench] = []

    def start(parameters: dict[str, object] | None = None, *, active: bool = True, **options: object) -> NodeBench:
        bench = NodeBench(parameters, **options)  # type: ignore[arg-type]
        benches.append(bench)
        bench.wait_connected()
        if active:
            bench.activate()
        return bench

    yield start
    for bench in benches:
        bench.close()


@pytest.fixture(scope="session")
def echo_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine that says what it is asked."""
    from edgellm_ros.backends.fake import FakeMode, FakeScript, write_fake_engine_directory

    return write_fake_engine_directory(tmp_path_factory.mktemp("echo") / "engine", FakeScript(mode=FakeMode.ECHO))


@pytest.fixture(scope="session")
def policy_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small SmolVLA of the robot in ``policy_bench``."""
    from policy_bench import ROBOT_SETTINGS
    from policy_checkpoints import reference

    from edgellm_ros.builder.build import build_engine

    folder = tmp_path_factory.mktemp("policy")
    (folder / "robot.yaml").write_text(ROBOT_SETTINGS)
    return build_engine(reference("smolvla")[0], folder / "engine", policy_settings=folder / "robot.yaml")


@pytest.fixture
def start_policy(start_node: Callable[..., NodeBench], policy_engine: Path) -> Callable[..., tuple[NodeBench, Robot]]:
    """A function that starts a node with the policy, and a robot that both hear each other."""
    from policy_bench import CAMERAS, JOINTS, Robot

    def start(parameters: dict[str, object] | None = None, **options: object) -> tuple[NodeBench, Robot]:
        given = {
            "engine.backend": "auto",
            "engine.directory": str(policy_engine),
            "engine.threads": 1,
            "images.max_age": 30.0,
        }
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

    return start


@pytest.fixture
def start_cameras() -> Iterator[Callable[..., CameraBench]]:
    """A function that starts a node with cameras, and one that publishes; all are stopped at the end of the test."""
    from camera_bench import CameraBench

    benches: list[CameraBench] = []

    def start(parameters: dict[str, object] | None = None, **overrides: object) -> CameraBench:
        benches.append(CameraBench(parameters or {}, overrides))
        return benches[-1]

    yield start
    for one in benches:
        one.close()


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Runs the command in this process; gives the sentences by verdict, and under ``code`` the exit status."""
    from edgellm_ros.cli.main import main

    def run(*arguments: object) -> dict[str, list[str]]:
        code = main(["check", "--json", *map(str, arguments)])
        content = json.loads(capsys.readouterr().out)
        found: dict[str, list[str]] = {"ok": [], "warning": [], "problem": [], "code": [str(code)]}
        for finding in content["findings"]:
            found[finding["verdict"]].append(f"{finding['subject']}: {finding['sentence']}")
            assert finding["sentence"].endswith((".", "?")) and "\n" not in finding["sentence"]
        assert content["passed"] is (code == 0) is (not found["problem"])
        return found

    return run
