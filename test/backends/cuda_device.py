"""The GPU backend where there is a GPU; the reason for skipping where there is none."""

from __future__ import annotations

import pytest

from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.errors import EdgeLLMError


def open_cuda_backend() -> CUDABackend:
    """A backend for kernels and memory; no engine library is loaded before an engine is opened."""
    try:
        return CUDABackend("onnxruntime")
    except EdgeLLMError as error:
        pytest.skip(str(error))
