"""A device that is missing, refuses, breaks or is closed; and that nothing of it is left behind."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from fake_cuda import FakeDriver, Status
from pretend_gpu import pretend_backend, pretend_device

from edgellm_ros.backends.base import CacheLayout, DataType, SamplingRow
from edgellm_ros.backends.cuda import backend as cuda_backend
from edgellm_ros.backends.cuda.device import Device
from edgellm_ros.backends.cuda.driver import ContextLostError, Driver
from edgellm_ros.errors import BackendError, MisuseError


def without_library() -> SimpleNamespace:
    def fail(*arguments: object) -> None:
        raise RuntimeError("libcuda.so.1 cannot be opened")

    return SimpleNamespace(cuInit=fail)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (without_library(), "no NVIDIA driver was found .*libcuda.*install the driver"),
        (FakeDriver(devices=0), "finds no GPU; check 'nvidia-smi'"),
        (FakeDriver(version=11040), "serves CUDA 11.4; want 12.0 or newer: update it"),
    ],
    ids=["no driver", "no GPU", "old driver"],
)
def test_a_machine_that_cannot_serve_is_refused_in_a_sentence(module: object, sentence: str) -> None:
    with pytest.raises(BackendError, match=sentence):
        Device(driver=Driver(module))


@pytest.mark.parametrize("call", ["cuCtxSetCurrent", "cuStreamCreate", "cuMemHostAlloc", "cuEventCreate"])
def test_a_device_that_fails_to_start_keeps_nothing(call: str) -> None:
    driver = FakeDriver()
    driver.fail[call] = Status.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(BackendError, match="out of memory"):
        pretend_device(driver)
    assert (driver.contexts, driver.streams, driver.pinned) == (0, 0, {})
    driver.fail.clear()
    pretend_device(driver).close()
    assert (driver.contexts, driver.streams, driver.events, driver.pinned) == (0, 0, 0, {})


def test_a_backend_that_fails_to_start_closes_the_device_that_it_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()

    def fails(device: Device) -> None:
        raise BackendError("no folder for kernels; set HOME.")

    monkeypatch.setattr(cuda_backend, "Device", lambda ordinal: pretend_device(driver))
    monkeypatch.setattr(cuda_backend, "Kernels", fails)
    with pytest.raises(BackendError, match="no folder for kernels"):
        cuda_backend.CUDABackend("onnxruntime")
    assert (driver.contexts, driver.streams, driver.events, driver.pinned) == (0, 0, 0, {})
    with pytest.raises(BackendError, match="no folder for kernels"):
        cuda_backend.CUDABackend("onnxruntime", device=(shared := pretend_device(driver)))
    assert driver.contexts == 1
    shared.close()


@pytest.mark.parametrize("pools", [True, False], ids=["pools", "no pools"])
def test_closing_gives_everything_back(pools: bool) -> None:
    driver = FakeDriver(pools=pools)
    backend = pretend_backend(driver=driver)
    tensors = [backend.allocate((1000,), DataType.FLOAT32) for _ in range(3)]
    cache = backend.allocate_kv_cache(CacheLayout(((2, 8),)), 2, 16)
    block = cache.export_block(0, 0, 4)
    sampler = backend.allocate_sampler(2, 100)
    sampler.set_row(0, SamplingRow(repetition_penalty=1.5, logit_bias={3: 1.0}), [1, 2], 2)
    counter = backend.allocate((1,), DataType.INT32)
    step = backend.capture("count", lambda: backend.advance([counter]))
    for _ in range(3):
        step.run()
    readbacks = [backend.read_async(counter) for _ in range(12)]
    assert readbacks[0].wait().tolist() == [3]
    del readbacks  # the others are dropped without being waited for
    backend.close()
    backend.close()
    assert (driver.contexts, driver.graphs, driver.events, driver.blocks, driver.pinned) == (0, 0, 0, {}, {})
    del tensors, cache, block, sampler  # what is dropped afterwards finds nothing to free
    gc.collect()


def test_a_step_of_onnx_runtime_that_calls_the_host_is_never_replayed() -> None:
    driver = FakeDriver()
    backend = pretend_backend(driver=driver)
    counter, freed = backend.allocate((1,), DataType.INT32), []

    def step() -> None:
        backend.advance([counter])
        driver.enqueue(lambda: freed.append(1), host=True)

    captured = backend.capture("frees", step)
    for run in range(1, 5):
        captured.run()
        assert counter.numpy().tolist() == [run] and len(freed) == run
    assert not captured.recorded and "calls functions of the host" in captured.failure
    assert driver.graphs == 0 and captured.nodes == 0
    plain = backend.capture("count", lambda: backend.advance([counter]))
    assert plain.record() and plain.nodes == 1
    backend.close()
    other = pretend_backend("tensorrt", driver=driver)
    assert other.capture("frees", lambda: driver.enqueue(lambda: None, host=True)).record()
    other.close()


def test_a_lost_device_says_so_and_is_left_alone() -> None:
    driver = FakeDriver()
    backend = pretend_backend(driver=driver)
    tensor = backend.allocate((4,), DataType.INT32)
    driver.fail["cuLaunchKernel"] = Status.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(ContextLostError, match="restart the process"):
        backend.advance([tensor])
    driver.fail.update(dict.fromkeys(("cuMemFreeAsync", "cuStreamSynchronize"), Status.CUDA_ERROR_ILLEGAL_ADDRESS))
    del tensor
    gc.collect()
    backend.close()


def test_running_out_of_memory_leaves_the_rest_usable() -> None:
    backend = pretend_backend(driver=FakeDriver(memory=1 << 24))
    tensor = backend.allocate((4,), DataType.INT32)
    for _ in range(3):
        with pytest.raises(BackendError, match="out of memory: the GPU has not enough left"):
            backend.allocate_kv_cache(CacheLayout(((8, 64),) * 4), 4, 4096)
    backend.advance([tensor])
    assert tensor.numpy().tolist() == [1] * 4
    backend.close()


def test_each_thread_and_device_has_its_context_made_current() -> None:
    driver = FakeDriver()
    made_current: list[tuple[int, object]] = []
    plain = driver.cuCtxSetCurrent
    driver.cuCtxSetCurrent = lambda context: made_current.append((threading.get_ident(), context)) or plain(context)  # type: ignore[method-assign,func-returns-value]
    first, second = pretend_device(driver), pretend_device(driver)
    made_current.clear()
    for device in (first, first, second, first):
        device.memory()
    assert len(made_current) == 3
    made_current.clear()
    thread = threading.Thread(target=first.memory)
    thread.start()
    thread.join()
    assert [identity for identity, _ in made_current] == [thread.ident]
    second.close()
    first.memory()  # the other's end took the context away from this thread
    assert made_current[-1] == (threading.get_ident(), 77)
    first.close()
    with pytest.raises(MisuseError, match="closed"):
        first.memory()


def test_a_readback_that_is_not_done_is_not_ready() -> None:
    driver = FakeDriver()
    device = pretend_device(driver)
    address = device.allocate(16)
    readback = device.read(address, (4,), np.dtype(np.int32))
    driver.fail["cuEventQuery"] = Status.CUDA_ERROR_NOT_READY
    assert not readback.ready()
    driver.fail.clear()
    assert readback.ready()
    assert readback.wait().tolist() == [0] * 4
    device.close()


def test_a_failure_of_the_work_comes_out_where_its_result_is_awaited() -> None:
    driver = FakeDriver()
    device = pretend_device(driver)
    readback = device.read(device.allocate(16), (4,), np.dtype(np.int32))
    driver.fail["cuEventSynchronize"] = Status.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(BackendError, match="cuEventSynchronize failed with CUDA_ERROR_INVALID_VALUE"):
        readback.wait()
    with pytest.raises(MisuseError, match="failed before"):
        readback.wait()
