"""``edgellm check`` looks at every file of an engine directory, and on a GPU at its memory and at whole plans."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy")

from check_bench import Check
from pretend_gpu import compile_pretended, pretend_backend

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import write_random_llama_checkpoint
from edgellm_ros.cli import check_machine
from edgellm_ros.engine_format import BuilderLimits
from edgellm_ros.errors import MissingPackageError


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
    damage: Callable[[Path], object], sentence: str, policy_engine: Path, check: Check, tmp_path: Path
) -> None:
    folder = shutil.copytree(policy_engine, tmp_path / "engine")
    damage(folder)
    found = check(folder)
    (problem,) = found["problem"]
    assert problem.startswith("directory: ") and sentence in problem
    assert not any(told.startswith(("backend:", "cameras:")) for verdict in found.values() for told in verdict)


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
