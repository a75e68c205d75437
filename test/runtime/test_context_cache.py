"""The rules of prefix reuse, over the fake backend's cache, whose slots say what was written into them."""

from __future__ import annotations

import hashlib
import tracemalloc

import numpy as np
import pytest
from cache_model import ROW, Faults, contents_of, fill, make_cache, reuse_and_fill
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm_ros.backends.base import CacheLayout
from edgellm_ros.backends.cpu_kv_cache import CPUKVCache
from edgellm_ros.errors import BackendError, EdgeLLMError, MisuseError
from edgellm_ros.runtime.block_store import BLOCK_OVERHEAD, BLOCK_TOKENS, BlockStore
from edgellm_ros.runtime.cache_policy import (
    CacheCommitPolicy,
    CacheLookupPolicy,
    CachePolicy,
    CacheScope,
    MediaSpan,
)
from edgellm_ros.runtime.context_cache import REPLAYED_TOKENS, ContextCache, ContextCacheConfig, block_contents

PLAIN = CachePolicy()
BYPASS = CachePolicy(lookup=CacheLookupPolicy.BYPASS)
LONG = list(range(100, 180))  # five blocks


def test_a_known_prefix_is_copied_and_the_rest_is_left_to_compute():
    cache = make_cache()
    fill(cache, 0, LONG)
    assert cache.publish(LONG, len(LONG), 0, PLAIN) == 80
    assert cache.reuse([*LONG[:70], *range(10)], ROW, PLAIN) == 64
    assert contents_of(cache, ROW, 64) == LONG[:64]
    counts = cache.metrics()
    assert (counts.hit_sequences, counts.matched_tokens, counts.reused_tokens) == (1, 64, 64)
    assert (counts.standard_plans, counts.published_tokens, counts.current_records) == (1, 80, 5)


@pytest.mark.parametrize("length", [17, 20, 32, 75, 80, 81, 95, 96, 100])
def test_the_last_tokens_of_a_prompt_are_computed_in_any_case(length):
    cache = make_cache()
    fill(cache, 0, LONG)
    cache.publish(LONG, len(LONG), 0, PLAIN)
    prompt = [*LONG, *range(20)][:length]
    matched = min(length, len(LONG)) // BLOCK_TOKENS * BLOCK_TOKENS
    assert reuse_and_fill(cache, ROW, prompt) == min(matched, length - REPLAYED_TOKENS)
    assert cache.metrics().full_input_rewind_plans == (matched > length - REPLAYED_TOKENS)


def test_a_short_prompt_is_computed_though_it_is_known():
    cache = make_cache()
    fill(cache, 0, LONG)
    cache.publish(LONG, len(LONG), 0, PLAIN)
    assert cache.reuse(LONG[:16], ROW, PLAIN) == 0
    counts = cache.metrics()
    assert (counts.full_input_rewind_plans, counts.hit_sequences, counts.matched_tokens) == (1, 0, 16)


@pytest.mark.parametrize("difference", [0, 15, 16, 40, 79])
def test_nothing_after_the_first_difference_is_reused(difference):
    cache = make_cache()
    fill(cache, 0, LONG)
    cache.publish(LONG, len(LONG), 0, PLAIN)
    other = [*LONG[:difference], 9, *LONG[difference + 1 :]]
    wanted = min(difference // BLOCK_TOKENS * BLOCK_TOKENS, len(LONG) - REPLAYED_TOKENS)
    assert cache.reuse(other, ROW, PLAIN) == wanted


def test_partial_blocks_are_not_kept():
    cache = make_cache()
    fill(cache, 0, LONG)
    assert cache.publish(LONG, 47, 0, PLAIN) == 32
    assert cache.reuse(LONG, ROW, PLAIN) == 32
    assert cache.publish(LONG, 15, 0, PLAIN) == 0


def test_a_bypass_neither_finds_nor_keeps():
    cache = make_cache()
    fill(cache, 0, LONG)
    assert cache.publish(LONG, len(LONG), 0, BYPASS) == 0 and len(cache.store) == 0
    cache.publish(LONG, len(LONG), 0, PLAIN)
    assert cache.reuse(LONG, ROW, BYPASS) == 0
    counts = cache.metrics()
    assert (counts.lookup_bypass_sequences, counts.hit_sequences, counts.publication_attempts) == (1, 0, 1)


@pytest.mark.parametrize(
    "scope",
    [CacheScope(adapter="pick"), CacheScope(adapter_generation=1), CacheScope(variant=b"pruned")],
    ids=["adapter", "adapter loaded again", "pruner"],
)
def test_scopes_share_nothing(scope):
    cache = make_cache()
    fill(cache, 0, LONG)
    cache.publish(LONG, len(LONG), 0, PLAIN)
    other = CachePolicy(scope=scope)
    assert cache.reuse(LONG, ROW, other) == 0
    cache.publish(LONG, len(LONG), 0, other)
    assert cache.reuse(LONG, ROW, other) == 64 and len(cache.store) == 10


def test_equal_placeholders_with_other_images_are_other_blocks():
    cache = make_cache()
    ids = [*range(20), *[7] * 30, *range(30)]
    one, other = (CachePolicy(media=(MediaSpan(20, 50, digest),)) for digest in (b"cat", b"dog"))
    fill(cache, 0, ids)
    cache.publish(ids, len(ids), 0, one)
    assert cache.reuse(ids, ROW, one) == 64
    assert cache.reuse(ids, ROW, other) == 16
    shifted = CachePolicy(media=(MediaSpan(20, 40, b"cat"), MediaSpan(40, 50, b"cat")))
    assert cache.reuse(ids, ROW, shifted) == 32


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20), st.sampled_from([b"a", b"b", b"ab"])), max_size=4).map(
        lambda spans: tuple(MediaSpan(start, start + length, digest) for start, length, digest in spans)
    ),
    st.integers(0, 80),
)
@settings(max_examples=60, deadline=None)
def test_block_contents_cover_the_full_blocks_and_tell_media_from_text(spans, limit):
    plain = block_contents(LONG, limit, CacheScope())
    marked = block_contents(LONG, limit, CacheScope(), spans)
    assert len(plain) == len(marked) == limit // BLOCK_TOKENS
    for index, (one, other) in enumerate(zip(plain, marked, strict=True)):
        touched = any(span.start < (index + 1) * 16 and span.stop > index * 16 for span in spans)
        assert (one != other) == touched


