"""The CPU backend: ONNX Runtime sessions over host memory."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from ..errors import BackendError
from .base import CacheLayout, Engine
from .cpu_engine import CPUEngine
from .cpu_kv_cache import CPUKVCache
from .cpu_probe import probe
from .cpu_threads import physical_cores
from .host_backend import HostBackend


class CPUBackend(HostBackend):
    """``threads`` for the engines' own work; 0 takes the physical cores that this process may use."""

    def __init__(self, threads: int = 0) -> None:
        super().__init__()
        self.threads = threads or physical_cores()
        self._newest: dict[CacheLayout, weakref.ref[CPUEngine]] = {}

    @property
    def name(self) -> str:
        """``onnxruntime``."""
        return "onnxruntime"

    def open_engine(
        self,
        path: Path,
        *,
        cache_layout: CacheLayout | None = None,
        weights: Mapping[str, np.ndarray] | None = None,
    ) -> Engine:
        """Load ``llm.onnx`` (or another graph) and probe it.

        :raises BackendError: it does not load, its caches are not ``cache_layout``, or its probe shows numbers that
            this runtime cannot rely on.
        """
        self._check_open()
        with ExitStack() as undo:
            engine = undo.enter_context(closing(CPUEngine(Path(path), self.threads, weights)))
            if cache_layout is not None and cache_layout != engine.cache_layout:
                raise BackendError(
                    f"{path} has caches {engine.cache_layout}; config.json wants {cache_layout}: "
                    "build the engine directory again."
                )
            engine.capabilities = probe(engine)
            self._engines.add(engine)
            self._newest[engine.cache_layout] = weakref.ref(engine)
            undo.pop_all()
        return engine

    def allocate_kv_cache(self, layout: CacheLayout, rows: int, capacity: int) -> CPUKVCache:
        """Zeroed caches, for the engine of this layout that was opened last.

        :raises BackendError: an element type that this backend has not, or not enough memory.
        """
        self._check_open()
        newest = self._newest.get(layout, lambda: None)()  # the engine says how its caches lie in memory
        time_major = newest is not None and newest.time_major_cache
        cache = CPUKVCache(layout, rows, capacity, time_major=time_major)
        self._count("caches", cache, cache.nbytes)
        return cache
