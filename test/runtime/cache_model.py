"""A context cache over rows that say what is in them, faults on demand, and a plain model of what it should know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgellm_ros.backends.base import CacheLayout
from edgellm_ros.backends.fake_kv_cache import FakeKVCache
from edgellm_ros.errors import BackendError
from edgellm_ros.runtime.block_store import BLOCK_OVERHEAD, BLOCK_TOKENS
from edgellm_ros.runtime.cache_policy import CachePolicy
from edgellm_ros.runtime.context_cache import REPLAYED_TOKENS, ContextCache, ContextCacheConfig

ROW = 1


@dataclass
class Faults:
    """Which copy fails, counted over the life of a cache, and whether the device then does not come to rest."""

    at: int = -1
    export_at: int = -1
    restless: bool = False
    imports: int = 0
    exports: int = 0

    def synchronize(self) -> None:
        if self.restless:
            raise BackendError("the device is lost.")


class FaultyKVCache(FakeKVCache):
    def __init__(self, faults: Faults) -> None:
        super().__init__(CacheLayout(((1, 16),)), rows=4, capacity=256)
        self.faults = faults

    def import_block(self, row: int, start: int, block: Any) -> None:
        self.faults.imports += 1
        if self.faults.imports - 1 == self.faults.at:
            raise BackendError("a copy failed.")
        super().import_block(row, start, block)

    def export_block(self, row: int, start: int, count: int) -> Any:
        self.faults.exports += 1
        if self.faults.exports - 1 == self.faults.export_at:
            raise MemoryError
        return super().export_block(row, start, count)


def make_cache(blocks: int = 100, faults: Faults | None = None, **options: Any) -> ContextCache:
    faults = faults or Faults()
    rows = FaultyKVCache(faults)
    budget = blocks * (BLOCK_OVERHEAD + BLOCK_TOKENS * rows.bytes_per_position)
    return ContextCache(ContextCacheConfig(budget), rows, faults.synchronize, **options)


def fill(cache: ContextCache, row: int, ids: Sequence[int], start: int = 0) -> None:
    """What running the prompt from ``start`` would leave in a row."""
    slots = cache._cache.slots
    for position in range(start, len(ids)):
        slots[row, position] = ids[position], position


def contents_of(cache: ContextCache, row: int, count: int) -> list[int]:
    slots = cache._cache.slots[row, :count]
    assert slots[:, 1].tolist() == list(range(count))
    return slots[:, 0].tolist()


def reuse_and_fill(cache: ContextCache, row: int, ids: Sequence[int], policy: CachePolicy | None = None) -> int:
    """A prompt from start to end in a row full of rubbish; the row must then hold exactly the prompt."""
    cache._cache.slots[row] = -7
    reused = cache.reuse(ids, row, policy or CachePolicy())
    assert 0 <= reused <= max(0, len(ids) - REPLAYED_TOKENS)
    assert contents_of(cache, row, reused) == list(ids[:reused])
    fill(cache, row, ids, reused)
    return reused


def audit(cache: ContextCache) -> None:
    """What must hold between calls: no pins, whole chains, oldest first, within the budget."""
    store = cache.store
    blocks = list(store)
    place = {block.name: index for index, block in enumerate(blocks)}
    assert store.pins == store._pinned == 0
    assert store.nbytes <= store.budget_bytes
    for index, block in enumerate(blocks):
        assert block.data is not None
        assert block.children == sum(other.parent is block for other in blocks)
        if block.parent is not None:
            assert place[block.parent.name] > index and blocks[place[block.parent.name]] is block.parent


class Model:
    """The same rules over tuples of ids: which prefixes are known, least recently used first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.known: list[tuple[int, ...]] = []

    def find(self, ids: Sequence[int], limit: int) -> list[tuple[int, ...]]:
        chain = []
        for end in range(BLOCK_TOKENS, limit + 1, BLOCK_TOKENS):
            if tuple(ids[:end]) not in self.known:
                break
            chain.append(tuple(ids[:end]))
        self._touch(chain)
        return chain

    def publish(self, ids: Sequence[int], limit: int) -> int:
        chain = self.find(ids, limit)
        room = min(limit // BLOCK_TOKENS, self.capacity)
        for number in range(len(chain) + 1, room + 1):
            chain.append(tuple(ids[: number * BLOCK_TOKENS]))
        for prefix in [prefix for prefix in self.known if prefix not in chain]:
            if len({*self.known, *chain}) > self.capacity:
                self.known.remove(prefix)
        self._touch(chain)
        return len(chain) * BLOCK_TOKENS

    def drop(self, prefix: tuple[int, ...]) -> None:
        self.known = [other for other in self.known if other[: len(prefix)] != prefix]

    def _touch(self, chain: list[tuple[int, ...]]) -> None:
        self.known = [prefix for prefix in self.known if prefix not in chain] + chain[::-1]
