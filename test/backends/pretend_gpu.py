"""The whole GPU backend on a pretended GPU: real code above the driver, host memory below it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from fake_cuda import FakeCompiler, FakeDriver
from fake_libraries import fake_onnxruntime, fake_tensorrt

from edgellm_ros.backends.cuda.backend import CUDABackend
from edgellm_ros.backends.cuda.device import Device
from edgellm_ros.backends.cuda.driver import Driver
from edgellm_ros.backends.cuda.kernel_cache import KernelCache
from edgellm_ros.backends.cuda.kernels import Compiler, Kernels
from edgellm_ros.backends.cuda.tensorrt_api import TensorRT
from edgellm_ros.builder.tensorrt_build import PlanOptions, compile_plan

_cache = KernelCache(Path(tempfile.mkdtemp(prefix="edgellm-pretended-kernels-")))


def pretend_device(driver: FakeDriver | None = None) -> Device:
    return Device(driver=Driver(driver or FakeDriver()))


def pretend_backend(
    library: str = "onnxruntime", version: str = "10.3.0", *, driver: FakeDriver | None = None, **options: Any
) -> CUDABackend:
    """``options`` are those of the pretended ONNX Runtime."""
    driver = driver or FakeDriver()
    device = pretend_device(driver)
    module = fake_tensorrt(driver, version) if library == "tensorrt" else fake_onnxruntime(driver, **options)
    kernels = Kernels(device, _cache, Compiler(FakeCompiler()))
    return CUDABackend(library, device=device, kernels=kernels, module=module)


def compile_pretended(directory: Path, version: str = "10.3.0", options: PlanOptions | None = None) -> Any:
    """Compile a plan; returns the pretended module, which remembers what it was asked."""
    driver = FakeDriver()
    module = fake_tensorrt(driver, version)
    device = pretend_device(driver)
    try:
        compile_plan(directory, options, api=TensorRT(module), device=device)
    finally:
        device.close()
    return module