@pytest.mark.parametrize(
    ("policy", "prompt", "committed", "wanted"),
    [
        (CachePolicy(), 40, 60, (40, 60)),
        (CachePolicy(commit=CacheCommitPolicy.PREFILL_STATE_ONLY), 40, 60, (40, 40)),
        (CachePolicy(replay_tail_length=1), 40, 60, (39, 60)),
        (CachePolicy(replay_tail_length=5), 40, 60, (35, 35)),
        (CachePolicy(replay_tail_length=50), 40, 60, (0, 0)),
        (CachePolicy(replay_tail_length=5), 40, 30, (35, 30)),
    ],
    ids=["all", "prompt only", "nothing reads differently", "tail", "tail beyond the prompt", "ended in its prompt"],
)
def test_what_a_policy_allows_to_keep(policy, prompt, committed, wanted):
    assert (policy.prompt_limit(prompt), policy.committed_limit(prompt, committed)) == wanted


# -- the budget


def test_blocks_used_longest_ago_leave_and_prefixes_stay_whole():
    cache = make_cache(blocks=4)
    first, second = LONG[:32], [*LONG[:16], *range(16)]
    for ids in (first, second):
        fill(cache, 0, ids)
        cache.publish(ids, 32, 0, PLAIN)
    assert cache.reuse([*first, *range(16)], ROW, PLAIN) == 32
    third = list(range(200, 232))
    fill(cache, 0, third)
    assert cache.publish(third, 32, 0, PLAIN) == 32
    assert cache.reuse([*second, *range(16)], ROW, PLAIN) == 16  # its own part left, what it shares stays
    assert cache.reuse([*first, *range(16)], ROW, PLAIN) == 32
    assert cache.metrics().evicted_records == 1


def test_a_prompt_beyond_the_budget_keeps_its_beginning():
    cache = make_cache(blocks=3)
    fill(cache, 0, LONG)
    assert cache.publish(LONG, 80, 0, PLAIN) == 48
    assert cache.publish(LONG, 80, 0, PLAIN) == 48
    assert cache.reuse(LONG, ROW, PLAIN) == 48


def test_a_budget_below_one_block_keeps_nothing_and_still_answers():
    cache = make_cache(blocks=0)
    fill(cache, 0, LONG)
    assert cache.publish(LONG, 80, 0, PLAIN) == 0
    assert cache.reuse(LONG, ROW, PLAIN) == 0
    assert cache.metrics().no_reusable_prefix_plans == 1


def test_blocks_in_use_are_not_dropped():
    store = BlockStore(3 * (BLOCK_OVERHEAD + 10), 10)
    with store.pinned([]) as held:
        for content in (b"a", b"b"):
            held.append(store.insert(held.last, content, None))
        assert store.plan(5) == 1 and not store.make_room(2) and len(store) == 2
        with pytest.raises(MisuseError, match="in use"):
            store.remove(held.blocks[0])
    assert store.pins == 0 and store.plan(5) == 3
    assert store.make_room(2) and len(store) == 1 and store.evicted == 1
    assert [block.content for block in store] == [b"a"]
    assert store.make_room(3) and len(store) == 0
    store.insert(None, b"x", None), store.insert(None, b"y", None), store.insert(None, b"z", None)
    with pytest.raises(MisuseError, match="full"):
        store.insert(None, b"w", None)


