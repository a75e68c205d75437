"""A GPU backend that is known to run an engine directory here, or the reason why not."""

from __future__ import annotations

from pathlib import Path

from .backend import CUDABackend
from .memory_check import check_memory
from .packages import load_onnxruntime
from .plan_file import check_target, main_plan
from .tensorrt_api import TensorRT


def open_cuda_backend(library: str, directory: Path | None = None) -> CUDABackend:
    """A backend whose library is there and, where a directory is given, runs what that holds on this GPU.

    :raises MissingPackageError: cuda-python or the library is not installed.
    :raises BackendError: no usable GPU, a plan of another version or GPU, or not enough memory.
    """
    tensorrt = TensorRT() if library == "tensorrt" else None
    if tensorrt is None:
        load_onnxruntime()
    backend = CUDABackend(library)
    try:
        if directory is not None:
            if tensorrt is not None:
                check_target(main_plan(directory), tensorrt.version, backend.device.architecture, backend.device.name)
            check_memory(backend.device, directory, library)
    except BaseException:
        backend.close()
        raise
    return backend
