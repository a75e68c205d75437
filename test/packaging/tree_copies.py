"""Copies and installs of this tree for the packaging tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc")
SHIPPED = ("edgellm_ros", "config", "launch", "resource")
SHIPPED_FILES = ("setup.py", "setup.cfg", "pyproject.toml", "package.xml", "README.md", "LICENSE", "CHANGELOG.rst")


def copy_of_tree(target: Path) -> Path:
    """Copy what an installation needs, so that building leaves nothing in the real tree."""
    target.mkdir(parents=True)
    for name in SHIPPED:
        shutil.copytree(REPOSITORY / name, target / name, ignore=LEFT_OUT)
    for name in SHIPPED_FILES:
        shutil.copyfile(REPOSITORY / name, target / name)
    return target


def clean_environment(**changes: str) -> dict[str, str]:
    """The environment without what makes Python or ROS find packages elsewhere, plus ``changes``."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "AMENT_PREFIX_PATH")}
    return {**kept, **changes}


def run(*command: str | Path, environment: dict[str, str] | None = None, folder: Path | None = None) -> str:
    """Run a command to its end and return its standard output; a failure shows all that it printed."""
    result = subprocess.run(
        [str(part) for part in command],
        env=environment or clean_environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, f"{command} ended with {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def python(code: str, *, environment: dict[str, str] | None = None, folder: Path | None = None) -> str:
    """Run code in a fresh interpreter."""
    return run(sys.executable, "-c", code, environment=environment, folder=folder)
