"""Writes what people read about parameters from the schema: ``python -m edgellm_ros.ros.parameter_table``.

It brings up to date the table between two markers in README.md and the file config/edgellm.yaml, both in the folder
it is started in (or the one named); with ``--check`` it only says whether they are.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from .parameter_schema import ParameterDefinition, ParameterEffect, Value, schema

BEGIN = "<!-- parameters: written by python -m edgellm_ros.ros.parameter_table -->"
END = "<!-- end of parameters -->"
README = "README.md"
PARAMETER_FILE = "config/edgellm.yaml"
_WIDTH = 110


def yaml_value(value: Value) -> str:
    """A value as YAML; JSON is YAML."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def markdown_table() -> str:
    """The table of all parameters."""
    lines = ["| Parameter | Type | Values | Default | Meaning | Change |", "|---|---|---|---|---|---|"]
    for definition in schema().definitions:
        cells = (
            f"`{definition.name}`",
            definition.type.value,
            definition.range_text,
            f"`{yaml_value(definition.default)}`",
            definition.description,
            definition.effect.value,
        )
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def parameter_file() -> str:
    """A parameter file with every default and what it means."""
    lines = [
        "# Parameters of edgellm_node; every value here is the default. Copy the file, keep what you change, and start",
        "# with: ros2 launch edgellm_ros edgellm.launch.py params_file:=my.yaml engine_dir:=...",
        "# What is changed while the node runs applies to the next request, unless the comment says otherwise.",
        "/**:",
        "  ros__parameters:",
    ]
    group: list[str] = []
    for definition in schema().definitions:
        *parents, name = definition.name.split(".")
        if parents != group:
            lines += ["", *(f"{'  ' * (depth + 2)}{parent}:" for depth, parent in enumerate(parents))]
            group = parents
        indent = "  " * (len(parents) + 2)
        lines += [f"{indent}# {line}" for line in _comment(definition)]
        value = yaml_value(definition.default)
        # An empty list has no type in YAML, and older versions of ROS refuse the whole file for it.
        lines.append(f"{indent}# {name}: {value}" if value == "[]" else f"{indent}{name}: {value}")
    return "\n".join(lines) + "\n"


def _comment(definition: ParameterDefinition) -> list[str]:
    limits = f" [{definition.range_text}]" if definition.range_text else ""
    effect = "" if definition.effect is ParameterEffect.REQUEST else f" ({definition.effect.value})"
    return textwrap.wrap(f"{definition.description}{limits}{effect}", _WIDTH)


def readme_with_table(readme: str) -> str:
    """The text of README.md with the table of this schema.

    :raises ValueError: the markers are not there.
    """
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise ValueError(f"{README} lacks the lines {BEGIN!r} and {END!r} between which the table goes.")
    before, rest = readme.split(BEGIN)
    return f"{before}{BEGIN}\n{markdown_table()}{END}{rest.split(END)[1]}"


def outdated(folder: Path, *, write: bool) -> list[str]:
    """Names of the files that differ from the schema; with ``write`` they are brought up to date."""
    readme = (folder / README).read_text(encoding="utf-8")
    found = []
    for name, text in ((README, readme_with_table(readme)), (PARAMETER_FILE, parameter_file())):
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            found.append(name)
            if write:
                path.write_text(text, encoding="utf-8")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all is up to date (or was brought there), 1 when ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="the source tree")
    parser.add_argument("--check", action="store_true", help="only say what differs")
    options = parser.parse_args(arguments)
    names = outdated(options.folder, write=not options.check)
    for name in names:
        print(f"{name} {'differs from the schema' if options.check else 'written'}")
    return 1 if options.check and names else 0


if __name__ == "__main__":
    sys.exit(main())
