"""``edgellm check`` says before a start what the node says at it, and what to do."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("rclpy")

import rclpy
from lifecycle_msgs.msg import Transition
from node_bench import NodeBench
from policy_checkpoints import reference
from pretend_gpu import compile_pretended, pretend_backend
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage, Image, JointState
from test_replay import CAMERAS, JOINTS, ROBOT
from trajectory_msgs.msg import JointTrajectory

from edgellm_ros.backends.fake import FakeMode, FakeScript, write_fake_engine_directory
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import write_random_llama_checkpoint
from edgellm_ros.cli import check_machine
from edgellm_ros.cli.main import main
from edgellm_ros.engine_format import BuilderLimits
from edgellm_ros.errors import EdgeLLMError, MissingPackageError

Check = Callable[..., dict[str, list[str]]]


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_engine_directory(tmp_path_factory.mktemp("talks") / "engine", FakeScript(mode=FakeMode.ECHO))


@pytest.fixture(scope="module")
def acts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("acts")
    checkpoint, _, _ = reference("smolvla")
    (folder / "robot.yaml").write_text(ROBOT)
    return build_engine(checkpoint, folder / "engine", policy_settings=folder / "robot.yaml")


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    """Runs the command in this process; gives the sentences by verdict, and under ``code`` the exit status."""

    def run(*arguments: object) -> dict[str, list[str]]:
        code = main(["check", "--json", *map(str, arguments)])
        content = json.loads(capsys.readouterr().out)
        found: dict[str, list[str]] = {"ok": [], "warning": [], "problem": [], "code": [str(code)]}
        for finding in content["findings"]:
            found[finding["verdict"]].append(f"{finding['subject']}: {finding['sentence']}")
            assert finding["sentence"].endswith((".", "?")) and "\n" not in finding["sentence"]
        assert content["passed"] is (code == 0) is (not found["problem"])
        return found

    return run


def written(path: Path, parameters: Mapping[str, Any]) -> Path:
    path.write_text(yaml.safe_dump({"/**": {"ros__parameters": dict(parameters)}}))
    return path


def test_a_sound_machine_passes_with_one_line_for_each_finding(
    talks: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = written(tmp_path / "robot.yaml", {"engine.directory": str(talks), "use_sim_time": True})
    assert main(["check", "--params-file", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"Pass: this machine can run {talks}."
    subjects = [line.split()[1] for line in lines[:-1]]
    assert subjects == ["parameters", "directory", "tokenizer", "packages", "backend", "memory", "ros"]
    assert f"1 of 1 values of {file} are taken" in lines[0]
    assert any("onnxruntime 1." in line and "Python 3." in line for line in lines)


def test_problems_are_numbered_behind_everything_else(
    talks: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = written(tmp_path / "robot.yaml", {"cameras": ["front"], "generation.temperature": 3, "generation.sed": 1})
    assert main(["check", str(talks), "--params-file", str(file)]) == 1
    *_, warning, first, second, verdict = capsys.readouterr().out.splitlines()
    assert warning.startswith("warning  parameters") and warning.endswith("did you mean generation.seed?")
    assert first.split(maxsplit=2)[0] == "1." and "generation.temperature is 3; want a number from 0 to 2." in first
    assert second.split(maxsplit=2)[:2] == ["2.", "cameras"] and "the engine takes no images" in second
    assert verdict == f"This machine cannot run {talks} so: 2 problems."


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
    talks: Path,
    acts: Path,
    check: Check,
    tmp_path: Path,
    start_node: Callable[..., NodeBench],
) -> None:
    engine = talks if kind == "talks" else acts
    file = written(tmp_path / "robot.yaml", {**parameters, "engine.memory_reserve_mb": 0})
    found = check(engine, "--params-file", file)
    assert (not found["problem"]) is fits, found
    assert node_starts(file, engine, start_node) is fits


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def turn(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def replace_file(folder: Path, name: str, content: bytes) -> None:
    """With a manifest that fits, as another version would have written both."""
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = len(content)
    del manifest["samples"][name]
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: cut(folder / "embedding.safetensors"), "bytes; the manifest wants"),
        (lambda folder: turn(folder / "embedding.safetensors"), "is not what was built"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json"),
        (lambda folder: (folder / "manifest.json").unlink(), "has no manifest.json"),
        (lambda folder: replace_file(folder, "action/policy.json", b"{}"), "policy.json has contract_version None"),
        (lambda folder: replace_file(folder, "tokenizer.json", b"{}"), "tokenizer.json is no tokenizer"),
    ],
    ids=["cut", "turned", "missing", "manifest", "no manifest", "policy", "tokenizer"],
)
def test_a_damaged_directory_is_told_by_its_file(
    damage: Callable[[Path], object], sentence: str, acts: Path, check: Check, tmp_path: Path
) -> None:
    folder = shutil.copytree(acts, tmp_path / "engine")
    damage(folder)
    found = check(folder)
    (problem,) = found["problem"]
    assert problem.startswith("directory: ") and sentence in problem
    assert not any(told.startswith(("backend:", "cameras:")) for verdict in found.values() for told in verdict)


def test_a_place_without_an_engine_is_a_problem_and_no_place_a_bad_command_line(
    check: Check, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (problem,) = check(tmp_path / "nowhere")["problem"]
    assert "holds nothing; want an engine directory: make one with 'edgellm build'" in problem
    assert main(["check"]) == 2
    assert "engine.directory is empty; want an engine directory" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["a: [", "engine: {directory: /e}"])
def test_a_parameter_file_that_ros_would_not_take_is_a_problem(
    content: str, talks: Path, check: Check, tmp_path: Path
) -> None:
    (tmp_path / "robot.yaml").write_text(content)
    (problem,) = check(talks, "--params-file", tmp_path / "robot.yaml")["problem"]
    assert problem.startswith(f"parameters: {tmp_path / 'robot.yaml'}")


def test_a_part_of_a_file_for_another_node_is_not_for_this_one(talks: Path, check: Check, tmp_path: Path) -> None:
    (tmp_path / "robot.yaml").write_text("/left/edgellm: {ros__parameters: {generation.seed: x}}")
    found = check(talks, "--params-file", tmp_path / "robot.yaml")
    assert any("has nothing for the node /edgellm" in sentence for sentence in found["warning"])
    found = check(talks, "--params-file", tmp_path / "robot.yaml", "--node", "/left/edgellm")
    assert found["problem"] == ["parameters: generation.seed is 'x' of type str; want a whole number."]


def test_too_little_memory_is_a_problem_with_the_figures(
    talks: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgellm_ros.ros.memory.available_memory", lambda: 300 << 20)
    (problem,) = check(talks)["problem"]
    assert "of the 300 MB that are free and engine.memory_reserve_mb keeps 512 MB; free memory" in problem
    monkeypatch.setattr("edgellm_ros.ros.memory.available_memory", lambda: None)
    assert any("the system does not tell how much is free" in sentence for sentence in check(talks)["warning"])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    checkpoint = write_random_llama_checkpoint(folder / "checkpoint", hidden_size=64, seed=1)
    path = build_engine(checkpoint, folder / "engine", limits=BuilderLimits(2, 16, 64), lowering="tensorrt_legacy")
    compile_pretended(path)
    return path


def test_a_gpu_that_is_there_and_not_used_is_a_warning(
    compiled: Path, check: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def absent(library: str, directory: Path | None = None) -> None:
        raise MissingPackageError(f"the package of {library} is not installed; install it.")

    monkeypatch.setattr("edgellm_ros.backends.cuda.opening.open_cuda_backend", absent)
    for devices, verdict, words in (((str(tmp_path),), "warning", "has a GPU"), ((), "ok", "Passed over was")):
        monkeypatch.setattr(check_machine, "_GPU_DEVICES", devices)
        sentences = [sentence for sentence in check(compiled)[verdict] if words in sentence]
        assert [sentence.split("was ")[1].split(":")[0] for sentence in sentences] == ["tensorrt", "onnxruntime_cuda"]


def test_on_a_gpu_its_memory_and_every_byte_of_a_plan_are_looked_at(
    compiled: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends: list[Any] = []

    def opened(library: str, directory: Path | None = None) -> Any:
        backends.append(pretend_backend(library))
        return backends[-1]

    class Library:
        version = "10.3.0"

    monkeypatch.setattr("edgellm_ros.backends.cuda.opening.open_cuda_backend", opened)
    monkeypatch.setattr("edgellm_ros.backends.cuda.tensorrt_api.TensorRT", Library)
    found = check(compiled)
    assert not found["problem"]
    told = "\n".join(found["ok"])
    assert "backend: tensorrt runs it" in told and f"free on {backends[0].device.name}" in told
    assert f"plan: {compiled / 'llm.engine'} is for TensorRT 10.3.0" in told
    content = (compiled / "llm.engine").read_bytes()
    turn(compiled / "llm.engine")
    (problem,) = check(compiled)["problem"]
    assert "is damaged (its digest differs" in problem
    (compiled / "llm.engine").write_bytes(content)
    Library.version = "10.9.0"
    (problem,) = check(compiled)["problem"]
    assert "was compiled by TensorRT 10.3.0; this machine has 10.9.0: compile it again" in problem
    whole = (compiled / "llm.engine").rename(compiled / "elsewhere")
    (problem,) = check(compiled, "--backend", "tensorrt")["problem"]
    assert problem.startswith("backend: tensorrt cannot run it: the engine directory has no llm.engine; make one with")
    whole.rename(compiled / "llm.engine")


@pytest.mark.parametrize(
    ("variables", "verdict", "sentence"),
    [
        ({"ROS_DOMAIN_ID": "500"}, "problem", "ROS_DOMAIN_ID is '500'; want a whole number from 0 to 101"),
        ({"ROS_DOMAIN_ID": "left"}, "problem", "ROS_DOMAIN_ID is 'left'"),
        ({"ROS_DOMAIN_ID": "150"}, "warning", "ROS_DOMAIN_ID is 150, whose ports Linux gives to clients"),
        ({"ROS_DISTRO": "foxy"}, "warning", "ROS_DISTRO is foxy; this package is for humble, jazzy, kilted"),
        ({"ROS_DISTRO": "jazzy", "FASTRTPS_DEFAULT_PROFILES_FILE": ""}, "warning", "camera frames may be lost; set it"),
    ],
    ids=str,
)
def test_what_of_ros_does_not_fit_is_told(
    variables: dict[str, str],
    verdict: str,
    sentence: str,
    talks: Path,
    check: Check,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = check(talks, "--params-file", written(tmp_path / "robot.yaml", {"generation.seed": 1}))
    assert any(told.startswith("ros: ") and sentence in told for told in found[verdict]), found


def test_without_ros_a_node_is_a_problem_and_an_engine_alone_is_not(
    talks: Path, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rclpy", None)
    assert any("source a ROS 2 installation" in sentence for sentence in check(talks)["warning"])
    file = written(tmp_path / "robot.yaml", {"generation.seed": 1})
    assert any("source a ROS 2 installation" in sentence for sentence in check(talks, "--params-file", file)["problem"])


def test_a_package_that_is_missing_or_too_old_is_told_with_what_to_install(
    talks: Path, acts: Path, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "edgellm_ros.cli.check_packages.importlib.metadata.version",
        lambda name: {"numpy": "1.20.0", "tokenizers": "0.21"}.get(name, "99.0" if name != "onnxruntime" else "1.99"),
    )
    problems = check(talks)["problem"]
    assert problems == [
        'packages: numpy has the version 1.20.0; edgellm_ros needs numpy>=1.26: install it with "pip install '
        "'numpy>=1.26'\"."
    ]
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert any("opencv-python-headless is not installed" in sentence for sentence in check(acts)["warning"])
    file = written(tmp_path / "robot.yaml", {"images.transport": ["compressed"]})
    assert any("images.transport compressed needs" in told for told in check(acts, "--params-file", file)["problem"])


@pytest.fixture
def robot() -> Iterator[Node]:
    """A node of somebody else's, spun by a thread."""
    context = Context()
    rclpy.init(args=[], context=context)
    node, executor = Node("robot", context=context), SingleThreadedExecutor(context=context)
    executor.add_node(node)

    def spin() -> None:
        with contextlib.suppress(ExternalShutdownException):
            executor.spin()

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    yield node
    rclpy.try_shutdown(context=context)
    thread.join(10.0)


