"""Whatever ``edgellm check`` is given, it ends in sentences, in time, with 1 or 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rclpy")

from edgellm_ros.cli.check_packages import Need, check_packages
from edgellm_ros.cli.findings import Findings
from edgellm_ros.cli.main import main
from edgellm_ros.errors import EdgeLLMError
from edgellm_ros.ros.live_topics import WantedTopic, live_topics

ALIASES = "".join(
    f"    {new}: &{new} {{x: *{old}, y: *{old}}}\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
FILES = {
    "bytes": bytes(range(256)) * 20,
    "utf-16": "/**: {ros__parameters: {}}".encode("utf-16"),
    "aliases": f"/**:\n  ros__parameters:\n    a: &a {{x: 1}}\n{ALIASES}".encode(),
    "alias of itself": b"/**:\n  ros__parameters: &r\n    a: *r\n",
    "depth": b"/**: {ros__parameters: {a: " + b"[" * 5000 + b"]" * 5000 + b"}}",
    "digits": b"/**: {ros__parameters: {generation.seed: " + b"9" * 6000 + b"}}",
    "size": b"# " + b"x" * (1 << 20) + b"\n/**: {ros__parameters: {}}",
    "documents": b"a: {ros__parameters: {}}\n---\nb: {}\n",
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", FILES)
def test_a_parameter_file_of_garbage_is_one_problem(
    name: str, echo_engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "robot.yaml"
    path.write_bytes(FILES[name])
    assert main(["check", str(echo_engine), "--params-file", str(path)]) == 1
    *_, problem, verdict = capsys.readouterr().out.splitlines()
    assert problem.startswith("1.       parameters  ") and problem.endswith(".")
    assert str(path) in problem or "generation.seed" in problem
    assert verdict == f"This machine cannot run {echo_engine} so: 1 problem."


def test_a_file_without_an_end_is_read_no_further_than_one_has_reason_to(
    echo_engine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(echo_engine), "--params-file", "/dev/zero"]) == 1
    assert "/dev/zero has more than 1048576 bytes; want the YAML file of the node." in capsys.readouterr().out


def test_a_file_that_is_not_there_is_told_before_the_engine_that_it_would_have_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--params-file", str(tmp_path / "nowhere.yaml")]) == 1
    told = capsys.readouterr().out
    *_, first, second, verdict = told.splitlines()
    assert "are taken by the node" not in told
    assert "nowhere.yaml cannot be read (No such file or directory)" in first
    assert "engine.directory is empty" in second and verdict == "This machine cannot run an engine so: 2 problems."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--node", "/a-b/edgellm"], "--node is '/a-b/edgellm'; want the whole name of a node"),
        (["--node", ""], "--node is ''; want the whole name"),
        (["--remap", "joint_states:=/1x"], "--remap is 'joint_states:=/1x'; want TOPIC:=TOPIC"),
        (["--remap", "joint_states:=a b"], "want TOPIC:=TOPIC"),
    ],
)
def test_names_that_ros_has_not_are_a_bad_command_line(
    arguments: list[str], sentence: str, echo_engine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(echo_engine), "--live", "0.1", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_home_of_nobody_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "~nobody-of-that-name/engine"]) == 2
    assert "engine.directory is '~nobody-of-that-name/engine', and nobody of that name" in capsys.readouterr().err


def test_a_middleware_that_is_not_there_is_a_problem_and_not_the_end(echo_engine: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "edgellm_ros.cli.main", "check", str(echo_engine), "--live", "0.1"],
        env={**os.environ, "RMW_IMPLEMENTATION": "rmw_of_nobody"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.returncode == 1 and "Traceback" not in told.stderr
    assert "or unset it." in told.stdout and "RMW_IMPLEMENTATION names (rmw_of_nobody)" in told.stdout


@pytest.mark.parametrize("value", ["fast", 5, ["reliable"], None])
def test_a_quality_of_service_that_there_is_not_is_a_sentence(value: object) -> None:
    import rclpy
    from rclpy.context import Context
    from sensor_msgs.msg import JointState

    context = Context()
    rclpy.init(args=[], context=context)
    robot = rclpy.create_node("robot", context=context)
    robot.create_publisher(JointState, "garbage_joints", 1)
    overrides = {"qos_overrides./garbage_joints.subscription.reliability": value}
    wanted = WantedTopic("/garbage_joints", "sensor_msgs/msg/JointState")
    try:
        with live_topics(20.0, overrides) as live, pytest.raises(EdgeLLMError, match=r"; want one of .*best_effort"):
            live.trouble(wanted)
    finally:
        rclpy.try_shutdown(context=context)


def test_a_version_that_is_none_is_told_as_one_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgellm_ros.cli.check_packages._version", lambda name: "4.8.0-built-here!")
    findings = Findings()
    check_packages(findings, [Need("vision", "a test")])
    assert any(
        "numpy has the version 4.8.0-built-here!; edgellm_ros needs" in one.sentence for one in findings.problems
    )
