from __future__ import annotations

from collections.abc import Iterator

import pytest
from backend_driver import BackendDriver
from backend_subjects import SUBJECTS, Subject

from edgellm_ros.backends.base import Backend

_PARAMETERS = [
    pytest.param(name, marks=pytest.mark.gpu if name.startswith("gpu-") else ()) for name in sorted(SUBJECTS)
]


@pytest.fixture(scope="session", params=_PARAMETERS)
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
