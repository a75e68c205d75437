"""How an engine meets its caches, for both layouts, found from the names and shapes of the engine's own tensors.

Heads first: ``past_key_i`` [B, heads, capacity, size] is read and ``present_key_i`` written at the same address.
Time first: ``past_key_i`` [prefix, B, heads, size] is read, ``new_key_i`` [B, S, heads, size] comes back and is
scattered. One row's prefix is contiguous, so it is fed as it lies, cut to a length bucket; several rows are packed
side by side first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from ...errors import BackendError, MisuseError
from ..base import KVCache, TensorSpec
from ..engine_tensors import cache_layout, cache_tensors
from .device import Device
from .kernels import Kernels
from .kv_cache import SEGMENT, CacheOrder, CUDAKVCache
from .tensor import CUDAMemory, CUDATensor

SMALLEST_BUCKET = 128
_SCATTER = np.dtype([("source", "u8"), ("destination", "u8"), ("bytes", "u8")])
_THREADS = 128
_PACK_THREADS = 32
_MOST_PIECES = 256  # blocks that share the positions of one row of one array


def length_buckets(capacity: int) -> tuple[int, ...]:
    """128, 256, 512, … and the capacity itself."""
    buckets = []
    size = SMALLEST_BUCKET
    while size < capacity:
        buckets.append(size)
        size *= 2
    return (*buckets, capacity)


@dataclass(frozen=True)
class Placed:
    """Where a tensor lies for one call, and its shape."""

    name: str
    address: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class CacheCall:
    """The caches' part of one call; ``before`` and ``after`` enqueue what must happen around the engine."""

    inputs: tuple[Placed, ...] = ()
    outputs: tuple[Placed, ...] = ()
    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None
    keeps: tuple[CUDAMemory, ...] = field(default=())


