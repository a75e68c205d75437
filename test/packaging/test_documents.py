"""Pages that point at tests point at tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tree_copies import REPOSITORY

PAGE = (REPOSITORY / "docs" / "runtime-rules.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))


def file_of(name: str) -> Path:
    tests = REPOSITORY / "test"
    return tests / name if "/" in name else tests / "runtime" / name


@pytest.mark.parametrize("name", sorted({file for file, _ in NAMED}))
def test_every_test_that_a_rule_names_exists(name: str) -> None:
    source = file_of(name).read_text("utf-8")
    named = [test for file, test in NAMED if file == name]
    assert [test for test in named if f"def {test}(" not in source] == []


def test_every_rule_names_a_test_and_numbers_run_on() -> None:
    rules = re.findall(r"^\| (\d+)\.(\d+) \| .* \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(rules) > 60 and all("::" in tests for *_, tests in rules)
    found = [(int(section), int(number)) for section, number, _ in rules]
    sections = sorted({section for section, _ in found})
    assert found == [
        (section, number)
        for section in sections
        for number in range(1, sum(one == section for one, _ in found) + 1)
    ]  # fmt: skip
