"""Many requests of mixed kinds through one scheduler with a small cache: every answer is that of a run without one."""

from __future__ import annotations

import contextlib
import gc
import random
import tracemalloc
from typing import Any

import pytest
from cache_model import audit
from runtime_helpers import WAIT, answer, check_stream, drain, fake_runtime, outcome, request

from edgellm_ros.backends.fake import FakeMode, FakeScript
from edgellm_ros.errors import BackendError
from edgellm_ros.runtime.block_store import BLOCK_OVERHEAD
from edgellm_ros.runtime.cache_policy import CacheCommitPolicy, CacheLookupPolicy
from edgellm_ros.runtime.context_cache import ContextCacheConfig
from edgellm_ros.runtime.request import FinishReason, LLMGenerationRequest, Message, Request, SamplingParameters
from edgellm_ros.runtime.scheduler import RequestEngine, RequestEngineConfig
from edgellm_ros.runtime.streaming import StreamChannel

SYSTEMS = ("You move a gripper. " * 3, "You move a base, slowly and with care. " * 2, "")
DRAWN = SamplingParameters(temperature=1.2, top_k=50)


class FailingCopies:
    """Lets some copies of a cache fail, by chance."""

    def __init__(self, cache: Any, generator: random.Random, share: float) -> None:
        self.failed = 0
        for name in ("import_block", "export_block"):
            setattr(cache, name, self._wrapped(getattr(cache, name), generator, share))

    def _wrapped(self, copy: Any, generator: random.Random, share: float) -> Any:
        def call(*arguments: Any) -> Any:
            if generator.random() < share:
                self.failed += 1
                raise BackendError("a copy failed.")
            return copy(*arguments)

        return call


def some_request(generator: random.Random, earlier: list[tuple[Message, ...]]) -> LLMGenerationRequest:
    """A new conversation, or the next turn of an earlier one."""
    if earlier and generator.random() < 0.5:
        messages = (*generator.choice(earlier), Message("user", generator.choice("abc") * generator.randrange(1, 30)))
    else:
        system = generator.choice(SYSTEMS)
        messages = (Message("user", generator.choice(["open", "close", "x" * 20])),)
        messages = ((Message("system", system), *messages)) if system else messages
    policies: dict[str, Any] = {"context_cache_replay_tail_length": generator.choice([-1, -1, 0, 20])}
    if generator.random() < 0.1:
        policies["context_cache_lookup_policy"] = CacheLookupPolicy.BYPASS
    if generator.random() < 0.2:
        policies["context_cache_commit_policy"] = CacheCommitPolicy.PREFILL_STATE_ONLY
    entry = Request(
        messages,
        sampling=DRAWN,
        sampling_seed=generator.randrange(5),
        max_generate_length=generator.randrange(1, 50),
        stop_strings=generator.choice([(), ("th",)]),
    )
    return request(entry, **policies)


def live(cached: Any, plain: Any, generator: random.Random, count: int) -> int:
    """Run ``count`` requests, up to three at a time, some cancelled; returns how many tokens were reused."""
    engine = RequestEngine(cached, RequestEngineConfig(max_batch_size=3))
    earlier: list[tuple[Message, ...]] = []
    reused = 0
    while count > 0:
        asked = [some_request(generator, earlier) for _ in range(generator.randrange(1, 6))]
        count -= len(asked)
        channels = [StreamChannel() for _ in asked]
        handles = [engine.submit(entry, channel) for entry, channel in zip(asked, channels, strict=True)]
        cancelled = {index for index in range(len(asked)) if generator.random() < 0.15}
        for index in cancelled:
            channels[index].wait_pop(WAIT if generator.random() < 0.5 else 0)
            handles[index].cancel()
        for index, (entry, handle, channel) in enumerate(zip(asked, handles, channels, strict=True)):
            response = handle.get(WAIT)
            wanted = answer(plain, entry)
            if response.finish_reasons == [FinishReason.CANCELLED]:
                assert index in cancelled
                assert response.output_ids[0] == wanted.output_ids[0][: len(response.output_ids[0])]
                continue
            assert outcome(response) == outcome(wanted)
            assert 0 <= response.reused_token_counts[0] < response.input_token_counts[0]
            if index not in cancelled:
                check_stream(drain(channel), response)
            reused += response.reused_token_counts[0]
            messages = (*entry.requests[0].messages, Message("assistant", response.output_texts[0] or "-"))
            if len(messages) < 8:
                earlier = [*earlier[-20:], messages]
    assert engine.shutdown(timeout=WAIT)
    audit(cached.rank._reuse.context_cache)
    return reused


