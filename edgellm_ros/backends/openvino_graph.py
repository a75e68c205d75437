"""A graph without caches compiled by OpenVINO, over the same host memory as ONNX Runtime's engines.

Where the CPU has AMX, products run in bfloat16 (weights and results stay float32 outside of them): several times as
fast at many rows, where a decode step of one row would gain nothing.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import BackendError, MissingPackageError
from .engine_tensors import NamedTensors
from .host_tensor import HostTensor

_MOST_SHAPES = 64  # of runs whose tensors are kept


def check_openvino() -> None:
    """:raises MissingPackageError: it is not installed, or cannot be imported."""
    if importlib.util.find_spec("openvino") is None:
        raise MissingPackageError("the package openvino is not installed; install it with 'pip install openvino'.")
    try:
        import openvino  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"the package openvino cannot be imported ({error}); install it again with 'pip install openvino'."
        ) from None


def inference_precision(cpu_info: Path = Path("/proc/cpuinfo")) -> str:
    """``bf16`` on a CPU with AMX, else ``f32``."""
    try:
        flags = next((line for line in cpu_info.read_text("utf-8").splitlines() if line.startswith("flags")), "")
    except OSError:
        flags = ""
    return "bf16" if "amx_bf16" in flags.split() else "f32"


@functools.cache
def _core() -> Any:
    import openvino

    return openvino.Core()


def version() -> str:
    """Of the installed package, without its build."""
    import openvino

    return str(openvino.__version__).split("-", maxsplit=1)[0]


class OpenVINOGraph:
    """One compiled graph and one request; ``tensors`` are those that it must have.

    :raises BackendError: OpenVINO does not take the graph, or has other tensors than these.
    """

    def __init__(self, path: Path, threads: int, tensors: NamedTensors) -> None:
        self._path, self._tensors = path, tensors
        self.precision = inference_precision()
        settings = {
            "INFERENCE_PRECISION_HINT": self.precision,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": threads,
        }
        try:
            compiled = _core().compile_model(_core().read_model(str(path)), "CPU", settings)
            self._request: Any = compiled.create_infer_request()
            found = {name for port in (*compiled.inputs, *compiled.outputs) for name in port.names}
        except Exception as error:  # its exceptions share no base but this
            raise BackendError(f"OpenVINO {version()} does not take {path}: {_reason(error)}.") from None
        missing = [name for name in (*tensors.inputs, *tensors.outputs) if name not in found]
        if missing:
            raise BackendError(f"OpenVINO {version()} has no tensor {missing[0]!r} of {path}.")
        self._bound: dict[str, HostTensor] = {}
        self._made: dict[object, dict[str, Any]] = {}
        self._current: object = None

    def bind(self, name: str, tensor: HostTensor) -> None:
        """As ``Engine.bind``."""
        self._bound[name] = tensor
        self._made.clear()
        self._current = None

    def run(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """As ``Engine.run``; returns when it is done.

        :raises BackendError: a tensor is not bound or too small, or OpenVINO refused or failed.
        """
        key = tuple(shapes.items())
        if key != self._current:
            self._current = None
            if key not in self._made:
                if len(self._made) >= _MOST_SHAPES:
                    self._made.pop(next(iter(self._made)))
                self._made[key] = self._tensors_of(shapes)
        try:
            if key != self._current:
                for name, tensor in self._made[key].items():
                    self._request.set_tensor(name, tensor)
                self._current = key
            self._request.start_async()
            self._request.wait()
        except Exception as error:  # its exceptions share no base but this
            self._current = None
            raise BackendError(f"OpenVINO failed while running {self._path}: {_reason(error)}.") from None

    def _tensors_of(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        import openvino

        made = {}
        for name, shape in shapes.items():
            self._tensors.place(name, tuple(shape), self._bound)
            made[name] = openvino.Tensor(self._bound[name].prefix(tuple(shape)).array, shared_memory=True)
        return made

    def close(self) -> None:
        """Let go of everything; a second call does nothing."""
        self._request = None
        self._bound.clear()
        self._made.clear()
        self._current = None


def _reason(error: Exception) -> str:
    """The last line of what OpenVINO says, which names the cause; the lines before it name its source files."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].removeprefix("-- ").rstrip(".")[:300] if lines else type(error).__name__
