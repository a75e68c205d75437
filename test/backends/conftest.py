from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from backend_driver import BackendDriver
from tiny_graph import tiny_config, write_tiny_model

from edgellm_ros.backends.base import Backend
from edgellm_ros.backends.fake import FakeMode, FakeScript, write_fake_engine_directory
from edgellm_ros.backends.registry import open_backend
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


def _onnxruntime(folder: Path) -> Subject:
    directory = write_tiny_model(folder / "tiny")
    return Subject("onnxruntime", directory, tiny_config(BuilderLimits(4, 64, 256)))


# One entry for each backend: every contract test runs against all of them.
SUBJECTS: dict[str, Callable[[Path], Subject]] = {"fake": _fake, "onnxruntime": _onnxruntime}


@pytest.fixture(scope="session", params=sorted(SUBJECTS))
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    if request.param == "onnxruntime":
        pytest.importorskip("onnxruntime")
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
