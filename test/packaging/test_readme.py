"""The README keeps its word: every target and command is named, every folder has a role, the example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tree_copies import REPOSITORY, clean_environment, python

from edgellm_ros.backends.fake import FakeScript, write_fake_engine_directory
from edgellm_ros.cli.main import COMMANDS

README = (REPOSITORY / "README.md").read_text("utf-8")
TARGET = re.compile(r"^([a-z0-9-]+):.*## ", re.MULTILINE)
EXAMPLE_DIRECTORY = "engines/my_model"


def test_the_readme_names_every_target() -> None:
    targets = TARGET.findall((REPOSITORY / "Makefile").read_text("utf-8"))
    assert {"setup", "demo", "lint", "test", "test-full", "clean", "help"} <= set(targets)
    assert [target for target in targets if f"make {target}" not in README] == []


def test_the_readme_names_every_command() -> None:
    assert [name for name in COMMANDS if f"edgellm {name}" not in README] == []


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL), ids=["stream"])
def test_the_python_example_runs(code: str, tmp_path: Path) -> None:
    assert EXAMPLE_DIRECTORY in code
    engine = write_fake_engine_directory(tmp_path / "engine", FakeScript(("Because of scattering.",)))
    environment = clean_environment(PYTHONPATH=str(REPOSITORY))
    printed = python(code.replace(EXAMPLE_DIRECTORY, str(engine)), environment=environment, folder=tmp_path)
    assert printed.startswith("Because of scattering.")


def test_every_folder_of_the_package_has_a_role() -> None:
    folders = {path.parent.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "edgellm_ros").glob("*/*.py")}
    assert [folder for folder in sorted(folders) if f"`{folder}/`" not in README] == []


def test_files_named_as_roles_exist() -> None:
    table = README.partition("## How it is built")[2].partition("\n## ")[0]
    missing = []
    for row in re.findall(r"^\| (`.*?) \| (.*) \|$", table, re.MULTILINE):
        for folder in re.findall(r"`([^`]+)`", row[0]):
            names = [f"{folder}{name}" for name in re.findall(r"`(\w+\.(?:py|yaml))`", row[1])]
            missing += [name for name in [folder, *names] if not (REPOSITORY / name).exists()]
    assert missing == []
