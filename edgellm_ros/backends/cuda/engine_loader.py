"""An engine on a GPU, loaded in the library that runs it and probed before anyone relies on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import BackendError
from ..base import CacheLayout, DataType
from ..engine_tensors import is_language_model
from .device import Device
from .engine_frame import EngineFrame
from .graphs import Recorder
from .kernels import Kernels
from .kv_cache import CUDAKVCache
from .memory_check import check_memory
from .onnxruntime import OnnxRuntimeEngine
from .probe import probe
from .tensor import CUDATensor
from .tensorrt import TensorRTEngine


class EngineLoader:
    """Loads with ``library``, ``tensorrt`` or ``onnxruntime``; ``module`` stands for the library's own."""

    def __init__(
        self, device: Device, kernels: Kernels, recorder: Recorder, library: str, module: Any | None = None
    ) -> None:
        self._device, self._kernels, self._recorder = device, kernels, recorder
        self._library, self._module = library, module

    def open(self, path: Path, cache_layout: CacheLayout | None) -> EngineFrame:
        """The plan or graph at ``path`` (or that of an engine directory), probed.

        :raises BackendError: it does not load or does not fit this GPU, there is not enough memory, its caches are
            not ``cache_layout``, or its probe shows numbers that this runtime cannot rely on.
        """
        check_memory(self._device, path, self._library)
        engine = self._load(path, own_graph=False)
        try:
            self._start(engine, path, cache_layout)
            # no other engine's runs are the provider's to record
            steps = is_language_model(engine.inputs, engine.outputs)
            if self._library == "onnxruntime" and steps and not engine.capabilities.capture:
                # Its calls cannot stand in a graph of ours; the provider may still record them itself.
                engine.close()
                engine = self._load(path, own_graph=True)
                self._start(engine, path, cache_layout)
        except BaseException:
            engine.close()
            raise
        return engine

    def _load(self, path: Path, *, own_graph: bool) -> EngineFrame:
        if self._library == "tensorrt":
            return TensorRTEngine(self._device, self._kernels, self._recorder, path, module=self._module)
        return OnnxRuntimeEngine(
            self._device, self._kernels, self._recorder, path, own_graph=own_graph, module=self._module
        )

    def _start(self, engine: EngineFrame, path: Path, cache_layout: CacheLayout | None) -> None:
        if cache_layout is not None and cache_layout != engine.cache_layout:
            raise BackendError(
                f"{path} has caches {engine.cache_layout}; config.json wants {cache_layout}: "
                "build the engine directory again."
            )
        rows = chunk = 0
        if isinstance(engine, TensorRTEngine):
            library = f"TensorRT {engine.version}"
            rows, chunk = (*engine.largest("inputs_embeds"), 0, 0)[:2]
        else:
            assert isinstance(engine, OnnxRuntimeEngine)
            library = f"onnxruntime {engine.version} with CUDA"
        binding = engine.caches

        def make_cache(rows: int, capacity: int) -> CUDAKVCache:
            return CUDAKVCache(
                self._device, self._kernels, binding.layout, rows, binding.fixed_capacity or capacity, binding.order
            )

        engine.capabilities = probe(
            engine, self._recorder, self._place, make_cache, library, min(rows, 2), min(chunk, 5)
        )

    def _place(self, values: np.ndarray, dtype: DataType) -> CUDATensor:
        tensor = CUDATensor.zeros(self._device, values.shape, dtype)
        tensor.write(values)
        return tensor
