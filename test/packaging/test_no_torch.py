"""Nothing ever imports torch, also where it is installed: a package of that name on the path notes every attempt."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from tree_copies import REPOSITORY, clean_environment, python

TINY_CHECKPOINT = REPOSITORY / "test" / "reference" / "tiny_llama"

TRAP = """
import os, pathlib, traceback
pathlib.Path(os.environ["TORCH_NOTE"]).write_text("".join(traceback.format_stack()))
raise ImportError("torch must not be imported")
"""

GENERATE = """
from edgellm_ros import LLMGenerationRequest, LLMGenerationResponse, LLMInferenceRuntime, Message, Request
def generate(directory):
    runtime = LLMInferenceRuntime(directory)
    request = LLMGenerationRequest([Request((Message("user", "Hello there"),))], max_generate_length=8)
    response = LLMGenerationResponse()
    assert runtime.handle_request(request, response), runtime.last_refusal
    assert response.output_ids[0]
    runtime.close()
"""

CASES = {
    "every_module": """
import importlib, pkgutil, edgellm_ros
for module in pkgutil.walk_packages(edgellm_ros.__path__, "edgellm_ros."):
    if HAVE_ROS or not module.name.startswith(("edgellm_ros.ros", "edgellm_ros.tabletop")):
        importlib.import_module(module.name)
""",
    "fake_engine": f"""{GENERATE}
import pathlib, tempfile
from edgellm_ros.backends.fake import FakeScript, write_fake_engine_directory
with tempfile.TemporaryDirectory() as folder:
    generate(write_fake_engine_directory(pathlib.Path(folder) / "engine", FakeScript()))
""",
    "build_and_generate": f"""{GENERATE}
import pathlib, tempfile
from edgellm_ros.builder.build import build_engine
with tempfile.TemporaryDirectory() as folder:
    generate(build_engine({str(TINY_CHECKPOINT)!r}, pathlib.Path(folder) / "engine", precision="int8"))
""",
}


def have(*modules: str) -> bool:
    return all(importlib.util.find_spec(module) for module in modules)


@pytest.mark.parametrize("case", CASES)
def test_torch_is_never_imported(case: str, tmp_path: Path) -> None:
    if case == "build_and_generate" and not have("onnx", "safetensors", "onnxruntime"):
        pytest.skip("the extra [build] is not installed")
    package = tmp_path / "path" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(TRAP)
    note = tmp_path / "note"
    path = os.pathsep.join((str(package.parent), str(REPOSITORY)))
    environment = clean_environment(PYTHONPATH=path, TORCH_NOTE=str(note))
    prologue = f"HAVE_ROS = {have('rclpy')}\n"
    python(prologue + CASES[case], environment=environment, folder=tmp_path)
    assert not note.exists(), note.read_text()


def test_the_trap_catches(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TRAP)
    note = tmp_path / "note"
    code = "try:\n    import torch\nexcept ImportError:\n    pass"
    python(code, environment=clean_environment(PYTHONPATH=str(tmp_path), TORCH_NOTE=str(note)))
    assert note.exists()
