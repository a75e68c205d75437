"""Finds values that were given at start and that ROS dropped without a word.

Of two values for one name that are of different types, such as 1 in a parameter file and 0.5 behind it on the command
line, ROS keeps that of the type it asks for first, whichever came last; and an empty list never replaces one. Values
for all nodes are laid over those for a named node in the order in which a first value for each came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import EdgeLLMError
from .parameter_file import matches, parameter_parts, parse_value


@dataclass(frozen=True)
class DroppedValue:
    """``value`` was given last, ``source`` says where, and ROS has ``kept`` another."""

    name: str
    value: Any
    source: str
    kept: Any

    @property
    def by_type(self) -> bool:
        """Whether that is for their types, which nobody can have meant."""
        return isinstance(self.value, list) or type(self.value) is not type(self.kept)

    def __str__(self) -> str:
        reason, remedy = (
            ("was given before it with another type", "give both with the same type (1.0 where a fraction is meant)")
            if self.by_type
            else ("stands in a part of a parameter file for this node by name", "name the node here too")
        )
        return (
            f"{self.name} is {self.value!r} {self.source}, and ROS dropped that for {self.kept!r}, which {reason}; "
            f"{remedy}, or give only one of them."
        )


def dropped_values(
    command_line: Sequence[str], node_name: str, namespace: str, kept: Mapping[str, Any], names: AbstractSet[str]
) -> list[DroppedValue]:
    """Those of ``names`` whose last value on ``command_line`` is not the one that ROS has ``kept``."""
    given: dict[str, list[tuple[Any, str]]] = {}
    for name, value, source in _given(command_line, node_name, namespace):
        given.setdefault(name, []).append((value, source))
    found = []
    for name in given.keys() & names & kept.keys():
        *earlier, (value, source) = given[name]
        # what ROS kept is one of those before; else the last was only read otherwise here
        if not _equal(value, kept[name]) and any(_equal(other, kept[name]) for other, _ in earlier):
            found.append(DroppedValue(name, value, source, kept[name]))
    return sorted(found, key=lambda value: value.name)


def _given(command_line: Sequence[str], node_name: str, namespace: str) -> Iterator[tuple[str, Any, str]]:
    """Name, value and where it stands, of all ROS arguments in their order."""
    whole = "/".join(["", *(part for part in namespace.split("/") if part), node_name])
    of_ros = False
    arguments = iter(command_line)
    for argument in arguments:
        if argument in ("--ros-args", "--"):
            of_ros = argument == "--ros-args"
        elif of_ros and argument == "--params-file":
            path = Path(next(arguments, ""))
            with suppress(EdgeLLMError):  # ROS has said already what it thinks of the file
                for part in parameter_parts(path, node_name, namespace):
                    yield from ((name, value, f"in {path}") for name, value in part.items())
        elif of_ros and argument in ("-p", "--param"):
            name, _, text = next(arguments, "").partition(":=")
            pattern, _, name = name.rpartition(":")
            with suppress(ValueError):
                if not pattern or matches(pattern, whole):
                    yield name, parse_value(text), "on the command line"


def _equal(value: Any, kept: Any) -> bool:
    if isinstance(value, list):  # ROS has no type for an empty one, and arrays for others
        return not isinstance(kept, bool | int | float | str) and value == list(kept or ())
    return isinstance(value, bool) == isinstance(kept, bool) and bool(value == kept)
