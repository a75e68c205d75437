"""make shields its commands from a sourced ROS installation, and repeats nothing that is done."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tree_copies import REPOSITORY

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

SOURCED = {
    "AMENT_PREFIX_PATH": "/opt/ros/jazzy",
    "PYTHONPATH": "/opt/ros/jazzy/lib/python3.12/site-packages",
    "LD_LIBRARY_PATH": "/opt/ros/jazzy/lib",
    "RMW_IMPLEMENTATION": "rmw_cyclonedds_cpp",
    "ROS_DISTRO": "jazzy",
}


def environment_of_commands(folder: Path, variables: dict[str, str]) -> set[str]:
    """Names of the variables that a command started by make sees."""
    makefile = folder / "Makefile"
    makefile.write_text(f"include {REPOSITORY / 'Makefile'}\nshow-environment:\n\t@env\n")
    result = subprocess.run(
        ["make", "--no-print-directory", "-f", str(makefile), "show-environment"],
        env={"PATH": os.environ["PATH"], **variables}, cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return {line.partition("=")[0] for line in result.stdout.splitlines()}


def test_a_sourced_ros_does_not_reach_the_commands(tmp_path: Path) -> None:
    assert environment_of_commands(tmp_path, SOURCED) & set(SOURCED) == set()


def test_library_paths_of_others_are_kept_without_ros(tmp_path: Path) -> None:
    assert "LD_LIBRARY_PATH" in environment_of_commands(tmp_path, {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"})


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", "-f", str(REPOSITORY / "Makefile"), *arguments],
        env={"PATH": os.environ["PATH"]}, cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_an_unfit_python_is_one_sentence_and_nothing_is_made(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "tools", tmp_path / "tools")
    shutil.copytree(REPOSITORY / "requirements", tmp_path / "requirements")
    result = make(tmp_path, "setup", "PYTHON=python-that-is-not-there")
    assert result.returncode == 2
    assert "python-that-is-not-there does not run: name a Python 3.12 or 3.11 with make PYTHON=..." in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / ".venv").exists()


def test_help_lists_every_target(tmp_path: Path) -> None:
    listed = make(tmp_path, "help").stdout
    for target in ("setup", "demo", "lint", "test", "test-full", "test-py310", "clean"):
        assert f"make {target} " in listed
