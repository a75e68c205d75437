"""What engines on a GPU share: names, bound tensors, checked shapes, caches, and calls that are made once and kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import BackendError
from ..base import CacheLayout, DataType, EngineCapabilities, KVCache, Tensor, TensorSpec
from ..engine_tensors import NamedTensors, cache_tensor
from .cache_binding import CacheBinding, CacheCall, Placed
from .device import Device
from .graphs import Recorder
from .kernels import Kernels
from .tensor import CUDATensor, cuda_tensor

_MOST_CALLS = 64  # kinds of call that are kept; a decode step has one for each batch size and length bucket


class Call:
    """One kind of call: every tensor's place, the caches' part, and what the library prepared for it."""

    __slots__ = ("cache", "inputs", "outputs", "pins", "prepared")

    def __init__(self, inputs: tuple[Placed, ...], outputs: tuple[Placed, ...], cache: CacheCall) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.cache = cache
        self.prepared: Any = None
        self.pins = 0  # recorded steps that refer to its memory


class EngineFrame(ABC):
    """An ``Engine`` but for the library that runs it; subclasses say how a call is prepared and executed."""

    def __init__(
        self,
        device: Device,
        kernels: Kernels,
        recorder: Recorder,
        path: Path,
        inputs: list[TensorSpec],
        outputs: list[TensorSpec],
    ) -> None:
        self._device, self._kernels, self._recorder, self._path = device, kernels, recorder, path
        self._caches = CacheBinding(path, (*inputs, *outputs))
        self._inputs = {spec.name: spec for spec in inputs if cache_tensor(spec.name) is None}
        self._outputs = {spec.name: spec for spec in outputs if cache_tensor(spec.name) is None}
        self._graph_inputs = set(self._inputs)
        if self._caches.time_first and "query_length" not in self._inputs:
            # The graph has no use for it, but the scatter of new rows has.
            self._inputs["query_length"] = TensorSpec("query_length", DataType.INT32, (-1,))
        self._tensors = NamedTensors(path, self._inputs, self._outputs)
        self._bound: dict[str, CUDATensor] = {}
        self._calls: dict[object, Call] = {}
        self._closed = False
        self.capabilities = EngineCapabilities(ragged_chunks=False, interval_mask=False)

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        """Inputs by name, caches left out."""
        return self._inputs

    @property
    def outputs(self) -> Mapping[str, TensorSpec]:
        """Outputs by name, caches left out."""
        return self._outputs

    @property
    def cache_layout(self) -> CacheLayout:
        """What its caches must hold, read from the engine."""
        return self._caches.layout

    @property
    def caches(self) -> CacheBinding:
        """Its cache tensors."""
        return self._caches

    def bind(self, name: str, tensor: Tensor) -> None:
        """:raises ValueError: unknown name or another element type."""
        spec = self._tensors.find(name, tensor.dtype)
        self._bound[name] = cuda_tensor(tensor, self._device)
        self._forget()
        if name == "inputs_embeds":
            width = spec.shape[-1] * spec.dtype.numpy.itemsize
            self._caches.reserve(self._device, self._bound[name].nbytes // max(1, width))

    def bind_cache(self, cache: KVCache) -> None:
        """Use these caches, in place.

        :raises MisuseError: they belong to another backend or model.
        """
        self._caches.bind(cache)
        self._forget()

    def unbind(self) -> None:
        """Let go of every tensor and cache."""
        self._bound.clear()
        self._caches.release()
        self._forget()

    def run(self, shapes: Mapping[str, tuple[int, ...]], first_row: int = 0, cache_length: int = 0) -> None:
        """Enqueue one run.

        :raises BackendError: a tensor is not bound or too small, a shape lies outside what the engine was built for,
            or the library refused or failed.
        """
        if self._closed:
            raise BackendError(f"the engine {self._path} is closed; open a new one.")
        batch = next(iter(shapes.values()))[0] if shapes else 1
        prefix = self._caches.prefix_length(batch, cache_length) if self._caches.time_first else 0
        key = (first_row, prefix, *shapes.items())
        call = self._calls.get(key)
        if call is None:
            call = self._make_call(shapes, first_row, prefix)
            call.prepared = self._prepare(call)
            self._evict()
            self._calls[key] = call
        self._recorder.pin(call)
        if call.cache.before is not None:
            call.cache.before()
        self._execute(call)
        if call.cache.after is not None:
            call.cache.after()

    def _evict(self) -> None:
        if len(self._calls) >= _MOST_CALLS:
            key = next((key for key, call in self._calls.items() if not call.pins), None)
            if key is not None:
                self._release(self._calls.pop(key))

    def _make_call(self, shapes: Mapping[str, tuple[int, ...]], first_row: int, prefix: int) -> Call:
        inputs, outputs = [], []
        for name, given in shapes.items():
            shape = tuple(given)
            placed = Placed(name, self._tensors.place(name, shape, self._bound)[1], shape)
            if name in self._graph_inputs:
                inputs.append(placed)
            elif name in self._outputs:
                outputs.append(placed)
        missing = [name for name in (*self._inputs, *self._outputs) if name not in shapes]
        if missing:
            raise BackendError(f"{missing[0]!r} has no shape; give the shape of every tensor of {self._path}.")
        batch, chunk = shapes["inputs_embeds"][:2] if "inputs_embeds" in shapes else (inputs[0].shape[0], 1)
        lengths = (self._bound.get("past_length"), self._bound.get("query_length"))
        cache = self._caches.call(self._device, self._kernels, batch, chunk, first_row, prefix, lengths)
        return Call((*inputs, *cache.inputs), (*outputs, *cache.outputs), cache)

    def _forget(self) -> None:
        for call in self._calls.values():
            self._release(call)
        self._calls.clear()

    def length_bucket(self, positions: int) -> int:
        """The bucket of cache lengths that holds ``positions``; 0 where the engine's cost does not depend on them."""
        return self._caches.prefix_length(1, positions) if self._caches.time_first else 0

    @abstractmethod
    def _prepare(self, call: Call) -> Any:
        """What the library needs for a kind of call."""

    @abstractmethod
    def _execute(self, call: Call) -> None:
        """Enqueue it."""

    def _release(self, call: Call) -> None:
        """Free what was prepared."""
        call.prepared = None

    def close(self) -> None:
        """Let go of everything; a second call does nothing."""
        self._closed = True
        self.unbind()
