"""Every backend under test, each with an engine directory that it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from backend_driver import BackendDriver

from edgellm_ros.backends.base import Backend
from edgellm_ros.backends.fake import FakeMode, FakeScript, write_fake_engine_directory
from edgellm_ros.backends.registry import open_backend
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import write_random_llama_checkpoint
from edgellm_ros.engine_format import BuilderLimits, EngineConfig, open_engine_directory
from edgellm_ros.errors import EdgeLLMError


@dataclass(frozen=True)
class Subject:
    """A backend under test and an engine directory that it runs."""

    name: str
    directory: Path
    config: EngineConfig
    opener: Callable[[], Backend] | None = None

    def open_backend(self) -> Backend:
        return open_backend(self.name, threads=1) if self.opener is None else self.opener()

    def open_driver(self) -> BackendDriver:
        return BackendDriver(self.open_backend(), self.directory, self.config)


def _fake(folder: Path) -> Subject:
    script = FakeScript(mode=FakeMode.SEEDED)
    directory = write_fake_engine_directory(folder / "fake", script, max_input=64, max_kv=256)
    return Subject("fake", directory, open_engine_directory(directory).config)


def _onnxruntime(folder: Path, precision: str = "fp32") -> Subject:
    pytest.importorskip("onnxruntime")
    checkpoint = write_random_llama_checkpoint(folder / "checkpoint", hidden_size=64, seed=1)
    limits = BuilderLimits(4, 64, 256)
    directory = build_engine(checkpoint, folder / precision, precision=precision, limits=limits)
    return Subject("onnxruntime", directory, open_engine_directory(directory).config)


def _onnxruntime_int8(folder: Path) -> Subject:
    return _onnxruntime(folder, "int8")


def _legacy(folder: Path) -> Path:
    """An engine directory that every GPU library runs."""
    checkpoint = write_random_llama_checkpoint(folder / "checkpoint", hidden_size=64, seed=1)
    return build_engine(checkpoint, folder / "legacy", limits=BuilderLimits(4, 64, 256), lowering="tensorrt_legacy")


def _pretended(folder: Path, library: str, version: str = "10.3.0") -> Subject:
    """The whole GPU backend with host memory for a GPU."""
    pytest.importorskip("onnxruntime")
    from pretend_gpu import compile_pretended, pretend_backend

    directory = _legacy(folder)
    if library == "tensorrt":
        compile_pretended(directory, version)
    name = "tensorrt" if library == "tensorrt" else "onnxruntime_cuda"
    return Subject(name, directory, open_engine_directory(directory).config, lambda: pretend_backend(library, version))


def _pretended_onnxruntime_cuda(folder: Path) -> Subject:
    return _pretended(folder, "onnxruntime")


def _pretended_tensorrt(folder: Path) -> Subject:
    return _pretended(folder, "tensorrt")


def _pretended_tensorrt_8(folder: Path) -> Subject:
    return _pretended(folder, "tensorrt", "8.5.3.1")


def _gpu_onnxruntime_cuda(folder: Path) -> Subject:
    directory = _legacy(folder)
    try:
        open_backend("onnxruntime_cuda").close()
    except EdgeLLMError as error:
        pytest.skip(str(error))
    return Subject("onnxruntime_cuda", directory, open_engine_directory(directory).config)


def _gpu_tensorrt(folder: Path) -> Subject:
    from edgellm_ros.builder.tensorrt_build import PlanOptions, compile_plan

    directory = _legacy(folder)
    try:
        compile_plan(directory, PlanOptions(library_tactics=False))
    except EdgeLLMError as error:
        pytest.skip(str(error))
    return Subject("tensorrt", directory, open_engine_directory(directory).config)


# One entry for each backend and kind of engine: every contract test runs against all of them.
SUBJECTS: dict[str, Callable[[Path], Subject]] = {
    "fake": _fake,
    "onnxruntime": _onnxruntime,
    "onnxruntime-int8": _onnxruntime_int8,
    "pretended-onnxruntime_cuda": _pretended_onnxruntime_cuda,
    "pretended-tensorrt": _pretended_tensorrt,
    "pretended-tensorrt-8": _pretended_tensorrt_8,
    "gpu-onnxruntime_cuda": _gpu_onnxruntime_cuda,
    "gpu-tensorrt": _gpu_tensorrt,
}
