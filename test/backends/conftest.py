from __future__ import annotations

from collections.abc import Iterator

import pytest
from backend_driver import BackendDriver
from backend_subjects import SUBJECTS, Subject
from cuda_device import open_cuda_backend

from edgellm_ros.backends.base import Backend
from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.engine_format import open_engine_directory

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


@pytest.fixture
def exact_driver(subject: Subject, driver: BackendDriver) -> BackendDriver:
    """A driver whose answers do not hang on how many rows a call has; eight-bit products round with their rows."""
    if open_engine_directory(subject.directory).manifest.precision == "int8":
        pytest.skip("eight-bit products of one row and of several round differently, so near ties may fall either way")
    return driver


@pytest.fixture(scope="module", params=["pretended", pytest.param("gpu", marks=pytest.mark.gpu)])
def cuda(request: pytest.FixtureRequest) -> Iterator[CUDABackend]:
    if request.param == "gpu":
        backend = open_cuda_backend()
    else:
        from pretend_gpu import pretend_backend  # needs ONNX Runtime, which a machine with TensorRT may lack

        backend = pretend_backend()
    yield backend
    backend.close()
