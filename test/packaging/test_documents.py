"""Pages keep their word: links and tests that they name exist, commands and parameters are those there are."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest
from tree_copies import REPOSITORY, clean_environment, python

import edgellm_ros
from edgellm_ros.cli.main import COMMANDS, main
from edgellm_ros.ros.launch_spec import launch_arguments
from edgellm_ros.ros.parameter_schema import schema
from edgellm_ros.ros.replay_launch_spec import replay_arguments
from edgellm_ros.tabletop.launch_spec import tabletop_arguments

PAGES = sorted(
    path.relative_to(REPOSITORY).as_posix()
    for place in (
        "*.md",
        "docs/*.md",
        "benchmarks/*.md",
        "training/tabletop/*.md",
        "edgellm_ros/tabletop/checkpoint/*.md",
    )
    for path in REPOSITORY.glob(place)
)
RULES = (REPOSITORY / "docs" / "runtime-rules.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", RULES)))
LAUNCH_FILES = {
    "edgellm.launch.py": launch_arguments(),
    "tabletop.launch.py": tabletop_arguments(),
    "replay.launch.py": replay_arguments(),
}


def text_of(page: str) -> str:
    return (REPOSITORY / page).read_text("utf-8")


def shell_lines(page: str) -> list[str]:
    """Lines of the page's shell blocks without comments, continued ones joined."""
    blocks = re.findall(r"```bash\n(.*?)```", text_of(page), re.DOTALL)
    lines = [
        re.sub(r"\s#\s.*", "", line).strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()
    ]
    return [line for line in lines if line and not line.startswith("#")]


def headings(page: Path) -> set[str]:
    """What a link behind a hash may name."""
    names = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-") for name in names}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    wrong = []
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text_of(page)):
        name, _, heading = link.partition("#")
        target = (REPOSITORY / page).parent / name if name else REPOSITORY / page
        if not target.exists() or (heading and heading not in headings(target)):
            wrong.append(link)
    assert wrong == []


def test_every_page_is_linked_from_the_readme() -> None:
    assert [page for page in PAGES if page.startswith("docs/") and f"]({page}" not in text_of("README.md")] == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_a_page_shows_are_understood(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, _ in COMMANDS.values():
        monkeypatch.setattr(importlib.import_module(f"edgellm_ros.cli.{name}"), "run", lambda arguments: 0)
    for line in shell_lines(page):
        words = shlex.split(line.removeprefix("ros2 run edgellm_ros "))
        if words[0] == "edgellm":
            assert main(words[1:]) == 0, line
        if words[:3] == ["ros2", "launch", "edgellm_ros"]:
            known = {argument.name for argument in LAUNCH_FILES[words[3]]}
            assert {word.partition(":=")[0] for word in words[4:] if ":=" in word} <= known, line


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_explained(name: str) -> None:
    parser = argparse.ArgumentParser()
    importlib.import_module(f"edgellm_ros.cli.{COMMANDS[name][0]}").add_arguments(parser)
    assert [action.dest for action in parser._actions if not action.help] == []
    takes_a_value = [action for action in parser._actions if action.nargs != 0 and not action.choices]
    assert [action.dest for action in takes_a_value if action.metavar is None] == []


@pytest.mark.parametrize("page", PAGES)
def test_parameters_targets_and_files_that_a_page_names_exist(page: str) -> None:
    text, known = text_of(page), schema().by_name
    groups = {name.partition(".")[0] for name in known if "." in name}
    named = re.findall(rf"`((?:{'|'.join(groups)})\.\w+)\b", text)
    assert [name for name in named if name not in known and not name.endswith(".py")] == []
    targets = re.findall(r"^([a-z0-9-]+):.*## ", (REPOSITORY / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert [name for name in re.findall(r"`make ([a-z0-9-]+)", text) if name not in targets] == []
    places = re.findall(r"`((?:benchmarks|config|docs|edgellm_ros|launch|test|training)/\w[\w/.-]*)`", text)
    assert [place for place in places if not (REPOSITORY / place).exists()] == []


def test_the_pictures_and_the_observation_of_the_tabletop_page_are_made(tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    (code,) = re.findall(r"python - <<'END'[^\n]*\n(.*?)\nEND\n", text_of("docs/tabletop.md"), re.DOTALL)
    printed = python(code, environment=clean_environment(PYTHONPATH=str(REPOSITORY)), folder=tmp_path)
    assert printed == "task: grab the cyan disc and place it on the pink disc\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["angled.png", "observation.npz", "top.png"]


def test_classes_that_the_page_about_python_names_can_be_imported() -> None:
    named = set(
        re.findall(r"`(?:\w+ = )?([A-Z]\w+[a-z]\w*)[(.`]", text_of("docs/python.md") + text_of("docs/prefix-reuse.md"))
    )
    assert {"Guide", "Video", "LLMInferenceRuntime"} <= named
    assert [name for name in sorted(named) if name not in edgellm_ros.__all__] == []


def file_of(name: str) -> Path:
    tests = REPOSITORY / "test"
    return tests / name if "/" in name else tests / "runtime" / name


@pytest.mark.parametrize("name", sorted({file for file, _ in NAMED}))
def test_every_test_that_a_rule_names_exists(name: str) -> None:
    source = file_of(name).read_text("utf-8")
    named = [test for file, test in NAMED if file == name]
    assert [test for test in named if f"def {test}(" not in source] == []


def test_every_rule_names_a_test_and_numbers_run_on() -> None:
    rules = re.findall(r"^\| (\d+)\.(\d+) \| .* \| (.*) \|$", RULES, re.MULTILINE)
    assert len(rules) > 60 and all("::" in tests for *_, tests in rules)
    found = [(int(section), int(number)) for section, number, _ in rules]
    sections = sorted({section for section, _ in found})
    assert found == [
        (section, number)
        for section in sections
        for number in range(1, sum(one == section for one, _ in found) + 1)
    ]  # fmt: skip