def test_memory_stays_within_the_budget():
    layout = CacheLayout(((2, 16),) * 3)
    rows = CPUKVCache(layout, 1, 4096)
    budget = 2**20
    cache = ContextCache(ContextCacheConfig(budget), rows, lambda: None)
    generator = np.random.default_rng(3)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        for _ in range(12):
            ids = generator.integers(0, 1000, 1024).tolist()
            cache.publish(ids, len(ids), 0, PLAIN)
        del ids
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert cache.metrics().evicted_records > 0
    assert used <= budget
    assert used > budget * 0.9 - 2**16


@pytest.mark.parametrize("budget", [-1, True, 1.5, "256"])
def test_a_budget_that_is_no_number_of_bytes_is_refused(budget):
    with pytest.raises(EdgeLLMError, match="budget_bytes"):
        ContextCacheConfig(budget)


# -- names that are equal by accident


def weak(parent: bytes, content: bytes) -> bytes:
    return (
        hashlib.blake2b(parent + content, digest_size=1).digest()[:1].translate(bytes(byte % 3 for byte in range(256)))
    )


def test_equal_names_never_make_one_prefix_pass_for_another():
    cache = make_cache(digest=weak)
    generator = np.random.default_rng(5)
    for _ in range(200):
        ids = generator.integers(0, 3, 48).tolist()
        reuse_and_fill(cache, ROW, ids)
        cache.publish(ids, 48, ROW, PLAIN)
    assert cache.metrics().collisions > 50 and cache.store.pins == 0


# -- faults


@pytest.mark.parametrize("copy", range(5))
def test_a_prefix_that_cannot_be_copied_in_is_computed_and_forgotten(copy):
    faults = Faults()
    cache = make_cache(faults=faults)
    fill(cache, 0, LONG)
    cache.publish(LONG, 80, 0, PLAIN)
    faults.at = faults.imports + copy
    assert cache.reuse([*LONG, *range(16)], ROW, PLAIN) == 0
    counts = cache.metrics()
    assert (counts.forced_cold_sequences, counts.failed_copies, counts.hit_sequences) == (1, 1, 0)
    assert cache.store.pins == 0 and len(cache.store) == copy  # the damaged block and those below it are gone
    assert cache.reuse([*LONG, *range(16)], ROW, PLAIN) == copy * BLOCK_TOKENS


@pytest.mark.parametrize("copy", range(5))
def test_a_block_that_cannot_be_copied_out_ends_the_publication_there(copy):
    faults = Faults()
    cache = make_cache(faults=faults)
    fill(cache, 0, LONG)
    faults.export_at = copy
    assert cache.publish(LONG, 80, 0, PLAIN) == copy * BLOCK_TOKENS
    assert cache.metrics().failed_copies == 1 and cache.store.pins == 0
    assert cache.publish(LONG, 80, 0, PLAIN) == 80
    reuse_and_fill(cache, ROW, LONG)


@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_copy_that_may_still_be_under_way_poisons_the_cache(direction):
    faults = Faults()
    cache = make_cache(faults=faults)
    fill(cache, 0, LONG)
    cache.publish(LONG, 48, 0, PLAIN)
    faults.at, faults.export_at, faults.restless = faults.imports, faults.exports, True
    if direction == "in":
        with pytest.raises(BackendError, match="load the engine again"):
            cache.reuse(LONG, ROW, PLAIN)
    else:
        assert cache.publish(LONG, 80, 0, PLAIN) == 48
    assert cache.refusal is not None and cache.metrics().poisoned and cache.store.pins == 0
    faults.restless = False
    with pytest.raises(BackendError, match="load the engine again"):
        cache.reuse(LONG, ROW, PLAIN)
    assert cache.publish(LONG, 80, 0, PLAIN) == 0
    assert len(cache.store) == 3  # what the device may still touch stays where it is


def test_what_gave_bad_numbers_can_be_forgotten():
    cache = make_cache()
    for ids in (LONG, [*LONG[:32], *range(32)]):
        fill(cache, 0, ids)
        cache.publish(ids, 64, 0, PLAIN)
    assert cache.forget(LONG, 64, PLAIN) == 6
    assert len(cache.store) == 0 and cache.forget(LONG, 64, PLAIN) == 0 == cache.forget(LONG, 64, BYPASS)
