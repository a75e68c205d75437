"""An ONNX Runtime session behind the seam: named tensors bound by address, caches written in place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from ..engine_format import GRAPH_FILE
from ..errors import BackendError, MisuseError
from .base import CacheLayout, EngineCapabilities, KVCache, Tensor, TensorSpec
from .cpu_cache_binding import cache_binding, check_cache
from .cpu_kv_cache import CPUKVCache
from .engine_tensors import NamedTensors, cache_tensor
from .host_tensor import HostTensor, host_tensor
from .onnxruntime_types import binding_type, first_line, tensor_spec

_FATAL = 4  # log level: errors come as exceptions, and need not stand on a robot's console as well
_MOST_BINDINGS = 64  # shapes whose bindings are kept; a decode step uses one for each batch size


class CPUEngine:
    """One session. Bindings are made once for each set of shapes and first row: a step costs little beyond the run."""

    def __init__(self, path: Path, threads: int, weights: Mapping[str, np.ndarray] | None = None) -> None:
        if path.is_dir():
            path = path / GRAPH_FILE
        self._path = path
        self._weights = dict(weights or {})  # the session reads them where they are
        self._session: Any = _open_session(path, threads, self._weights)
        self._run_options = onnxruntime.RunOptions()
        self._run_options.log_severity_level = _FATAL
        # It is looked up in every run, and to find that it is missing takes longer than all else around the run.
        self._run_options.add_run_config_entry("gpu_graph_id", "-1")
        self._bound: dict[str, HostTensor] = {}
        self._cache: CPUKVCache | None = None
        # With each binding its state and the tensors and cache whose addresses it holds: they must outlive a run.
        self._bindings: dict[object, tuple[Any, Any, object]] = {}
        self._inputs: dict[str, TensorSpec] = {}
        self._outputs: dict[str, TensorSpec] = {}
        inputs, outputs, self._metadata = _described(path, self._session)
        caches = []
        for nodes, plain in ((inputs, self._inputs), (outputs, self._outputs)):
            for spec in nodes:
                if cache_tensor(spec.name) is None:
                    plain[spec.name] = spec
                else:
                    caches.append(spec)
        self._graph_inputs = set(self._inputs)
        self._caches = cache_binding(path, caches)
        self._inputs.update(self._caches.inputs)
        self._tensors = NamedTensors(path, self._inputs, self._outputs)
        self.capabilities = EngineCapabilities(ragged_chunks=False, interval_mask=False, capture=True)

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        """Inputs by name, caches left out."""
        return self._inputs

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """Outputs by name, caches left out."""
        return self._outputs

    @property
    def path(self) -> Path:
        """The file of the graph."""
        return self._path

    @property
    def cache_layout(self) -> CacheLayout:
        """What its caches must hold, read from the graph."""
        return self._caches.layout

    @property
    def time_major_cache(self) -> bool:
        """Whether its caches lie with time first in memory."""
        return self._caches.time_major

    @property
    def wanted_capacity(self) -> int:
        """Positions that its caches must have; 0 where any number will do."""
        return self._caches.capacity

    def new_cache(self, rows: int, capacity: int) -> CPUKVCache:
        """Caches for this engine alone, of at least ``capacity`` positions."""
        return CPUKVCache(self.cache_layout, rows, self._caches.capacity or capacity, time_major=self.time_major_cache)

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the builder noted in the graph."""
        return self._metadata

    def bind(self, name: str, tensor: Tensor) -> None:
        """:raises ValueError: unknown name or another element type."""
        self._tensors.find(name, tensor.dtype)
        self._bound[name] = host_tensor(tensor)
        self._bindings.clear()

    def bind_cache(self, cache: KVCache) -> None:
        """Use these caches, in place.

        :raises MisuseError: they belong to another backend or model.
        """
        self._cache = check_cache(cache, self._caches, self._path)
        self._bindings.clear()

    def unbind(self) -> None:
        """Let go of every tensor and cache."""
        self._bound.clear()
        self._bindings.clear()
        self._cache = None

    def length_bucket(self, positions: int) -> int:
        """0: its cost follows the lengths in use by itself."""
        return 0

    def run(self, shapes: Mapping[str, tuple[int, ...]], first_row: int = 0, cache_length: int = 0) -> None:
        """Run once; returns when it is done.

        :raises BackendError: a tensor is not bound or too small, or ONNX Runtime refused or failed.
        """
        session = self._session
        if session is None:
            raise BackendError(f"the engine {self._path} is closed; open a new one.")
        past, prefix = self._lengths_in_use(shapes, "past_length") if self._caches.follows_lengths else (None, 0)
        key = (first_row, prefix, *shapes.items())
        made = self._bindings.get(key)
        if made is None:
            made = self._make_binding(session, shapes, first_row, prefix)
            if len(self._bindings) >= _MOST_BINDINGS:
                self._bindings.pop(next(iter(self._bindings)))
            self._bindings[key] = made
        binding, state, _held = made
        if past is not None:
            self._caches.before(state)
        try:
            session.run_with_iobinding(binding, self._run_options)
        except Exception as error:  # ONNX Runtime's exceptions share no base but this
            raise BackendError(f"ONNX Runtime failed while running {self._path}: {first_line(error)}") from error
        if past is not None and self._cache is not None:
            self._caches.after(state, self._cache, past, self._lengths_in_use(shapes, "query_length")[0])

    def _lengths_in_use(self, shapes: Mapping[str, tuple[int, ...]], name: str) -> tuple[np.ndarray, int]:
        """A bound vector of lengths, and the prefix of the caches that a run must read if they are of the past.

        :raises BackendError: it is not bound, or is beyond the cache.
        """
        if name not in self._bound or name not in shapes or self._cache is None:
            raise BackendError(f"{name!r} is not bound or has no shape; bind every input and give its shape.")
        lengths = self._bound[name].prefix(tuple(shapes[name])).array
        if lengths.min(initial=0) < 0 or lengths.max(initial=0) > self._cache.capacity:
            raise BackendError(f"{name!r} is {lengths.tolist()}; the cache has {self._cache.capacity} positions.")
        return lengths, self._caches.prefix(self._cache, lengths)

    def _make_binding(
        self, session: Any, shapes: Mapping[str, tuple[int, ...]], first_row: int, prefix: int
    ) -> tuple[Any, Any, object]:
        missing = [name for name in self._inputs if name not in self._bound or name not in shapes]
        if missing:
            raise BackendError(f"{missing[0]!r} is not bound or has no shape; bind every input and give its shape.")
        binding = session.io_binding()
        for name, shape in shapes.items():
            spec, address = self._tensors.place(name, tuple(shape), self._bound)
            if name in self._inputs and name not in self._graph_inputs:
                continue  # read by the cache binding, not by the graph
            bind = binding.bind_input if name in self._inputs else binding.bind_output
            bind(name, "cpu", 0, binding_type(spec.dtype), list(shape), address)
        held = (list(self._bound.values()), self._cache)
        if not self._caches.layout.layers:
            return binding, None, held
        cache = self._cache
        if cache is None:
            raise MisuseError(f"{self._path} has no cache; call bind_cache first.")
        batch, chunk = (*shapes.get("inputs_embeds", next(iter(shapes.values()))), 1)[:2]
        if first_row < 0 or first_row + batch > cache.rows:
            raise BackendError(f"rows {first_row}..{first_row + batch} were run; the cache has {cache.rows}.")
        return binding, self._caches.bind(binding, cache, first_row, batch, chunk, prefix), held

    def close(self) -> None:
        """End a run under way in another thread and let go of everything; a second call does nothing."""
        self._run_options.terminate = True
        self._session = None
        self.unbind()


