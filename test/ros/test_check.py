"""``edgellm check`` says before a start what the node says at it, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("rclpy")

from check_bench import Check, written
from lifecycle_msgs.msg import Transition
from node_bench import NodeBench
from policy_bench import CAMERAS

from edgellm_ros.cli.main import main
from edgellm_ros.errors import EdgeLLMError


def test_a_sound_machine_passes_with_one_line_for_each_finding(
    echo_engine: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = written(tmp_path / "robot.yaml", {"engine.directory": str(echo_engine), "use_sim_time": True})
    assert main(["check", "--params-file", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"Pass: this machine can run {echo_engine}."
    subjects = [line.split()[1] for line in lines[:-1]]
    assert subjects == ["parameters", "directory", "tokenizer", "packages", "backend", "memory", "ros"]
    assert f"1 of 1 values of {file} are taken" in lines[0]
    assert any("onnxruntime 1." in line and "Python 3." in line for line in lines)


def test_problems_are_numbered_behind_everything_else(
    echo_engine: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = written(tmp_path / "robot.yaml", {"cameras": ["front"], "generation.temperature": 3, "generation.sed": 1})
    assert main(["check", str(echo_engine), "--params-file", str(file)]) == 1
    *_, warning, first, second, verdict = capsys.readouterr().out.splitlines()
    assert warning.startswith("warning  parameters") and warning.endswith("did you mean generation.seed?")
    assert first.split(maxsplit=2)[0] == "1." and "generation.temperature is 3; want a number from 0 to 2." in first
    assert second.split(maxsplit=2)[:2] == ["2.", "cameras"] and "the engine takes no images" in second
    assert verdict == f"This machine cannot run {echo_engine} so: 2 problems."


OF_A_TALKER = {
    "nothing": ({}, True),
    "values": ({"generation.temperature": 1, "generation.stop": ["a"], "generation.seed": 7}, True),
    "another name's": ({"generation.temprature": 1.0}, True),
    "a type": ({"generation.seed": 1.5}, False),
    "a range": ({"prompt.queue_size": 0}, False),
    "a choice": ({"images.on_missing": "guess"}, False),
    "a guide": ({"guide.kind": "regex", "guide.text": "(("}, False),
    "a guide without text": ({"guide.kind": "choice"}, False),
    "no pivots": ({"visual_pruner.pivot_image_tokens": 0, "visual_pruner.pivot_text_tokens": 0}, False),
    "a camera": ({"cameras": ["front"]}, False),
    "an age of images": ({"images.max_age": 3.0}, False),
    "another backend": ({"engine.backend": "onnxruntime"}, False),
}
OF_A_POLICY = {
    "nothing": ({}, True),
    "its cameras": ({"cameras": list(CAMERAS)}, True),
    "a camera too few": ({"cameras": ["top"]}, False),
    "a camera too many": ({"cameras": [*CAMERAS, "rear"]}, False),
    "names of cameras": ({"cameras": ["top", "wrist", "side view"]}, False),
    "transports": ({"images.transport": ["raw", "compressed"]}, False),
    "joints": ({"action.joint_names": ["a", "b", "c", "d"]}, True),
    "joints too few": ({"action.joint_names": ["a", "b"]}, False),
    "limits": ({"safety.upper": [1.0, 1.0, 1.0, 1.0]}, True),
    "limits too few": ({"safety.upper": [1.0]}, False),
    "actions too many": ({"action.execute_steps": 8}, False),
}


def node_starts(file: Path, engine: Path, start_node: Callable[..., NodeBench]) -> bool:
    try:
        bench = start_node(
            {"engine.directory": str(engine), "engine.backend": backend_of(file)},
            arguments=["--ros-args", "--params-file", str(file)],
            active=False,
        )
    except EdgeLLMError:
        return False
    return bench.change(Transition.TRANSITION_CONFIGURE)


def backend_of(file: Path) -> str:
    """An override of the bench would hide that of the file."""
    return str(yaml.safe_load(file.read_text())["/**"]["ros__parameters"].get("engine.backend", "auto"))


@pytest.mark.parametrize(
    ("kind", "parameters", "fits"),
    [
        pytest.param(kind, *case, id=f"{kind}, {name}")
        for kind, cases in (("talks", OF_A_TALKER), ("acts", OF_A_POLICY))
        for name, case in cases.items()
    ],
)
def test_parameters_pass_exactly_where_the_node_is_configured_with_them(
    kind: str,
    parameters: dict[str, Any],
    fits: bool,
    echo_engine: Path,
    policy_engine: Path,
    check: Check,
    tmp_path: Path,
    start_node: Callable[..., NodeBench],
) -> None:
    engine = echo_engine if kind == "talks" else policy_engine
    file = written(tmp_path / "robot.yaml", {**parameters, "engine.memory_reserve_mb": 0})
    found = check(engine, "--params-file", file)
    assert (not found["problem"]) is fits, found
    assert node_starts(file, engine, start_node) is fits


def test_a_place_without_an_engine_is_a_problem_and_no_place_a_bad_command_line(
    check: Check, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (problem,) = check(tmp_path / "nowhere")["problem"]
    assert "holds nothing; want an engine directory: make one with 'edgellm build'" in problem
    assert main(["check"]) == 2
    assert "engine.directory is empty; want an engine directory" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["a: [", "engine: {directory: /e}"])
def test_a_parameter_file_that_ros_would_not_take_is_a_problem(
    content: str, echo_engine: Path, check: Check, tmp_path: Path
) -> None:
    (tmp_path / "robot.yaml").write_text(content)
    (problem,) = check(echo_engine, "--params-file", tmp_path / "robot.yaml")["problem"]
    assert problem.startswith(f"parameters: {tmp_path / 'robot.yaml'}")


def test_a_part_of_a_file_for_another_node_is_not_for_this_one(echo_engine: Path, check: Check, tmp_path: Path) -> None:
    (tmp_path / "robot.yaml").write_text("/left/edgellm: {ros__parameters: {generation.seed: x}}")
    found = check(echo_engine, "--params-file", tmp_path / "robot.yaml")
    assert any("has nothing for the node /edgellm" in sentence for sentence in found["warning"])
    found = check(echo_engine, "--params-file", tmp_path / "robot.yaml", "--node", "/left/edgellm")
    assert found["problem"] == ["parameters: generation.seed is 'x' of type str; want a whole number."]


def test_too_little_memory_is_a_problem_with_the_figures(
    echo_engine: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgellm_ros.ros.memory.available_memory", lambda: 300 << 20)
    (problem,) = check(echo_engine)["problem"]
    assert "of the 300 MB that are free and engine.memory_reserve_mb keeps 512 MB; free memory" in problem
    monkeypatch.setattr("edgellm_ros.ros.memory.available_memory", lambda: None)
    assert any("the system does not tell how much is free" in sentence for sentence in check(echo_engine)["warning"])


def test_a_load_runs_the_engine_and_says_on_what(policy_engine: Path, check: Check) -> None:
    assert "load: action runs on onnxruntime." in check(policy_engine, "--load")["ok"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(["--live", "nan"], "--live is nan; want more than 0 s"), (["--remap", "a"], "--remap is 'a'; want TOPIC:=TOPIC")],
)
def test_a_command_line_that_cannot_be_taken_ends_with_two(
    arguments: list[str], sentence: str, echo_engine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(echo_engine), *arguments]) == 2
    assert sentence in capsys.readouterr().err
