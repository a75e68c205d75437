"""Memory of the GPU backend: written and read at any size and time, given back, and refused where there is none."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from cuda_arrays import normal, put

from edgellm_ros.backends.base import DataType
from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.errors import BackendError


@pytest.mark.parametrize("count", [0, 1, 7, 1000, 300_000, 1_500_001], ids=str)
def test_what_is_written_is_read_back_whatever_the_size(cuda: CUDABackend, count: int) -> None:
    values = np.arange(count, dtype=np.int32)
    tensor = put(cuda, values, DataType.INT32)
    np.testing.assert_array_equal(tensor.numpy(), values)


def test_a_host_array_may_change_as_soon_as_it_was_written(cuda: CUDABackend) -> None:
    tensors, wanted = [], []
    values = np.zeros(70_000, dtype=np.int32)  # more in all than the staging memory holds
    for number in range(40):
        values[:] = number
        tensors.append(put(cuda, values, DataType.INT32))
        wanted.append(number)
    assert [int(tensor.numpy().min()) for tensor in tensors] == wanted
    assert [int(tensor.numpy().max()) for tensor in tensors] == wanted


def test_fresh_memory_is_zero_and_a_prefix_is_the_same_memory(cuda: CUDABackend) -> None:
    tensor = cuda.allocate((4, 6), DataType.FLOAT32)
    assert not tensor.numpy().any()
    tensor.prefix((2, 3)).write(normal(1, 2, 3))
    np.testing.assert_array_equal(tensor.numpy().reshape(-1)[:6], normal(1, 2, 3).reshape(-1))
    with pytest.raises(ValueError, match="want one inside"):
        tensor.prefix((25,))


def test_readbacks_keep_what_stood_there_when_they_were_asked(cuda: CUDABackend) -> None:
    tensor = put(cuda, np.array([1], dtype=np.int32), DataType.INT32)
    readbacks = []
    for _ in range(20):
        readbacks.append(cuda.read_async(tensor))
        cuda.advance([tensor])
    assert [int(readback.wait()[0]) for readback in readbacks] == list(range(1, 21))
    assert all(readback.ready() for readback in readbacks)


def test_running_out_of_memory_says_so_and_harms_nothing(cuda: CUDABackend) -> None:
    tensor = put(cuda, np.arange(5, dtype=np.int32), DataType.INT32)
    _, total = cuda.device.memory()
    for _ in range(2):
        with pytest.raises(BackendError, match="out of memory"):
            cuda.allocate((2 * total,), DataType.UINT8)
    cuda.advance([tensor])
    assert tensor.numpy().tolist() == [1, 2, 3, 4, 5]


def test_memory_that_is_let_go_comes_back(cuda: CUDABackend) -> None:
    gc.collect()  # what failures of earlier tests still hold would come back meanwhile
    cuda.synchronize()
    before = cuda.device.allocated()
    for _ in range(50):
        tensors = [cuda.allocate((1 << 20,), DataType.FLOAT32) for _ in range(4)]
        cuda.advance([tensors[0].prefix((4,))])
        del tensors
    assert cuda.device.allocated() == before
