"""Calls of the CUDA driver with every result checked: a failure is a sentence, never a silent code."""

from __future__ import annotations

from typing import Any

from ...errors import BackendError
from .packages import load_driver

OLDEST_DRIVER = 12000  # as cuDriverGetVersion counts: CUDA 12.0

# After these the context is lost: nothing on this device works until the process starts anew.
_FATAL = {
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_CONTAINED",
    "CUDA_ERROR_DEVICE_UNAVAILABLE",
}
_SENTENCES = {
    "CUDA_ERROR_OUT_OF_MEMORY": "out of memory: the GPU has not enough left; close other programs on it, or build the "
    "engine directory with a smaller batch or cache",
    "CUDA_ERROR_NO_DEVICE": "the NVIDIA driver finds no GPU; check 'nvidia-smi', or use the backend 'onnxruntime'",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the NVIDIA driver and its user library differ in version; restart the "
    "machine after a driver update",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "the CUDA compatibility library does not fit this GPU; remove it from "
    "LD_LIBRARY_PATH",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "a kernel was compiled for another GPU; delete the kernel cache",
}


class ContextLostError(BackendError):
    """The device went into a state that only a new process leaves; the runtime must be rebuilt in one."""


class Driver:
    """The driver API: ``driver.call("cuMemFree", pointer)`` returns what the call gives beside its status."""

    def __init__(self, module: Any | None = None) -> None:
        self.module = load_driver() if module is None else module
        self.lost = False

    def call(self, name: str, *arguments: Any) -> Any:
        """The value (a tuple for several, None for none) of one driver call.

        :raises BackendError: it failed; the sentence names the call.
        :raises ContextLostError: as above, and every later call will fail too.
        """
        try:
            result = getattr(self.module, name)(*arguments)
        except RuntimeError as error:  # the library itself cannot be opened
            raise BackendError(
                f"no NVIDIA driver was found ({error}); install the driver, or use the backend 'onnxruntime'."
            ) from None
        if result[0] != 0:
            self.fail(name, result[0])
        if len(result) == 2:
            return result[1]
        return result[1:] if len(result) > 2 else None

    def fail(self, name: str, status: Any) -> None:
        """Raise what a status other than success means."""
        label = getattr(status, "name", str(status))
        if label in _FATAL:
            self.lost = True
            raise ContextLostError(f"the GPU failed in {name} ({label}); restart the process to use it again.")
        sentence = _SENTENCES.get(label)
        if sentence is None:
            raise BackendError(f"the CUDA call {name} failed with {label}; see the message of the driver.")
        raise BackendError(f"{sentence} ({name}: {label}).")

    def attribute(self, device: Any, name: str) -> int:
        """One attribute of a device, by the name that follows ``CU_DEVICE_ATTRIBUTE_``."""
        kind = getattr(self.module.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.call("cuDeviceGetAttribute", kind, device))

    def start(self) -> None:
        """Initialise the driver and check that it is new enough.

        :raises BackendError: no driver, no GPU, or a driver older than CUDA 12.0.
        """
        self.call("cuInit", 0)
        version = int(self.call("cuDriverGetVersion"))
        if version < OLDEST_DRIVER:
            raise BackendError(
                f"the NVIDIA driver serves CUDA {version // 1000}.{version % 1000 // 10}; want 12.0 or newer: "
                "update it."
            )
        if int(self.call("cuDeviceGetCount")) == 0:
            self.fail("cuDeviceGetCount", _NoDevice())


class _NoDevice:
    name = "CUDA_ERROR_NO_DEVICE"
