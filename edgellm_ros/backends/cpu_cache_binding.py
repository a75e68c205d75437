"""How a session reads and writes its caches: in place, or as a prefix that goes in and new rows that come out.

The graphs of the builder's lowerings differ in this and in nothing else that the seam can see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import MisuseError
from .base import CacheLayout, DataType, TensorSpec
from .cpu_kv_cache import CPUKVCache
from .engine_tensors import cache_layout, cache_tensors
from .host_tensor import aligned_zeros

_SHORTEST_PREFIX = 16


class CacheBinding(Protocol):
    """The caches of one session."""

    layout: CacheLayout
    time_major: bool
    capacity: int  # what the graph wants; 0: any
    follows_lengths: bool  # whether a run depends on the lengths in use, and not on shapes alone
    inputs: Mapping[str, TensorSpec]  # that the engine takes beside those of the graph

    def prefix(self, cache: CPUKVCache, past: np.ndarray) -> int:
        """Positions that a run must read; part of what a binding is made for."""
        ...

    def bind(self, binding: Any, cache: CPUKVCache, first_row: int, batch: int, chunk: int, prefix: int) -> Any:
        """Bind every cache tensor; what it returns is kept with the binding and handed to the two below."""
        ...

    def before(self, state: Any) -> None:
        """Called before each run."""
        ...

    def after(self, state: Any, cache: CPUKVCache, past: np.ndarray, lengths: np.ndarray) -> None:
        """Called after each run; lengths int32 [B] are the valid positions of each row's chunk."""
        ...


class InPlaceBinding:
    """``present_*`` is the memory of ``past_*`` [batch, heads, capacity, head size]."""

    time_major = False
    follows_lengths = False
    inputs: Mapping[str, TensorSpec] = {}

    def __init__(self, path: Path, past: list[TensorSpec], present: list[TensorSpec]) -> None:
        self._names = [(before.name, after.name) for before, after in zip(past, present, strict=True)]
        self.layout = cache_layout(path, past, time_first=False)
        self.capacity = max(0, past[0].shape[2]) if past else 0

    def prefix(self, cache: CPUKVCache, past: np.ndarray) -> int:
        """The same for all."""
        return 0

    def bind(self, binding: Any, cache: CPUKVCache, first_row: int, batch: int, chunk: int, prefix: int) -> None:
        """See ``CacheBinding``."""
        element = cache.dtype.numpy.type
        for (past, present), array in zip(self._names, cache.arrays, strict=True):
            rows = array[first_row : first_row + batch]
            address = int(rows.ctypes.data)
            binding.bind_input(past, "cpu", 0, element, list(rows.shape), address)
            binding.bind_output(present, "cpu", 0, element, list(rows.shape), address)

    def before(self, state: Any) -> None:
        """Nothing."""

    def after(self, state: Any, cache: CPUKVCache, past: np.ndarray, lengths: np.ndarray) -> None:
        """Nothing."""


class PrefixBinding:
    """``past_*`` [prefix, batch, heads, head size] is read, ``new_*`` [batch, chunk, heads, head size] comes out."""

    time_major = True
    follows_lengths = True
    capacity = 0
    inputs: Mapping[str, TensorSpec] = {"query_length": TensorSpec("query_length", DataType.INT32, (-1,))}

    def __init__(self, path: Path, past: list[TensorSpec], new: list[TensorSpec]) -> None:
        self._names = [(before.name, after.name) for before, after in zip(past, new, strict=True)]
        self.layout = cache_layout(path, past, time_first=True)

    def prefix(self, cache: CPUKVCache, past: np.ndarray) -> int:
        """A power of two that covers every row, so that few bindings serve all lengths."""
        longest = max(_SHORTEST_PREFIX, int(past.max(initial=0)))
        return min(cache.capacity, 1 << (longest - 1).bit_length())

    def bind(
        self, binding: Any, cache: CPUKVCache, first_row: int, batch: int, chunk: int, prefix: int
    ) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[np.ndarray], int]:
        """See ``CacheBinding``: (source and copy of prefixes that are not contiguous, new rows, first row)."""
        element = cache.dtype.numpy.type
        copies, fresh = [], []
        for (past, new), array in zip(self._names, cache.storage, strict=True):
            rows = array[:prefix, first_row : first_row + batch]
            if not rows.flags.c_contiguous:
                copies.append((rows, aligned_zeros(rows.shape, rows.dtype)))
                rows = copies[-1][1]
            output = aligned_zeros((batch, chunk, *rows.shape[2:]), rows.dtype)
            fresh.append(output)
            binding.bind_input(past, "cpu", 0, element, list(rows.shape), int(rows.ctypes.data))
            binding.bind_output(new, "cpu", 0, element, list(output.shape), int(output.ctypes.data))
        return copies, fresh, first_row

    def before(self, state: tuple[list[tuple[np.ndarray, np.ndarray]], list[np.ndarray], int]) -> None:
        """Bring the copies up to date."""
        for source, copy in state[0]:
            copy[...] = source

    def after(
        self,
        state: tuple[list[tuple[np.ndarray, np.ndarray]], list[np.ndarray], int],
        cache: CPUKVCache,
        past: np.ndarray,
        lengths: np.ndarray,
    ) -> None:
        """Put the new rows where they belong; padding goes nowhere."""
        _, fresh, first_row = state
        for array, new in zip(cache.storage, fresh, strict=True):
            for row, (start, count) in enumerate(zip(past.tolist(), lengths.tolist(), strict=True)):
                array[start : start + count, first_row + row] = new[row, :count]


def cache_binding(path: Path, specs: Iterable[TensorSpec]) -> CacheBinding:
    """The way of a graph whose cache tensors are ``specs``.

    :raises BackendError: they make no set of caches.
    """
    past, written, new_rows = cache_tensors(path, specs)
    return PrefixBinding(path, past, written) if new_rows else InPlaceBinding(path, past, written)


def check_cache(cache: object, binding: CacheBinding, path: Path) -> CPUKVCache:
    """:raises MisuseError: the cache belongs to another backend, model or kind of engine."""
    if not isinstance(cache, CPUKVCache) or cache.layout != binding.layout or cache.time_major != binding.time_major:
        raise MisuseError(f"a cache of another backend or model was given to {path}; want {binding.layout}.")
    if binding.capacity and cache.capacity != binding.capacity:
        raise MisuseError(f"a cache of {cache.capacity} positions was given to {path}; want {binding.capacity}.")
    return cache