class CacheBinding:
    """The cache tensors of one engine.

    :raises BackendError: they are incomplete, or of shapes that fit neither layout.
    """

    def __init__(self, path: object, specs: Iterable[TensorSpec]) -> None:
        self._path = path
        self._past, self._results, new_rows = cache_tensors(path, specs)
        self.order = CacheOrder.TIME_FIRST if new_rows else CacheOrder.HEADS_FIRST
        self.layout = cache_layout(path, self._past, time_first=new_rows)
        self.cache: CUDAKVCache | None = None
        self._new: list[CUDAMemory] = []
        self._new_positions = 0
        self._scatter: CUDAMemory | None = None

    @property
    def time_first(self) -> bool:
        """Whether new rows are scattered here."""
        return bool(self._past) and self.order is CacheOrder.TIME_FIRST

    @property
    def fixed_capacity(self) -> int:
        """Positions that the engine wants its caches to have; 0: any number."""
        if not self._past or self.time_first:
            return 0
        return max(0, self._past[0].shape[2])

    def bind(self, cache: KVCache) -> None:
        """Use these caches from now on.

        :raises MisuseError: they belong to another backend or model.
        """
        if not isinstance(cache, CUDAKVCache) or cache.layout != self.layout or cache.order is not self.order:
            raise MisuseError(f"a cache of another backend or model was given to {self._path}; want {self.layout}.")
        if self.fixed_capacity not in (0, cache.capacity):
            raise MisuseError(
                f"a cache of {cache.capacity} positions was given to {self._path}; want {self.fixed_capacity}."
            )
        self.cache = cache
        self._scatter = None

    def release(self) -> None:
        """Let go of the caches and of what is kept for them."""
        self.cache = None
        self._new.clear()
        self._new_positions = 0
        self._scatter = None

    def reserve(self, device: Device, positions: int) -> None:
        """Keep room for the new rows of ``positions`` positions (all rows of a call together)."""
        if not self.time_first or positions <= self._new_positions:
            return
        size = self.layout.dtype.numpy.itemsize
        self._new = [
            CUDAMemory(device, positions * heads * head_dim * size)
            for heads, head_dim in self.layout.layers
            for _ in ("key", "value")
        ]
        self._new_positions = positions
        self._scatter = None

    def prefix_length(self, batch: int, cache_length: int) -> int:
        """Positions of the cache that an engine reads, for a bound on those in use (0: all)."""
        capacity = self._cache().capacity
        if not self.time_first or cache_length <= 0:
            return capacity
        return next((size for size in length_buckets(capacity) if size >= cache_length), capacity)

    def _cache(self) -> CUDAKVCache:
        if self.cache is None:
            raise MisuseError(f"{self._path} has no cache; call bind_cache first.")
        return self.cache

    def call(
        self,
        device: Device,
        kernels: Kernels,
        batch: int,
        chunk: int,
        first_row: int,
        prefix: int,
        lengths: tuple[CUDATensor | None, CUDATensor | None],
    ) -> CacheCall:
        """What one kind of call needs; made once and kept. ``lengths`` are past_length and query_length.

        :raises BackendError: rows or positions outside.
        """
        if not self._past:
            return CacheCall()
        cache = self._cache()
        if first_row < 0 or first_row + batch > cache.rows:
            raise BackendError(f"rows {first_row}..{first_row + batch} were run; the cache has {cache.rows}.")
        if not self.time_first:
            places = [(cache.address(array, first_row), cache.shape(array, batch, cache.capacity))
                      for array in range(len(self._past))]  # fmt: skip
            return CacheCall(
                tuple(Placed(self._past[array].name, *place) for array, place in enumerate(places)),
                tuple(Placed(self._results[array].name, *place) for array, place in enumerate(places)),
            )
        return self._time_first_call(device, kernels, batch, chunk, first_row, prefix, lengths)

    def _time_first_call(
        self,
        device: Device,
        kernels: Kernels,
        batch: int,
        chunk: int,
        first_row: int,
        prefix: int,
        lengths: tuple[CUDATensor | None, CUDATensor | None],
    ) -> CacheCall:
        cache = self._cache()
        past, query = lengths
        if past is None:
            raise BackendError(f"{self._path}: 'past_length' is not bound; bind every input.")
        if batch * chunk > self._new_positions:
            raise BackendError(
                f"{batch} rows of {chunk} positions were run; the bound tensors hold {self._new_positions} positions."
            )
        arrays = range(len(self._past))
        keeps: list[CUDAMemory] = []
        before: Callable[[], None] | None = None
        if batch > 1:
            keeps, before = self._pack(device, kernels, batch, first_row, prefix)
            addresses = [memory.address for memory in keeps[1:]]
        else:
            addresses = [cache.address(array, first_row) for array in arrays]
        if self._scatter is None:
            self._scatter = self._scatter_table(device)
        table = self._scatter
        kernel = kernels["scatter_positions"]
        query_address = query.address if query is not None else 0

        def after() -> None:
            kernel.launch(
                (chunk, batch, len(arrays)), _THREADS, table.address, past.address, query_address, chunk,
                cache.capacity, first_row,
            )  # fmt: skip

        return CacheCall(
            tuple(
                Placed(self._past[array].name, addresses[array], (prefix, batch, *self._layer(array)))
                for array in arrays
            ),
            tuple(
                Placed(self._results[array].name, self._new[array].address, (batch, chunk, *self._layer(array)))
                for array in arrays
            ),
            before,
            after,
            (*keeps, table),
        )

    def _pack(
        self, device: Device, kernels: Kernels, batch: int, first_row: int, prefix: int
    ) -> tuple[list[CUDAMemory], Callable[[], None]]:
        """Memory (a table first, then one block an array) and the copy of ``batch`` prefixes into it."""
        cache = self._cache()
        table = np.zeros((len(self._past), batch), dtype=SEGMENT)
        blocks = []
        for array in range(len(self._past)):
            heads, head_dim = self._layer(array)
            width = heads * head_dim * self.layout.dtype.numpy.itemsize
            block = CUDAMemory(device, batch * prefix * width, zero=False)
            blocks.append(block)
            for row in range(batch):
                table[array, row] = (
                    cache.address(array, first_row + row), block.address + row * width, width, batch * width,
                    width, prefix,
                )  # fmt: skip
        memory = CUDAMemory(device, table.nbytes)
        device.write(memory.address, table)
        kernel, grid = kernels["copy_segments"], (min(prefix, _MOST_PIECES), table.size, 1)
        return [memory, *blocks], lambda: kernel.launch(grid, _PACK_THREADS, memory.address)

    def _layer(self, array: int) -> tuple[int, int]:
        """Heads and head size."""
        return self.layout.layers[array // 2]

    def _scatter_table(self, device: Device) -> CUDAMemory:
        cache = self._cache()
        table = np.zeros(len(self._past), dtype=_SCATTER)
        size = self.layout.dtype.numpy.itemsize
        for array in range(len(self._past)):
            heads, head_dim = self.layout.layers[array // 2]
            table[array] = (self._new[array].address, cache.address(array, 0), heads * head_dim * size)
        memory = CUDAMemory(device, table.nbytes)
        device.write(memory.address, table)
        return memory
