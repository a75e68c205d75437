"""Steps that the GPU backend records and replays, and those that it cannot record."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_arrays import put

from edgellm_ros.backends.base import DataType
from edgellm_ros.backends.cuda.backend import CUDABackend


def test_a_recorded_step_replays_and_follows_the_state_on_the_device(cuda: CUDABackend) -> None:
    counter = put(cuda, np.zeros(3, dtype=np.int32), DataType.INT32)
    step = cuda.capture(("count", 3), lambda: cuda.advance([counter], 2))
    for run in range(1, 6):
        step.run()
        np.testing.assert_array_equal(counter.numpy(), np.full(3, 2 * run))
        assert step.recorded == (run >= 2)
    counter.write(np.array([10, 20, 30], dtype=np.int32))
    step.run()
    np.testing.assert_array_equal(counter.numpy(), [12, 22, 32])


def test_a_step_that_cannot_be_recorded_runs_as_it_is(cuda: CUDABackend, caplog: pytest.LogCaptureFixture) -> None:
    counter = cuda.allocate((1,), DataType.INT32)

    def step() -> None:
        cuda.advance([counter])
        cuda.synchronize()  # may not stand in a graph

    captured = cuda.capture("waits", step)
    for run in range(1, 5):
        captured.run()
        assert counter.numpy().tolist() == [run]
    assert not captured.recorded and captured.failure
    assert len([row for row in caplog.records if "without a CUDA graph" in row.message]) == 1
    cuda.advance([counter])
    assert counter.numpy().tolist() == [5]


@pytest.mark.parametrize("misuse", ["allocate", "write", "read"])
def test_a_step_that_takes_memory_or_meets_the_host_is_not_recorded(cuda: CUDABackend, misuse: str) -> None:
    tensor = cuda.allocate((2,), DataType.INT32)
    actions = {
        "allocate": lambda: cuda.allocate((4,), DataType.INT32),
        "write": lambda: tensor.write(np.ones(2, dtype=np.int32)),
        "read": lambda: cuda.read_async(tensor),
    }
    captured = cuda.capture(misuse, actions[misuse])
    captured.run()
    assert not captured.record() and "while a step is recorded" in captured.failure
    captured.run()
    cuda.synchronize()