def _open_session(path: Path, threads: int, weights: Mapping[str, np.ndarray]) -> Any:
    if not path.is_file():
        raise BackendError(f"{path} is missing; build the engine directory again.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _FATAL
    if weights:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        options.add_external_initializers(list(weights), values)
    try:
        # Its fallback would try the same provider again, after printing on the console.
        return onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], enable_fallback=False
        )
    except Exception as error:  # ONNX Runtime's exceptions share no base but this
        raise BackendError(
            f"{path} does not load in onnxruntime {onnxruntime.__version__} ({first_line(error).rstrip('.')}); build "
            "the engine directory again, or install another version of onnxruntime."
        ) from error


def _described(path: Path, session: Any) -> tuple[list[TensorSpec], list[TensorSpec], dict[str, str]]:
    """Inputs, outputs and metadata of a graph; in a damaged one these may be no text."""
    try:
        inputs, outputs = (list(nodes) for nodes in (session.get_inputs(), session.get_outputs()))
        specs = [[tensor_spec(path, node) for node in nodes] for nodes in (inputs, outputs)]
        return specs[0], specs[1], dict(session.get_modelmeta().custom_metadata_map)
    except UnicodeDecodeError:
        raise BackendError(f"{path} has names that are no text; build the engine directory again.") from None
