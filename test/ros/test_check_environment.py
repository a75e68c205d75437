"""``edgellm check`` tells what of ROS and of the installed packages does not fit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("rclpy")

from check_bench import Check, written


@pytest.mark.parametrize(
    ("variables", "verdict", "sentence"),
    [
        ({"ROS_DOMAIN_ID": "500"}, "problem", "ROS_DOMAIN_ID is '500'; want a whole number from 0 to 101"),
        ({"ROS_DOMAIN_ID": "left"}, "problem", "ROS_DOMAIN_ID is 'left'"),
        ({"ROS_DOMAIN_ID": "150"}, "warning", "ROS_DOMAIN_ID is 150, whose ports Linux gives to clients"),
        ({"ROS_DISTRO": "foxy"}, "warning", "ROS_DISTRO is foxy; this package is for humble, jazzy, kilted"),
        ({"ROS_DISTRO": "jazzy", "FASTRTPS_DEFAULT_PROFILES_FILE": ""}, "warning", "camera frames may be lost; set it"),
    ],
    ids=str,
)
def test_what_of_ros_does_not_fit_is_told(
    variables: dict[str, str],
    verdict: str,
    sentence: str,
    echo_engine: Path,
    check: Check,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = check(echo_engine, "--params-file", written(tmp_path / "robot.yaml", {"generation.seed": 1}))
    assert any(told.startswith("ros: ") and sentence in told for told in found[verdict]), found


def test_without_ros_a_node_is_a_problem_and_an_engine_alone_is_not(
    echo_engine: Path, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rclpy", None)
    assert any("source a ROS 2 installation" in sentence for sentence in check(echo_engine)["warning"])
    file = written(tmp_path / "robot.yaml", {"generation.seed": 1})
    assert any(
        "source a ROS 2 installation" in sentence for sentence in check(echo_engine, "--params-file", file)["problem"]
    )


def test_a_package_that_is_missing_or_too_old_is_told_with_what_to_install(
    echo_engine: Path, policy_engine: Path, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "edgellm_ros.cli.check_packages.importlib.metadata.version",
        lambda name: {"numpy": "1.20.0", "tokenizers": "0.21"}.get(name, "99.0" if name != "onnxruntime" else "1.99"),
    )
    problems = check(echo_engine)["problem"]
    assert problems == [
        'packages: numpy has the version 1.20.0; edgellm_ros needs numpy>=1.26: install it with "pip install '
        "'numpy>=1.26'\"."
    ]
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert any("opencv-python-headless is not installed" in sentence for sentence in check(policy_engine)["warning"])
    file = written(tmp_path / "robot.yaml", {"images.transport": ["compressed"]})
    assert any(
        "images.transport compressed needs" in told for told in check(policy_engine, "--params-file", file)["problem"]
    )
