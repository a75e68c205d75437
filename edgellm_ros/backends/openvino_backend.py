"""The CPU backend with OpenVINO beside ONNX Runtime, for graphs without caches: image towers and policies.

Language models keep their caches in ONNX Runtime, as on the plain CPU backend.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .base import CacheLayout, Engine
from .chosen_engine import ChosenEngine
from .cpu import CPUBackend
from .cpu_engine import CPUEngine
from .openvino_graph import check_openvino


class OpenVINOBackend(CPUBackend):
    """:raises MissingPackageError: openvino is not installed."""

    def __init__(self, threads: int = 0) -> None:
        check_openvino()
        super().__init__(threads)
        self._chosen: weakref.WeakSet[ChosenEngine] = weakref.WeakSet()

    @property
    def name(self) -> str:
        """``openvino``."""
        return "openvino"

    def open_engine(
        self,
        path: Path,
        *,
        cache_layout: CacheLayout | None = None,
        weights: Mapping[str, np.ndarray] | None = None,
    ) -> Engine:
        """See ``CPUBackend``; a graph without caches and with its weights beside it is tried in OpenVINO too."""
        engine = super().open_engine(path, cache_layout=cache_layout, weights=weights)
        if not isinstance(engine, CPUEngine) or engine.cache_layout.layers or weights:
            return engine
        chosen = ChosenEngine(engine.path, engine, self.threads)
        self._engines.add(chosen)
        self._chosen.add(chosen)
        return chosen

    def libraries(self) -> dict[str, str]:
        """Which library runs each of the graphs that have a choice, and why, by file name. Any thread may ask."""
        return {engine.path.name: engine.library for engine in list(self._chosen)}