@pytest.fixture
def lives(tmp_path):
    """Two runtimes that differ in their cache alone: without, and with so many blocks."""
    with contextlib.ExitStack() as stack:

        def make(blocks: int) -> tuple[Any, Any]:
            size = {"max_input": 600, "max_kv": 800, "max_batch": 3, "prefill_chunk": 24}
            script = FakeScript(mode=FakeMode.SEEDED)
            config = ContextCacheConfig(blocks * (BLOCK_OVERHEAD + 16 * 8))
            cached = stack.enter_context(fake_runtime(tmp_path / "cached", script, context_cache=config, **size))
            return cached, stack.enter_context(fake_runtime(tmp_path / "plain", script, **size))

        yield make


@pytest.mark.parametrize(
    ("blocks", "share"),
    [(400, 0.0), (7, 0.0), (40, 0.1)],
    ids=["room for all", "a small budget", "failing copies"],
)
def test_a_mixed_life_gives_the_answers_of_a_run_without_reuse(lives, blocks, share):
    cached, plain = lives(blocks)
    generator = random.Random(blocks)
    failing = FailingCopies(cached.rank.executor.cache, generator, share)
    assert live(cached, plain, generator, 50) > 0
    counts = cached.rank.get_context_cache_metrics()
    assert counts.failed_copies == failing.failed and (failing.failed > 0) == (share > 0)
    assert counts.collisions == 0 and not counts.poisoned
    assert share > 0 or (counts.evicted_records > 0) == (blocks < 100)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_long_life_leaves_no_more_than_the_budget(lives):
    cached, plain = lives(60)
    generator = random.Random(1)
    FailingCopies(cached.rank.executor.cache, generator, 0.02)
    live(cached, plain, generator, 30)  # what is made once is made now
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        assert live(cached, plain, generator, 300) > 0
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 60 * (BLOCK_OVERHEAD + 16 * 8) + 2**18
    finally:
        tracemalloc.stop()
    assert live(cached, plain, generator, 1200) > 0


@pytest.mark.parametrize("direction", ["import_block", "export_block"])
def test_a_fault_at_every_copy_changes_no_answer_and_leaves_nothing_behind(tmp_path, direction):
    script = FakeScript(mode=FakeMode.SEEDED)
    turns = [
        request(Request((Message("system", SYSTEMS[0]), Message("user", text)), max_generate_length=20))
        for text in ("open", "close", "open")
    ]
    with fake_runtime(tmp_path / "plain", script) as plain:
        wanted = [outcome(answer(plain, entry)) for entry in turns]
    with fake_runtime(tmp_path / "engine", script, context_cache=ContextCacheConfig()) as runtime:
        cache, copy = runtime.rank.executor.cache, getattr(runtime.rank.executor.cache, direction)
        at, reached = 0, True
        while reached:
            reached, calls = False, 0

            def fail_once(*arguments: Any, at: int = at) -> Any:
                nonlocal calls, reached
                calls += 1
                if calls - 1 == at:
                    reached = True
                    raise BackendError("a copy failed.")
                return copy(*arguments)

            setattr(cache, direction, fail_once)
            for index in range(3):
                assert outcome(answer(runtime, turns[index])) == wanted[index]
                audit(runtime.rank._reuse.context_cache)
            setattr(cache, direction, copy)
            runtime.rank._reuse.context_cache.store.make_room(runtime.rank._reuse.context_cache.store.capacity)
            at += 1
        assert at > 8
