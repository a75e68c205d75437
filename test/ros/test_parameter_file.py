"""Values are read as ROS itself reads them, and those that it drops are told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("rclpy")

import rclpy
from rclpy.context import Context
from rclpy.node import Node

from edgellm_ros.errors import EdgeLLMError
from edgellm_ros.ros.given_parameters import dropped_values
from edgellm_ros.ros.parameter_file import read_parameter_file
from edgellm_ros.ros.parameter_schema import schema

SCALARS = (
    "0.7", "5", "-5", "+5", "010", "-010", "08", "0x10", "0b1", "1_000", "9223372036854775807", "9223372036854775808",
    "-9223372036854775809", "1e3", "1e400", ".5", "5.", ".inf", "-.Inf", ".NaN", "inf", "nan", "infinity", "yes", "No",
    "ON", "oN", "true", "TRUE", "tRUE", "y", "N", "null", "~", "'7'", '"true"', "2020-01-01", "text with words",
    "12:30", "'it''s'", '"a\\nb"', "[1, 2]", "[1.0, 2.5]", "[a, '7']", "[true, no]", "1.2.3",
    "!!str 5", "!!str off", "\u0661", "\uff15", "+inf", "-nan",
)  # fmt: skip


def taken_by_ros(arguments: Sequence[str]) -> dict[str, object]:
    """What ROS gives a node of this command line."""
    context = Context()
    rclpy.init(args=["test", "--ros-args", *arguments], context=context)
    try:
        node = Node("edgellm", context=context)
        found = {name: parameter.value for name, parameter in node._parameter_overrides.items()}
        node.destroy_node()
        return {name: list(value) if hasattr(value, "tolist") else value for name, value in found.items()}
    finally:
        rclpy.try_shutdown(context=context)


def test_values_of_a_file_are_those_that_ros_gives_the_node(tmp_path: Path) -> None:
    lines = [f"    p{index}: {text}" for index, text in enumerate(SCALARS)]
    (tmp_path / "p.yaml").write_text("\n".join(["/**:", "  ros__parameters:", *lines, "    empty: []", ""]))
    wanted = taken_by_ros(["--params-file", str(tmp_path / "p.yaml")])
    found = read_parameter_file(tmp_path / "p.yaml")
    assert wanted.pop("empty") is None and found.pop("empty") == []
    assert {name: repr(value) for name, value in found.items()} == {name: repr(value) for name, value in wanted.items()}


PARTS = """
edgellm: {ros__parameters: {a: 1, b: 1}}
/**: {ros__parameters: {a: 2, nested: {c: 2}, d.e: 5}}
/left/edgellm: {ros__parameters: {a: 3}}
/*: {ros__parameters: {f: 4}}
'/*/edgellm': {ros__parameters: {g: 5}}
/**/edgellm: {ros__parameters: {h: 6}}
left: {edgellm: {ros__parameters: {i: 7}}, other: {ros__parameters: {j: 8}}}
"""


@pytest.mark.parametrize("namespace", ["", "left", "/far/left"])
def test_a_part_of_a_file_is_for_the_nodes_that_ros_gives_it_to(tmp_path: Path, namespace: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(PARTS)
    remap = ["-r", f"__ns:=/{namespace.strip('/')}"] if namespace else []
    assert read_parameter_file(path, "edgellm", namespace) == taken_by_ros(["--params-file", str(path), *remap])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("/**: {ros__parameters: {a: [1, 2.0]}}", "a is a list of int and float, which ROS refuses"),
        ("/**: {ros__parameters: {a: [[1], [2]]}}", "a is a list of list, which ROS refuses"),
        ("/**: {ros__parameters: 7}", "'ros__parameters:' holds '7'; want names with values"),
        ("engine: {directory: /e}", "directory stands outside of 'ros__parameters:'"),
        ("[1, 2]", "holds no names of nodes"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_file_that_ros_would_not_take_is_refused_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(EdgeLLMError) as caught:
        read_parameter_file(path)
    assert sentence in str(caught.value) and str(path) in str(caught.value)
    with pytest.raises(Exception, match="failed to initialize rcl"):
        taken_by_ros(["--params-file", str(path)])


FILE = "/**: {ros__parameters: {generation: {temperature: 1, seed: 5, stop: [a], system_prompt: '7'}}}"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["-p", "generation.temperature:=0.5"], ["generation.temperature"]),
        (["-p", "generation.temperature:=2"], []),
        (["-p", "generation.seed:='x'"], ["generation.seed"]),
        (["-p", "generation.seed:=true"], []),
        (["-p", "generation.stop:=[]"], ["generation.stop"]),
        (["-p", "generation.stop:=[b, c]"], []),
        (["-p", "generation.system_prompt:=8"], []),
        (["-p", "edgellm:generation.temperature:=0.5"], []),
        (["-p", "other:generation.temperature:=0.5"], []),
        (["-p", "generation.top_p:=1", "--param", "generation.top_p:=0.5"], ["generation.top_p"]),
        (["-p", "generation.top_p:=0.5"], []),
        (["-p", "generation.stop:=[]", "-p", "generation.top_p:=1e-1"], ["generation.stop"]),
    ],
    ids=" ".join,
)
def test_what_ros_drops_is_found_and_nothing_else(tmp_path: Path, arguments: list[str], names: list[str]) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(FILE)
    given = ["--params-file", str(path), *arguments]
    found = dropped_values(["--ros-args", *given], "edgellm", "/", taken_by_ros(given), schema().by_name.keys())
    assert [value.name for value in found] == names and all(value.by_type for value in found)


def test_a_file_behind_a_command_line_wins_by_right_and_between_files_the_type_is_told(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole.yaml", tmp_path / "part.yaml"
    whole.write_text(FILE)
    part.write_text("/**: {ros__parameters: {generation.temperature: 0.5}}")
    for given, count in (
        (["-p", "generation.temperature:=0", "--params-file", str(whole)], 0),
        (["--params-file", str(part), "--params-file", str(whole)], 0),
        (["--params-file", str(whole), "--params-file", str(part)], 1),
    ):
        found = dropped_values(["--ros-args", *given], "edgellm", "/", taken_by_ros(given), schema().by_name.keys())
        assert len(found) == count
    assert f"generation.temperature is 0.5 in {part}, and ROS dropped that for 1, which was" in str(found[0])


def test_a_value_that_a_named_part_of_a_file_wins_over_is_told(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "/**: {ros__parameters: {generation.seed: 1}}\nedgellm: {ros__parameters: {generation.temperature: 0.5}}"
    )
    for argument, count in (("generation.temperature:=0.7", 1), ("edgellm:generation.temperature:=0.7", 0)):
        given = ["--params-file", str(path), "-p", argument]
        found = dropped_values(["--ros-args", *given], "edgellm", "/", taken_by_ros(given), schema().by_name.keys())
        assert len(found) == count and not any(value.by_type for value in found)
        assert all("0.7 on the command line, and ROS dropped that for 0.5" in str(value) for value in found)


def test_a_value_that_was_given_alone_is_never_dropped_however_it_is_read() -> None:
    for text in (*SCALARS, "#x", "1e-400", "0x1p3", "nan(1)", ".inF", "''", "[]", "- 1"):
        given = ["-p", f"generation.temperature:={text}"]
        found = dropped_values(["--ros-args", *given], "edgellm", "/", taken_by_ros(given), schema().by_name.keys())
        assert not found, str(found[0])


@pytest.mark.parametrize(("first", "second"), [("1", "0.5"), ("0.5", "1"), ("[]", "0.5"), ("0.5", "[]"), ("1", "2")])
def test_of_two_parts_of_a_file_ros_takes_the_nearer_one_and_nothing_is_told(
    tmp_path: Path, first: str, second: str
) -> None:
    path, name = tmp_path / "p.yaml", "generation.temperature"
    path.write_text(
        f"/**: {{ros__parameters: {{{name}: {first}}}}}\n/edgellm: {{ros__parameters: {{{name}: {second}}}}}\n"
    )
    given = ["--params-file", str(path)]
    kept = taken_by_ros(given)
    assert kept[name] == (None if second == "[]" else float(second))
    assert not dropped_values(["--ros-args", *given], "edgellm", "/", kept, schema().by_name.keys())
