from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from edgellm_ros.ros import parameter_table
from edgellm_ros.ros.parameter_schema import schema


def test_readme_and_parameter_file_say_what_the_schema_says(repository: Path) -> None:
    outdated = parameter_table.outdated(repository, write=False)
    assert not outdated, "run: python -m edgellm_ros.ros.parameter_table"


def test_the_parameter_file_holds_the_default_of_every_parameter() -> None:
    tree = yaml.safe_load(parameter_table.parameter_file())["/**"]["ros__parameters"]
    found: dict[str, object] = {}
    for key, value in tree.items():
        found.update(
            {f"{key}.{name}": entry for name, entry in value.items()} if isinstance(value, dict) else {key: value}
        )
    defaults = schema().defaults()
    expected = {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}
    assert found == {name: value for name, value in expected.items() if value != []}
    assert "# stop: []" in parameter_table.parameter_file()


def test_a_table_that_differs_is_found_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config").mkdir()
    readme = f"# Before\n{parameter_table.BEGIN}\n| old |\n{parameter_table.END}\nafter\n"
    (tmp_path / "README.md").write_text(readme)
    assert parameter_table.main([str(tmp_path), "--check"]) == 1
    assert "README.md differs" in capsys.readouterr().out
    assert parameter_table.main([str(tmp_path)]) == 0
    assert parameter_table.main([str(tmp_path), "--check"]) == 0
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# Before\n") and text.endswith("\nafter\n") and "generation.temperature" in text


def test_a_readme_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"README\.md lacks the lines"):
        parameter_table.readme_with_table("# Nothing\n")


def test_values_with_a_bar_do_not_break_the_table() -> None:
    rows = parameter_table.markdown_table().splitlines()
    assert len(rows) == 2 + len(schema().definitions)
    assert {row.replace("\\|", "").count("|") for row in rows} == {7}
