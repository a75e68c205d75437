"""What ``replay.launch.py`` starts, started as it would be: a node, and the command that plays to it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("rosbags")
pytest.importorskip("rclpy")

from replay_bench import DEADLINE, prompts, replay, write_bag

from edgellm_ros.backends.fake import FakeMode, FakeScript, write_fake_engine_directory
from edgellm_ros.errors import EdgeLLMError
from edgellm_ros.ros.launch_spec import ParameterValue, launch_arguments
from edgellm_ros.ros.node_process import NodeProcess
from edgellm_ros.ros.replay_launch_spec import replay_arguments, replay_specs

PARAMETERS = "/**: {ros__parameters: {generation: {seed: 3, max_tokens: 40}}}"


@pytest.mark.timeout(400)
def test_the_node_and_the_command_of_the_launch_file_give_what_replay_alone_gives(tmp_path: Path) -> None:
    engine = write_fake_engine_directory(tmp_path / "engine", FakeScript(mode=FakeMode.ECHO))
    bag = write_bag(tmp_path / "bag", [(0.1 + moment, "/ask", message) for moment, _, message in prompts("one", "two")])
    parameters, golden = tmp_path / "robot.yaml", tmp_path / "golden.json"
    parameters.write_text(PARAMETERS)
    alone = replay(
        bag, "--engine-dir", engine, "--params-file", parameters, "--set", "engine.backend=fake",
        "--remap", "/ask:=/prompt", "--output", golden,
    )  # fmt: skip
    assert alone.returncode == 0, alone.stdout + alone.stderr
    written = {"bag": str(bag), "params_file": str(parameters), "engine_dir": str(engine), "backend": "fake"}
    for namespace, expected, code in (("left", golden, 0), ("", tmp_path / "other.json", 1)):
        topic = f"/{namespace}/prompt" if namespace else "/prompt"
        specs = replay_specs(
            {**written, "namespace": namespace, "remap": f"/ask:={topic}", "expect": str(expected), "rate": "2"}
        )
        with ExitStack() as stack:
            node, command = (stack.enter_context(NodeProcess(spec)) for spec in specs)
            assert command.wait(DEADLINE) == code, command.output() + node.output()
            said = command.output()
            assert "Playing /ask." in said and "2 answers and 0 chunks came." in said
            assert node.exit_code is None  # launch ends it
        if code == 0:
            assert f"As in {golden}." in said
            content = json.loads(golden.read_text())
            content["answers"][1]["response"] = "another"
            (tmp_path / "other.json").write_text(json.dumps(content))
        else:
            assert "answer 2 has response" in said and "(was 'another')" in said


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"report.include_text": False}, "set its parameter report.include_text to true"),
        ({"use_sim_time": False}, "The node does not listen to /clock; start it with use_sim_time set to true"),
    ],
    ids=str,
)
def test_a_node_that_was_started_otherwise_is_told_what_it_lacks(
    tmp_path: Path, parameters: dict[str, ParameterValue], sentence: str
) -> None:
    bag = write_bag(tmp_path / "bag", prompts("one"))
    node, command = replay_specs({"bag": str(bag), "backend": "fake"})
    with NodeProcess(replace(node, parameters={**node.parameters, **parameters})), NodeProcess(command) as player:
        assert player.wait(DEADLINE) == 2
        assert sentence in player.output()


@pytest.mark.timeout(200)
def test_a_name_that_no_node_has_is_said_with_the_one_that_is_there(tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "bag", prompts("one"))
    node, _ = replay_specs({"bag": str(bag), "backend": "fake", "namespace": "left"})
    code = (
        "import sys; from edgellm_ros.cli import main, node_session; node_session.START_TIMEOUT = 6.0; "
        f"sys.exit(main.main(['replay', '--node', '/edgellm', {str(bag)!r}]))"
    )
    with NodeProcess(node):
        told = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=False
        )
    assert told.returncode == 2 and "Waiting for /edgellm: 1 s" in told.stderr
    last = told.stderr.splitlines()[-1]
    assert last.startswith("edgellm replay: the node /edgellm did not become active within 6 s; /left/edgellm is there")


def test_every_argument_of_the_node_is_passed_on_and_time_comes_from_the_recording() -> None:
    names = [argument.name for argument in replay_arguments()]
    assert {argument.name for argument in launch_arguments()} - set(names) == {"autostart"}
    node, command = replay_specs(
        {"bag": "a bag.mcap", "node_name": "talker", "namespace": "left", "prompt": "--what is it?", "settle": "3"}, {}
    )
    assert (node.name, node.namespace) == ("talker", "left")
    assert node.parameters == {"use_sim_time": True, "autostart": True, "report.include_text": True}
    assert command.arguments() == [
        "replay", "--node=/left/talker", "--prompt=--what is it?", "--settle=3", "--", "a bag.mcap",
    ]  # fmt: skip
    assert command.environment == node.environment


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "The launch argument bag is empty; name the recording"),
        ({"bag": "b", "autostart": "false"}, "The launch argument autostart does not exist"),
        ({"bag": "b", "use_sim_time": "false"}, "The launch argument use_sim_time is 'false'; want one of true"),
        ({"bag": "b", "backend": "gpu"}, "The launch argument backend is 'gpu'"),
    ],
)
def test_what_cannot_be_started_is_refused_in_a_sentence(arguments: dict[str, str], sentence: str) -> None:
    with pytest.raises(EdgeLLMError, match=sentence):
        replay_specs(arguments)
