"""Optional packages of the GPU backend, imported when they are used and named in a sentence when they are absent."""

from __future__ import annotations

import importlib
from typing import Any

from ...errors import MissingPackageError

_HOW = {
    "cuda": "install it with 'pip install cuda-python' (12.6 or newer, or 13)",
    "tensorrt": "install TensorRT 10.3 or newer with its Python module ('apt install python3-libnvinfer' on JetPack)",
    "onnxruntime": "install it with 'pip install onnxruntime-gpu' (on JetPack: NVIDIA's own wheel)",
}


def _load(names: tuple[str, ...], package: str, key: str) -> Any:
    reason = ""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            reason = str(error)
    installed = "No module named" not in reason
    state = f"does not load ({reason})" if installed else "is not installed"
    raise MissingPackageError(f"the package {package} {state}; {_HOW[key]}.")


def load_driver() -> Any:
    """The driver API of cuda-python, under the name that its version gives it."""
    return _load(("cuda.bindings.driver", "cuda.cuda"), "cuda-python", "cuda")


def load_nvrtc() -> Any:
    """The run-time compiler of cuda-python."""
    return _load(("cuda.bindings.nvrtc", "cuda.nvrtc"), "cuda-python", "cuda")


def load_tensorrt() -> Any:
    """TensorRT's Python module."""
    return _load(("tensorrt",), "tensorrt", "tensorrt")


def load_onnxruntime() -> Any:
    """ONNX Runtime, checked to have the CUDA provider.

    :raises MissingPackageError: not installed, or a build for the CPU alone.
    """
    module = _load(("onnxruntime",), "onnxruntime-gpu", "onnxruntime")
    if "CUDAExecutionProvider" not in module.get_available_providers():
        raise MissingPackageError(
            f"the installed onnxruntime {module.__version__} has no CUDA provider; {_HOW['onnxruntime']}."
        )
    return module
