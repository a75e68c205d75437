"""Arrays for tests of the GPU backend, and tensors that hold them."""

from __future__ import annotations

import numpy as np

from edgellm_ros.backends.base import DataType, Tensor
from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.backends.host_backend import HostBackend


def put(backend: CUDABackend | HostBackend, values: np.ndarray, dtype: DataType) -> Tensor:
    tensor = backend.allocate(values.shape, dtype)
    tensor.write(values)
    return tensor


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 1.0, shape).astype(np.float32)
