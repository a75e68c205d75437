"""Rows that are kept: what was used longest ago leaves first, and the budget holds whatever comes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from edgellm_ros.vision.encoder_cache import EncoderCache
from edgellm_ros.vision.media import EncodedMedia


def rows(count: int, planes: int = 0) -> EncodedMedia:
    """``count`` rows of one number each, so 4 bytes a row and plane."""
    tensor: Any = SimpleNamespace(shape=(count, 1))
    return EncodedMedia(tensor, (tensor,) * planes)


def filled(*names: bytes, budget: int = 3) -> EncoderCache:
    cache = EncoderCache(4 * budget)
    for name in names:
        cache.put(name, rows(1))
    return cache


def test_what_was_used_longest_ago_leaves_first():
    cache = filled(b"a", b"b", b"c")
    assert cache.get(b"a") is not None
    cache.put(b"d", rows(1))
    assert [name for name in (b"a", b"b", b"c", b"d") if name in cache] == [b"a", b"c", b"d"]
    cache.put(b"e", rows(2))
    assert [name for name in (b"a", b"c", b"d", b"e") if name in cache] == [b"d", b"e"]
    assert (cache.evicted, cache.nbytes, len(cache)) == (3, 12, 2)


def test_planes_count_and_what_is_beyond_the_budget_is_not_kept():
    cache = filled(b"a")
    cache.put(b"large", rows(1, planes=3))
    assert b"large" not in cache and b"a" in cache and cache.nbytes == 4
    cache.put(b"exact", rows(1, planes=2))
    assert cache.nbytes == 12 and b"a" not in cache


def test_an_item_that_comes_again_counts_once_and_is_the_youngest():
    cache = filled(b"a", b"b", b"c")
    cache.put(b"a", rows(1))
    assert cache.nbytes == 12
    cache.put(b"d", rows(1))
    assert b"a" in cache and b"b" not in cache


@given(some.lists(some.tuples(some.sampled_from("abcdef"), some.integers(0, 6), some.booleans()), max_size=40))
def test_bytes_are_those_of_what_is_kept_and_within_the_budget(steps):
    cache, sizes = EncoderCache(4 * 8), {}
    for name, size, looks in steps:
        key = name.encode()
        if looks:
            assert (cache.get(key) is None) == (key not in cache)
        else:
            cache.put(key, rows(size))
            sizes[key] = size
        kept = [one for one in sizes if one in cache]
        assert cache.nbytes == 4 * sum(sizes[one] for one in kept) <= cache.budget_bytes
        assert len(kept) == len(cache)
    assert cache.hits + cache.misses == sum(looks for _, _, looks in steps)
    cache.clear()
    assert (cache.nbytes, len(cache)) == (0, 0)
