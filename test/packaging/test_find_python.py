"""tools/find_python and tools/create_environment: which Python, what they say without one, and what they repeat."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tree_copies import REPOSITORY

SYSTEM_TOOLS = ("sed", "sh", "dirname")


def fake_python(folder: Path, name: str, version: str | None, *, venv: bool = True) -> Path:
    """A script that answers like a Python of this version; None: one that cannot run."""
    path = folder / name
    if version is None:
        path.write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    else:
        path.write_text(
            f'#!/bin/sh\ncase "$*" in\n*_base_executable*) echo "{version} {path}" ;;\n'
            f"*ensurepip*) exit {0 if venv else 1} ;;\n--version) echo Python {version} ;;\n"
            '"-m venv "*) mkdir -p "$3/bin" && touch "$3/pyvenv.cfg" && ln -s "$0" "$3/bin/python" ;;\nesac\n'
        )
    path.chmod(0o755)
    return path


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in SYSTEM_TOOLS:
        for place in ("/usr/bin", "/bin"):
            if Path(place, tool).exists():
                (folder / tool).symlink_to(Path(place, tool))
                break
    return folder


def find(bin_folder: Path, wanted: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(REPOSITORY / "tools" / "find_python"), wanted, "3.12", "3.11"],
        env={"PATH": str(bin_folder)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_the_first_version_asked_for_wins(bin_folder: Path) -> None:
    fake_python(bin_folder, "python3.11", "3.11")
    best = fake_python(bin_folder, "python3.12", "3.12")
    assert find(bin_folder).stdout.strip() == str(best)


def test_a_name_that_cannot_run_is_passed_over(bin_folder: Path) -> None:
    fake_python(bin_folder, "python3.12", None)
    good = fake_python(bin_folder, "python3.11", "3.11")
    assert find(bin_folder).stdout.strip() == str(good)


def test_python3_serves_when_its_version_fits(bin_folder: Path) -> None:
    good = fake_python(bin_folder, "python3", "3.12")
    assert find(bin_folder).stdout.strip() == str(good)


def test_one_without_venv_is_passed_over(bin_folder: Path) -> None:
    fake_python(bin_folder, "python3.12", "3.12", venv=False)
    good = fake_python(bin_folder, "python3.11", "3.11")
    assert find(bin_folder).stdout.strip() == str(good)


@pytest.mark.parametrize(
    ("present", "wanted", "sentence"),
    [
        ({}, "", "No Python 3.12 or 3.11 found on the PATH"),
        ({"python3": "3.13"}, "", "No Python 3.12 or 3.11 found on the PATH"),
        (
            {"python3.12": "no venv"},
            "",
            "python3.12 has no venv module: install it (on Debian and Ubuntu: apt install python3.12-venv)",
        ),
        ({"python3.13": "3.13"}, "python3.13", "python3.13 is Python 3.13, wanted 3.12 or 3.11"),
        ({}, "python9", "python9 does not run: name a Python 3.12 or 3.11"),
    ],
    ids=["none", "only_a_newer_one", "no_venv_module", "wanted_is_newer", "wanted_is_absent"],
)
def test_one_sentence_when_none_fits(bin_folder: Path, present: dict[str, str], wanted: str, sentence: str) -> None:
    for name, version in present.items():
        fake_python(bin_folder, name, "3.12" if version == "no venv" else version, venv=version != "no venv")
    result = find(bin_folder, wanted)
    assert result.returncode == 1
    assert result.stdout == ""
    assert sentence in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def create(folder: Path, python: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(REPOSITORY / "tools" / "create_environment"), "env", str(python), "3.12", "3.11"],
        cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_an_environment_is_made_once_and_again_only_when_something_changed(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    newer, older = fake_python(tmp_path, "python3.12", "3.12"), fake_python(tmp_path, "python3.11", "3.11")
    made = create(first, newer)
    assert f"Creating env with Python 3.12 ({newer})" in made.stdout, made.stderr
    stamp = first / "env" / ".stamps" / "python"
    before = stamp.stat().st_mtime_ns
    assert create(first, newer).stdout == ""
    assert stamp.stat().st_mtime_ns == before
    assert "Creating env with Python 3.11" in create(first, older).stdout
    second = first.rename(tmp_path / "second")
    assert "Creating env" in create(second, older).stdout
    (second / "env" / "bin" / "python").unlink()
    assert "Creating env" in create(second, older).stdout


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "env" / "thesis.txt"
    precious.parent.mkdir()
    precious.touch()
    result = create(tmp_path, fake_python(tmp_path, "python3.12", "3.12"))
    assert result.returncode == 1
    assert "is no virtual environment" in result.stderr
    assert precious.exists()
