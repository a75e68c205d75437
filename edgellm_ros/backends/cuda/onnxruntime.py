"""ONNX Runtime's CUDA provider behind the seam: on our stream, over our memory.

A whole step is recorded by our own graph where that works. Where it does not, the provider's own graph does the
engine's part of a decode step: a step is then a few launches on one stream.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...engine_format import GRAPH_FILE
from ...errors import BackendError
from ..onnxruntime_types import binding_type, first_line, tensor_spec
from .device import Device
from .engine_frame import Call, EngineFrame
from .graphs import Recorder
from .kernels import Kernels
from .packages import load_onnxruntime

PROVIDER = "CUDAExecutionProvider"
_ERRORS_ONLY = 3
_NO_GRAPH = -1
_NO_FLASH_DECODE = "ORT_DISABLE_FLASH_DECODE"


class OnnxRuntimeEngine(EngineFrame):
    """One session of the CUDA provider.

    ``own_graph`` lets the provider record decode calls itself; it then refuses graphs with parts on the CPU, which
    are loaded without.

    :raises BackendError: the graph does not load, or the provider does not start.
    :raises MissingPackageError: no onnxruntime with the CUDA provider.
    """

    def __init__(
        self,
        device: Device,
        kernels: Kernels,
        recorder: Recorder,
        path: Path,
        *,
        own_graph: bool = False,
        module: Any | None = None,
    ) -> None:
        if path.is_dir():
            path = path / GRAPH_FILE
        self._library = load_onnxruntime() if module is None else module
        self._session, self.own_graph = self._open(device, path, own_graph)
        self._graphs = 0
        super().__init__(
            device,
            kernels,
            recorder,
            path,
            [tensor_spec(path, node) for node in self._session.get_inputs()],
            [tensor_spec(path, node) for node in self._session.get_outputs()],
        )

    @property
    def version(self) -> str:
        """Of ONNX Runtime."""
        return str(self._library.__version__)

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the builder noted in the graph."""
        return dict(self._session.get_modelmeta().custom_metadata_map)

    def _open(self, device: Device, path: Path, own_graph: bool) -> tuple[Any, bool]:
        if not path.is_file():
            raise BackendError(f"{path} is missing; build the engine directory again.")
        device.enter()
        failure: Exception | None = None
        for recorded in (True, False) if own_graph else (False,):
            options = self._library.SessionOptions()
            options.log_severity_level = _ERRORS_ONLY
            provider = {
                "device_id": str(device.ordinal),
                "user_compute_stream": str(device.stream_address),
                "enable_cuda_graph": str(int(recorded)),
                "use_tf32": "0",
                "arena_extend_strategy": "kSameAsRequested",
            }
            try:
                with _without_flash_decode():
                    session = self._library.InferenceSession(str(path), options, providers=[(PROVIDER, provider)])
            except Exception as error:  # ONNX Runtime's exceptions share no base but this
                failure = error
                continue
            if PROVIDER not in session.get_providers():
                raise BackendError(
                    f"the CUDA provider of onnxruntime {self._library.__version__} does not start; install the CUDA "
                    "and cuDNN libraries that this version was built for."
                )
            return session, recorded
        raise BackendError(
            f"{path} does not load in the CUDA provider of onnxruntime {self._library.__version__} "
            f"({first_line(failure).rstrip('.')}); build the engine directory again, or install another version."
        )

    def _prepare(self, call: Call) -> Any:
        binding = self._session.io_binding()
        ordinal = self._device.ordinal
        for placed in call.inputs:
            binding.bind_input(
                placed.name, "cuda", ordinal, self._element(placed.name), list(placed.shape), placed.address
            )
        for placed in call.outputs:
            binding.bind_output(
                placed.name, "cuda", ordinal, self._element(placed.name), list(placed.shape), placed.address
            )
        options = self._library.RunOptions()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        number = _NO_GRAPH
        if self.own_graph and "inputs_embeds" in self._inputs and _chunk(call) == 1:
            self._graphs += 1
            number = self._graphs
        if self.own_graph:
            options.add_run_config_entry("gpu_graph_id", str(number))
        return binding, options

    def _element(self, name: str) -> Any:
        spec = self._inputs.get(name) or self._outputs.get(name)
        dtype = self._caches.layout.dtype if spec is None else spec.dtype
        return binding_type(dtype)

    def _execute(self, call: Call) -> None:
        binding, options = call.prepared
        self._device.enter()
        try:
            self._session.run_with_iobinding(binding, options)
        except Exception as error:  # ONNX Runtime's exceptions share no base but this
            message = first_line(error)
            if "out of memory" in message.lower() or "Failed to allocate memory" in message:
                message = f"out of memory: {message}"
            raise BackendError(f"ONNX Runtime failed while running {self._path}: {message}") from error

    def close(self) -> None:
        """Let go of everything; a second call does nothing."""
        super().close()
        self._session = None


@contextlib.contextmanager
def _without_flash_decode() -> Iterator[None]:
    """Kernels made meanwhile keep off the one attention path that rotates by length and ignores ``position_ids``."""
    before = os.environ.get(_NO_FLASH_DECODE)
    os.environ[_NO_FLASH_DECODE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_NO_FLASH_DECODE, None)
        else:
            os.environ[_NO_FLASH_DECODE] = before


def _chunk(call: Call) -> int:
    return next((placed.shape[1] for placed in call.inputs if placed.name == "inputs_embeds"), 0)
