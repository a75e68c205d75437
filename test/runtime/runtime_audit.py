"""What must hold of a runtime between requests."""

from __future__ import annotations

from edgellm_ros.runtime.rank_runtime import LLMRankRuntime


def audit(runtime: LLMRankRuntime) -> None:
    """What must hold of a runtime that nobody uses at the moment."""
    assert runtime.open_context is None, "a request was left open"
    assert runtime._latch.acquire(blocking=False), "the latch was left taken"
    runtime._latch.release()
    assert not any(runtime.adapters._slots.users(name) for name in runtime.adapters.names), "an adapter is in use"
    cache = runtime._reuse.context_cache
    if cache is not None:
        store = cache.store
        assert store.pins == 0, "blocks are still pinned"
        assert store.nbytes <= store.budget_bytes
        blocks = set(store)
        assert all(block.parent is None or block.parent in blocks for block in blocks), "a block lost its parent"
