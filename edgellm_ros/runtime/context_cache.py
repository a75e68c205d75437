"""Prefix reuse: what a prompt has in common with earlier ones is copied into its row instead of computed.

Rows own their memory; the store holds copies, so a row never waits for the store and the store never for a row.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..backends.base import KVCache
from ..errors import BackendError, EdgeLLMError, Refusal, RefusalCode
from .block_store import BLOCK_TOKENS, BlockStore, Digest
from .cache_policy import CacheLookupPolicy, CachePolicy, CacheScope, MediaSpan

DEFAULT_BUDGET_BYTES = 256 * 2**20
# Tokens at the end of a prompt that are computed in any case. One would do for its logits; but eight-bit kernels round
# differently for a few rows than for many, and a prompt asked again should be answered as it was the first time.
REPLAYED_TOKENS = BLOCK_TOKENS


@dataclass(frozen=True)
class ContextCacheConfig:
    """``budget_bytes``: memory that the store may take; less than one block keeps nothing."""

    budget_bytes: int = DEFAULT_BUDGET_BYTES

    def __post_init__(self) -> None:
        value = self.budget_bytes
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1 << 60:
            raise EdgeLLMError(
                f"budget_bytes of the context cache is {value!r}; want a whole number from 0.",
                RefusalCode.BAD_PARAMETER,
            )


@dataclass
class ContextCacheMetrics:
    """Of prefix reuse. Counts grow; the last group says how it is now. Seconds are of the host."""

    admitted_sequences: int = 0
    hit_sequences: int = 0
    lookup_bypass_sequences: int = 0
    forced_cold_sequences: int = 0  # their prefix was found, but could not be copied
    standard_plans: int = 0
    no_reusable_prefix_plans: int = 0
    full_input_rewind_plans: int = 0  # too much was found; the last tokens are computed again
    matched_tokens: int = 0
    reused_tokens: int = 0
    publication_attempts: int = 0
    committed_publications: int = 0  # that added at least one block
    existing_publications: int = 0  # that found everything there
    published_tokens: int = 0
    failed_copies: int = 0
    collisions: int = 0
    evicted_records: int = 0
    planning_seconds: float = 0.0
    copying_seconds: float = 0.0

    current_records: int = 0
    capacity_records: int = 0
    current_bytes: int = 0
    budget_bytes: int = 0
    poisoned: bool = False


class ContextCache:
    """Belongs to the thread that drives the runtime; ``metrics`` may be called from any.

    ``synchronize`` waits for the device: after a copy that failed it proves that nothing is under way any more. Where
    it fails as well the cache is poisoned, and every later request is refused.
    """

    def __init__(
        self,
        config: ContextCacheConfig,
        cache: KVCache,
        synchronize: Callable[[], None],
        *,
        digest: Digest | None = None,
    ) -> None:
        self._cache = cache
        self._synchronize = synchronize
        self.store = BlockStore(config.budget_bytes, BLOCK_TOKENS * cache.bytes_per_position, digest)
        self._counts = ContextCacheMetrics()
        self.refusal: Refusal | None = None  # set for good once it is poisoned

    def metrics(self) -> ContextCacheMetrics:
        """A copy of the counters."""
        return dataclasses.replace(
            self._counts,
            collisions=self.store.collisions,
            evicted_records=self.store.evicted,
            current_records=len(self.store),
            capacity_records=self.store.capacity,
            current_bytes=self.store.nbytes,
            budget_bytes=self.store.budget_bytes,
            poisoned=self.refusal is not None,
        )

    # -- before the prompt is run ------------------------------------------------------------------------------

    def reuse(self, prompt_ids: Sequence[int], row: int, policy: CachePolicy) -> int:
        """Copy what is known of a prompt into a row; returns how many positions need not be computed.

        The last ``REPLAYED_TOKENS`` are always left. 0 where nothing is known, where the policy
        bypasses the cache, or where a copy failed; then the whole prompt is computed.

        :raises BackendError: the cache is poisoned.
        """
        self._check_usable()
        counts = self._counts
        counts.admitted_sequences += 1
        if policy.lookup is CacheLookupPolicy.BYPASS:
            counts.lookup_bypass_sequences += 1
            return 0
        start = time.perf_counter()
        chain = self.store.find(block_contents(prompt_ids, len(prompt_ids), policy.scope, policy.media))
        matched = len(chain) * BLOCK_TOKENS
        counts.planning_seconds += time.perf_counter() - start
        counts.matched_tokens += matched
        reused = max(0, min(matched, len(prompt_ids) - REPLAYED_TOKENS))
        if not matched:
            counts.no_reusable_prefix_plans += 1
            return 0
        if reused < matched:
            counts.full_input_rewind_plans += 1
            if not reused:
                return 0
        else:
            counts.standard_plans += 1
        start = time.perf_counter()
        damaged = None
        with self.store.pinned(chain):
            for index, block in enumerate(chain[: -(-reused // BLOCK_TOKENS)]):
                try:
                    self._cache.import_block(row, index * BLOCK_TOKENS, block.data)
                except Exception:  # whatever it was, the prompt can still be computed
                    damaged = block
                    break
        counts.copying_seconds += time.perf_counter() - start
        if damaged is not None:
            self._drain()
            self._check_usable()
            self.store.remove(damaged)
            counts.forced_cold_sequences += 1
            return 0
        counts.hit_sequences += 1
        counts.reused_tokens += reused
        return reused

    # -- afterwards --------------------------------------------------------------------------------------------

    def publish(self, token_ids: Sequence[int], limit: int, row: int, policy: CachePolicy) -> int:
        """Keep the full blocks of a row's first ``limit`` positions; returns how many positions are known then.

        Blocks that are there already are used, not copied. Where the budget does not allow all, the first ones are
        kept, in place of blocks that nobody asked for recently.
        """
        if policy.lookup is CacheLookupPolicy.BYPASS or self.refusal is not None or limit < BLOCK_TOKENS:
            return 0
        counts, store = self._counts, self.store
        counts.publication_attempts += 1
        start = time.perf_counter()
        contents = block_contents(token_ids, limit, policy.scope, policy.media)
        chain = store.find(contents)
        counts.planning_seconds += time.perf_counter() - start
        missing = contents[len(chain) :]
        if not missing:
            counts.existing_publications += 1
            return len(chain) * BLOCK_TOKENS
        start = time.perf_counter()
        failed = False
        with store.pinned(chain) as held:
            room = store.plan(len(missing))
            store.make_room(room)
            for content in missing[:room]:
                try:
                    data = self._cache.export_block(row, len(held.blocks) * BLOCK_TOKENS, BLOCK_TOKENS)
                except Exception:  # a block less is known; the request does not suffer
                    failed = True
                    break
                block = store.insert(held.last, content, data)
                if block is None:  # another prefix has its name
                    break
                held.append(block)
        added = len(held.blocks) - len(chain)
        counts.copying_seconds += time.perf_counter() - start
        counts.committed_publications += bool(added)
        counts.published_tokens += added * BLOCK_TOKENS
        if failed:
            self._drain()
        return len(held.blocks) * BLOCK_TOKENS

    def forget(self, token_ids: Sequence[int], limit: int, policy: CachePolicy) -> int:
        """Drop what is known of a prefix, and all that follows it; returns how many blocks that were."""
        if policy.lookup is CacheLookupPolicy.BYPASS:
            return 0
        chain = self.store.find(block_contents(token_ids, limit, policy.scope, policy.media))
        return self.store.remove(chain[0]) if chain else 0

    def _drain(self) -> None:
        """Make sure that a copy which failed is over; the cache is poisoned where that cannot be known."""
        self._counts.failed_copies += 1
        try:
            self._synchronize()
        except Exception:
            self.refusal = Refusal(
                RefusalCode.ENGINE_FAILED,
                "the context cache is not safe to use since a copy failed and the device did not come to rest; load "
                "the engine again.",
            )

    def _check_usable(self) -> None:
        if self.refusal is not None:
            raise BackendError(self.refusal.message, self.refusal.code)


def block_contents(
    token_ids: Sequence[int], limit: int, scope: CacheScope, media: Sequence[MediaSpan] = ()
) -> list[bytes]:
    """What each full block among the first ``limit`` positions is of: its ids, its media and, for the first, the scope.

    Where an item lies its digest counts with the place in it, and not the ids, which are the same for all items.
    """
    count = limit // BLOCK_TOKENS
    ids = np.asarray(token_ids[: count * BLOCK_TOKENS], dtype="<i4")
    marks: dict[int, bytes] = {}
    for span in media:
        stop = min(span.stop, len(ids))
        ids[span.start : stop] = -1
        for index in range(span.start // BLOCK_TOKENS, -(-stop // BLOCK_TOKENS)):
            offset = index * BLOCK_TOKENS - span.start
            mark = offset.to_bytes(8, "little", signed=True) + len(span.digest).to_bytes(4, "little") + span.digest
            marks[index] = marks.get(index, b"") + mark
    size = BLOCK_TOKENS * ids.itemsize
    data = ids.tobytes()
    contents = [data[start : start + size] for start in range(0, count * size, size)]
    for index, mark in marks.items():
        if index < count:
            contents[index] += mark
    if contents:
        name = scope.content()
        contents[0] = len(name).to_bytes(4, "little") + name + contents[0]
    return contents