def publish_joints(node: Node, names: tuple[str, ...]) -> None:
    publisher = node.create_publisher(JointState, "arm/joints", 10)
    message = JointState(name=list(names), position=[0.0] * len(names))
    node.create_timer(0.05, lambda: publisher.publish(message))


REMAP = ("--remap", "joint_states:=arm/joints")


def test_what_a_robot_publishes_is_compared_with_what_the_node_takes(acts: Path, check: Check, robot: Node) -> None:
    for name in CAMERAS:
        robot.create_publisher(Image, f"{name}/image_raw", qos_profile_sensor_data)
    publish_joints(robot, JOINTS)
    robot.create_subscription(JointTrajectory, "controller", lambda _: None, 1)
    found = check(acts, "--live", 20, *REMAP, "--remap", "action_trajectory:=/controller")
    assert not found["problem"], found
    assert f"live: /arm/joints has every joint of the policy: {', '.join(JOINTS)}." in found["ok"]
    assert not any("Nobody listens" in sentence for sentence in found["warning"])


def test_what_a_robot_publishes_otherwise_or_not_at_all_is_a_problem(
    acts: Path, check: Check, robot: Node, tmp_path: Path
) -> None:
    robot.create_publisher(CompressedImage, "top/image_raw", 1)
    robot.create_publisher(Image, "wrist/image_raw", qos_profile_sensor_data)
    publish_joints(robot, JOINTS[1:])
    file = written(tmp_path / "robot.yaml", {"qos_overrides./wrist/image_raw.subscription.reliability": "reliable"})
    found = check(acts, "--live", 3, *REMAP, "--params-file", file)
    problems = {sentence.split()[1]: sentence for sentence in found["problem"]}
    assert "is published as sensor_msgs/msg/CompressedImage; want sensor_msgs/msg/Image" in problems["/top/image_raw"]
    assert "quality of service that does not fit" in problems["/wrist/image_raw"]
    assert "qos_overrides./wrist/image_raw" in problems["/wrist/image_raw"]
    assert problems["Nobody"].startswith("live: Nobody publishes /side/image_raw (sensor_msgs/msg/Image)")
    assert f"and lacks {JOINTS[0]}; name the joints in action.joint_names" in problems["/arm/joints"]
    assert len(problems) == 4
    assert any("Nobody listens to /action_trajectory" in sentence for sentence in found["warning"])


def test_a_load_runs_the_engine_and_says_on_what(acts: Path, check: Check) -> None:
    assert "load: action runs on onnxruntime." in check(acts, "--load")["ok"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(["--live", "nan"], "--live is nan; want more than 0 s"), (["--remap", "a"], "--remap is 'a'; want TOPIC:=TOPIC")],
)
def test_a_command_line_that_cannot_be_taken_ends_with_two(
    arguments: list[str], sentence: str, talks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(talks), *arguments]) == 2
    assert sentence in capsys.readouterr().err
