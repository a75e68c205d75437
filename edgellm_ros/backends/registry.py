"""Names of backends, and which of them runs an engine directory here."""

from __future__ import annotations

import importlib.util
import logging

from ..engine_format import EngineDirectory
from ..errors import BackendError, EdgeLLMError, MissingPackageError
from .base import Backend
from .cuda.plan_file import main_plan

_log = logging.getLogger(__name__)

NAMES = ("auto", "onnxruntime", "openvino", "onnxruntime_cuda", "tensorrt", "fake")
# lowering of an engine directory -> backends that run it, the fastest first
LOWERINGS = {
    "onnxruntime": ("onnxruntime_cuda", "onnxruntime"),
    "tensorrt": ("tensorrt", "onnxruntime"),
    "tensorrt_legacy": ("tensorrt", "onnxruntime_cuda", "onnxruntime"),
    "fake": ("fake",),
}
# A backend that is asked for by name, and is another one for the rest: what that one runs, this one does.
_INSTEAD_OF = {"openvino": "onnxruntime"}
_WITHOUT_DIRECTORY = {"onnxruntime": "onnxruntime", "tensorrt": "onnxruntime", "tensorrt_legacy": "onnxruntime"}


def open_backend(
    name: str,
    *,
    threads: int = 0,
    lowering: str | None = None,
    directory: EngineDirectory | None = None,
    passed_over: list[str] | None = None,
) -> Backend:
    """The backend ``name`` (``auto``: the first that can run ``directory`` here, else the one for ``lowering``).

    ``threads`` is for an engine's own work on the CPU; 0 takes the physical cores that this process may use.
    ``lowering`` is that of the engine directory to be run, and is checked against the backend; with ``directory`` it
    is taken from there. Why ``auto`` passed others over is logged, and appended to ``passed_over``.

    :raises BackendError: no such backend, a bad number of threads, a lowering that it cannot run, or no usable GPU.
    :raises MissingPackageError: its library is not installed.
    """
    if name not in NAMES:
        raise BackendError(f"backend {name!r} is unknown; want one of {', '.join(NAMES)}.")
    if not isinstance(threads, int) or isinstance(threads, bool) or not 0 <= threads <= 1024:
        raise BackendError(f"threads is {threads!r}; want a whole number from 0 (all physical cores) to 1024.")
    if directory is not None:
        lowering = directory.manifest.lowering
    if lowering is not None and lowering not in LOWERINGS:
        raise BackendError(
            f"this engine directory has the lowering {lowering!r}; want one of {', '.join(LOWERINGS)}: build it again."
        )
    if directory is not None and name != "auto":
        _check_precision(name, directory)
    if name != "auto":
        if lowering is not None and _INSTEAD_OF.get(name, name) not in LOWERINGS[lowering]:
            raise BackendError(
                f"backend {name!r} cannot run an engine directory with the lowering {lowering!r}; "
                f"want backend 'auto' or one of {', '.join(LOWERINGS[lowering])}."
            )
        return _open(name, threads)
    if directory is None:
        return _open(_WITHOUT_DIRECTORY.get(lowering or "onnxruntime", "fake"), threads)
    return _open_first(directory, threads, [] if passed_over is None else passed_over)


def _open_first(directory: EngineDirectory, threads: int, passed_over: list[str]) -> Backend:
    """The first backend for the directory that opens; the last one's error where none does."""
    *others, last = LOWERINGS[directory.manifest.lowering]
    for name in others:
        reason = obstacle(name, directory)
        if not reason:
            try:
                _check_precision(name, directory)
                return _open(name, threads, directory)
            except EdgeLLMError as error:
                reason = str(error)
        passed_over.append(f"{name}: {reason}")
        _log.info("backend %s is passed over: %s", name, reason)
    _check_precision(last, directory)
    return _open(last, threads, directory)


def obstacle(name: str, directory: EngineDirectory) -> str:
    """Why a directory cannot run on a backend whatever the machine; empty where nothing speaks against it."""
    manifest = directory.manifest
    plan = main_plan(directory.path)
    if name == "tensorrt" and not plan.is_file():
        shown = plan.relative_to(directory.path)
        return f"the engine directory has no {shown}; make one with 'edgellm build ... --plan' on this machine."
    if name == "onnxruntime_cuda" and manifest.lowering == "onnxruntime" and manifest.precision != "fp16":
        return f"attention of an {manifest.precision} graph is for the CPU; build it with '--precision fp16' for a GPU."
    return ""


def _check_precision(name: str, directory: EngineDirectory) -> None:
    """:raises BackendError: the backend has not the numbers that the directory computes with."""
    if directory.manifest.precision == "bf16" and name in ("onnxruntime", "onnxruntime_cuda", "openvino"):
        raise BackendError(
            f"{directory.path} computes in bf16, which TensorRT alone runs; compile its plan with 'edgellm build ... "
            "--plan' on a machine with a GPU, or build it with another precision."
        )


def _open(name: str, threads: int, directory: EngineDirectory | None = None) -> Backend:
    if name == "fake":
        from .fake import FakeBackend

        return FakeBackend()
    if name in ("tensorrt", "onnxruntime_cuda"):
        from .cuda.opening import open_cuda_backend

        return open_cuda_backend(name.removesuffix("_cuda"), None if directory is None else directory.path)
    if importlib.util.find_spec("onnxruntime") is None:
        raise MissingPackageError(
            "the package onnxruntime is not installed; install it with 'pip install onnxruntime'."
        )
    if name == "openvino":
        from .openvino_backend import OpenVINOBackend

        return OpenVINOBackend(threads)
    from .cpu import CPUBackend

    return CPUBackend(threads)


def graph_libraries(backend: Backend | None) -> dict[str, str]:
    """Which library runs which graph and why, by file name; empty for a backend that has but one."""
    found: dict[str, str] = getattr(backend, "libraries", dict)()
    return found
