"""What ``edgellm check`` says of a machine: of a GPU that is there, and of one that has no ROS."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from backend_subjects import SUBJECTS

from edgellm_ros.backends.fake import FakeMode, FakeScript, write_fake_engine_directory
from edgellm_ros.cli.check_machine import check_backend
from edgellm_ros.cli.findings import Findings
from edgellm_ros.engine_format import open_engine_directory

WITHOUT_ROS = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("rclpy", "std_msgs", "sensor_msgs", "diagnostic_msgs"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Absent())
from edgellm_ros.cli.main import main
sys.exit(main(["check", *sys.argv[1:]]))
"""


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gpu-onnxruntime_cuda", "gpu-tensorrt"])
def test_a_gpu_is_found_with_what_is_free_on_it(name: str, tmp_path: Path) -> None:
    subject = SUBJECTS[name](tmp_path)
    backend = subject.open_backend()
    device = backend.device.name  # type: ignore[attr-defined]
    backend.close()
    for asked in (subject.name, "auto"):
        findings = Findings()
        check_backend(findings, open_engine_directory(subject.directory), asked, 0, 0)
        told = [entry.sentence for entry in findings.entries]
        assert not findings.problems, told
        assert told[0].startswith(f"{subject.name} runs it"), told
        assert any(f"free on {device}" in sentence for sentence in told), told
        assert any(sentence.startswith(f"{subject.directory / 'llm.engine'} is for TensorRT") for sentence in told) is (
            subject.name == "tensorrt"
        )


@pytest.mark.parametrize(("with_file", "code"), [(False, 0), (True, 1)], ids=["engine alone", "node"])
def test_a_machine_without_ros_runs_engines_and_no_node(tmp_path: Path, with_file: bool, code: int) -> None:
    engine = write_fake_engine_directory(tmp_path / "engine", FakeScript(mode=FakeMode.ECHO))
    file = tmp_path / "robot.yaml"
    file.write_text("/**: {ros__parameters: {generation.seed: 1, engine.memory_reserve_mb: 0}}")
    arguments = [str(engine), *(["--params-file", str(file)] if with_file else [])]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ROS, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code and not done.stderr, done.stdout + done.stderr
    assert "The node does not import (No module named 'rclpy'); source a ROS 2 installation" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Pass: " if code == 0 else "This machine cannot run")
