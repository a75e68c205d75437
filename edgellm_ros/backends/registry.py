"""Names of backends."""

from __future__ import annotations

import importlib.util

from ..errors import BackendError, MissingPackageError
from .base import Backend

NAMES = ("auto", "onnxruntime", "fake")
# lowering of an engine directory -> backend that runs it
LOWERINGS = {
    "onnxruntime": "onnxruntime",
    "tensorrt": "onnxruntime",
    "tensorrt_legacy": "onnxruntime",
    "fake": "fake",
}


def open_backend(name: str, *, threads: int = 0, lowering: str | None = None) -> Backend:
    """The backend ``name`` (``auto``: whichever runs ``lowering``, ONNX Runtime where none is given).

    ``threads`` is for the engine's own work; 0 takes the physical cores that this process may use. ``lowering`` is
    that of the engine directory to be run, and is checked against the backend.

    :raises BackendError: no such backend, a bad number of threads, or a lowering that it cannot run.
    :raises MissingPackageError: its library is not installed.
    """
    if name not in NAMES:
        raise BackendError(f"backend {name!r} is unknown; want one of {', '.join(NAMES)}.")
    if not isinstance(threads, int) or isinstance(threads, bool) or not 0 <= threads <= 1024:
        raise BackendError(f"threads is {threads!r}; want a whole number from 0 (all physical cores) to 1024.")
    if lowering is not None and lowering not in LOWERINGS:
        raise BackendError(
            f"this engine directory has the lowering {lowering!r}; want one of {', '.join(LOWERINGS)}: build it again."
        )
    chosen = LOWERINGS[lowering or "onnxruntime"] if name == "auto" else name
    if lowering is not None and LOWERINGS[lowering] != chosen:
        raise BackendError(
            f"backend {chosen!r} cannot run an engine directory with the lowering {lowering!r}; "
            f"want backend 'auto' or {LOWERINGS[lowering]!r}."
        )
    if chosen == "fake":
        from .fake import FakeBackend

        return FakeBackend()
    if importlib.util.find_spec("onnxruntime") is None:
        raise MissingPackageError(
            "the package onnxruntime is not installed; install it with 'pip install onnxruntime'."
        )
    from .cpu import CPUBackend

    return CPUBackend(threads)
