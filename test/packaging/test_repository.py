"""What is tracked: no path of one machine, no registry host, no decoration."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tree_copies import REPOSITORY

# in pieces, so that this file passes its own check
FORBIDDEN = [
    "/wo" + "rk/",
    "/ro" + "ot/",
    "/tmp/" + "venv",
    "/opt/" + "wheels",
    "py" + "pi.org",
    "python" + "hosted.org",
    "deb." + "debian.org",
    "archive." + "ubuntu.com",
    "npm" + "js.org",
    "index" + "-url",
]
PICTOGRAPHS = re.compile("[\U0001f300-\U0001faff\u2600-\u27bf\ufe0f]")
# the one large file: a policy trained for the tabletop, small enough to ship
SHIPPED_WEIGHTS = "edgellm_ros/tabletop/checkpoint/model.safetensors"
# real text in many scripts is what these test
PICTOGRAPHS_ALLOWED = ("test/",)


def tracked_files() -> list[Path]:
    result = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    if result.returncode:
        pytest.skip("not a git checkout")
    return [REPOSITORY / name for name in result.stdout.split("\0") if name]


def texts() -> list[tuple[str, str]]:
    found = []
    for path in tracked_files():
        if path.is_file():
            try:
                found.append((path.relative_to(REPOSITORY).as_posix(), path.read_text("utf-8")))
            except UnicodeDecodeError:
                continue
    return found


def test_no_path_of_a_machine_and_no_registry_host() -> None:
    hits = [f"{name}: {pattern}" for name, text in texts() for pattern in FORBIDDEN if pattern in text]
    assert hits == []


def test_no_pictographs() -> None:
    hits = [name for name, text in texts() if not name.startswith(PICTOGRAPHS_ALLOWED) and PICTOGRAPHS.search(text)]
    assert hits == []


def test_nothing_built_is_tracked() -> None:
    names = [path.relative_to(REPOSITORY).as_posix() for path in tracked_files()]
    assert [name for name in names if re.search(r"\.(pyc|onnx|gguf|so|egg-info)$|__pycache__", name)] == []
    assert [name for name in names if (REPOSITORY / name).is_file() and (REPOSITORY / name).stat().st_size > 2**20] == [
        SHIPPED_WEIGHTS
    ]
    assert (REPOSITORY / SHIPPED_WEIGHTS).stat().st_size <= 25_000_000


def test_ci_runs_lint_and_then_all_tests_and_stops_at_the_first_failure() -> None:
    lines = [
        line
        for line in (REPOSITORY / ".ci" / "run").read_text("utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    steps = ["make lint", "make test-full", "make test-tensorrt-build"]
    assert lines == ["set -euo pipefail", 'cd "$(dirname "${BASH_SOURCE[0]}")/.."', *steps]
