"""The environment that make set up holds exactly what requirements/ pins, and every pin is exact."""

from __future__ import annotations

import importlib.metadata
import os
import re

import pytest
from tree_copies import REPOSITORY

REQUIREMENTS = REPOSITORY / "requirements"
INSTALLED = ("base.txt", "ros-jazzy.txt", "build.txt", "demo.txt", "test.txt", "lint.txt", "openvino.txt")


def lines(name: str) -> list[str]:
    bare = (line.split(" #")[0].strip() for line in (REQUIREMENTS / name).read_text("utf-8").splitlines())
    return [line for line in bare if line and not line.startswith(("#", "-c "))]


@pytest.mark.parametrize("name", sorted(path.name for path in REQUIREMENTS.glob("*.txt")))
def test_every_requirement_is_pinned_exactly(name: str) -> None:
    assert lines(name)
    assert [line for line in lines(name) if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []


@pytest.mark.parametrize("name", INSTALLED)
@pytest.mark.skipif("EDGELLM_COMPLETE_ENVIRONMENT" not in os.environ, reason="not an environment that make set up")
def test_every_pin_is_installed(name: str) -> None:
    differing = {}
    for line in lines(name):
        package, wanted = line.split("==")
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found = "nothing"
        if found != wanted:
            differing[package] = f"{found} instead of {wanted}"
    assert differing == {}


def test_ros_wheels_are_pinned_to_the_last_one() -> None:
    """A ros- package without a pin would come from a newer distribution than the rest."""
    pinned = {line.split("==")[0] for name in ("ros-jazzy.txt", "constraints.txt") for line in lines(name)}
    installed = {
        distribution.metadata["Name"].lower().replace("_", "-")
        for distribution in importlib.metadata.distributions()
        if distribution.metadata["Name"].lower().startswith(("ros-", "ros_"))
    }
    assert installed - pinned == set()
