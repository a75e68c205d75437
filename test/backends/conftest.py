from __future__ import annotations

from collections.abc import Callable, Iterator
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


@dataclass(frozen=True)
class Subject:
    """A backend under test and an engine directory that it runs."""

    name: str
    directory: Path
    config: EngineConfig

    def open_backend(self) -> Backend:
        return open_backend(self.name, threads=1)

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


# One entry for each backend and kind of engine: every contract test runs against all of them.
SUBJECTS: dict[str, Callable[[Path], Subject]] = {
    "fake": _fake,
    "onnxruntime": _onnxruntime,
    "onnxruntime-int8": _onnxruntime_int8,
}


@pytest.fixture(scope="session", params=sorted(SUBJECTS))
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return SUBJECTS[request.param](tmp_path_factory.mktemp("subject"))


@pytest.fixture
def backend(subject: Subject) -> Iterator[Backend]:
    backend = subject.open_backend()
    yield backend
    backend.close()


@pytest.fixture
def driver(subject: Subject) -> Iterator[BackendDriver]:
    driver = subject.open_driver()
    yield driver
    driver.close()
