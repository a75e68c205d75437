"""Two thousand requests of every kind through one scheduler, some cancelled, checked against what each says alone."""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter
from pathlib import Path

import family_engines
import numpy as np
import pytest
from adapters_for_tests import write_adapter
from runtime_audit import audit
from runtime_helpers import answer, check_stream, drain, fake_runtime, outcome
from soak_kinds import ADAPTERS, KINDS, ON_ANY_ENGINE, Asked, Kinds

from edgellm_ros.adapter_format import AdapterFormat
from edgellm_ros.backends.fake import FakeMode, FakeScript
from edgellm_ros.builder.adapters import AdapterLimits
from edgellm_ros.builder.build import build_engine
from edgellm_ros.engine_format import BuilderLimits, open_engine_directory
from edgellm_ros.errors import EdgeLLMError, SubmitError
from edgellm_ros.runtime.context_cache import ContextCacheConfig
from edgellm_ros.runtime.generation import SteppedGeneration
from edgellm_ros.runtime.handle import RequestHandle
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.request import FinishReason, LLMGenerationRequest, TokenLogprob
from edgellm_ros.runtime.scheduler import RequestEngine, RequestEngineConfig
from edgellm_ros.runtime.sequence import Sequence
from edgellm_ros.runtime.streaming import StreamChannel

SCRIPT = FakeScript(mode=FakeMode.SEEDED, peak=4.0)
PAUSE = 60.0  # seconds for any one request


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def same_numbers(found: list[list[TokenLogprob]], wanted: list[list[TokenLogprob]]) -> None:
    """Equal but for rounding: rows of other batches are other sums."""
    assert [row[0].token_id for row in found] == [row[0].token_id for row in wanted]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose([entry.logprob for entry in one], [entry.logprob for entry in other], atol=2e-3)


class Soak:
    """A scheduler under test, a pool of requests with their right answers, and the count of what happened."""

    def __init__(self, plain: LLMInferenceRuntime, tested: LLMInferenceRuntime, kinds: Kinds, seed: int, pool: int):
        self.generator = random.Random(seed)
        self.pool: list[Asked] = [kinds[index % len(kinds)](self.generator) for index in range(pool)]
        self.wanted = [answer(plain, asked.make()) for asked in self.pool]
        self.runtime = tested
        self.engine = RequestEngine(tested, RequestEngineConfig(max_batch_size=4, max_pending_requests=40))
        self.ends: Counter[int] = Counter()
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.submitted = self.refused = 0

    def submit(self) -> None:
        """One request; waits for its end, cancels it or leaves it alone, and checks it when it ends."""
        generator = self.generator
        index = generator.randrange(len(self.pool))
        channel = StreamChannel(generator.choice((1, 1, 3, 50)), self.pool[index].make().skip_special_tokens)
        try:
            handle = self.engine.submit(self.pool[index].make(), channel)
        except SubmitError:
            self.refused += 1
            self.wait_for_room()
            return
        self.submitted += 1
        number = handle.request_id
        handle.add_done_callback(lambda ended: self.ends.update([number]))
        self.open.append((index, handle, channel, self.disturb(handle)))

    def disturb(self, handle: RequestHandle) -> bool:
        """Cancel it, now or later, from this thread or another; True where it may have been."""
        choice = self.generator.random()
        if choice < 0.75:
            return False
        if choice < 0.85:
            handle.cancel()
        else:
            timer = threading.Timer(self.generator.uniform(0, 0.03), handle.cancel)
            timer.daemon = True
            timer.start()
            self.timers.append(timer)
        return True

    def wait_for_room(self) -> None:
        while len(self.open) > 20:
            self.check(*self.open.pop(0))

    def check(self, index: int, handle: RequestHandle, channel: StreamChannel, disturbed: bool) -> None:
        response, wanted = handle.get(PAUSE), self.wanted[index]
        ids, text, reason = outcome(response)
        self.reasons[self.pool[index].kind, reason.label] += 1
        chunks = drain(channel)
        check_stream(chunks, response)
        if reason is FinishReason.CANCELLED:
            assert disturbed
            assert wanted.output_ids[0][: len(ids)] == ids and wanted.output_texts[0].startswith(text.rstrip("\ufffd"))
            same_numbers(response.logprobs[0], wanted.logprobs[0][: len(ids)])
        else:
            assert (ids, text, reason) == outcome(wanted), self.pool[index]
            same_numbers(response.logprobs[0], wanted.logprobs[0])
        times = response.times[0]
        if ids:
            assert 0 < times.queued <= times.prefill_start <= times.first_token <= times.last_token

    def run(self, count: int) -> None:
        self.open: list[tuple[int, RequestHandle, StreamChannel, bool]] = []
        self.timers: list[threading.Timer] = []
        for _ in range(count):
            self.submit()
            if self.generator.random() < 0.02:  # now and then nothing is left to do
                while self.open:
                    self.check(*self.open.pop(0))
            elif len(self.open) > 36:
                self.wait_for_room()
        while self.open:
            self.check(*self.open.pop(0))
        for timer in self.timers:
            timer.join()
        self.open, self.timers = [], []

    def left_over(self) -> Counter[str]:
        """Objects of requests that nobody should hold any more."""
        gc.collect()
        kinds = (Sequence, SteppedGeneration, RequestHandle, StreamChannel, LLMGenerationRequest)
        return Counter(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, kinds))

    def check_counts(self) -> None:
        """After the end: everything was counted once, and everything that happened is told."""
        metrics = self.engine.metrics()
        assert set(self.ends.values()) == {1} and len(self.ends) == self.submitted
        assert metrics.submitted == self.submitted == metrics.completed + metrics.cancelled + metrics.failed
        assert metrics.refused == self.refused and metrics.failed == 0
        assert metrics.cancelled == sum(many for (_, reason), many in self.reasons.items() if reason == "cancelled")
        assert metrics.admitted_mid_flight > self.submitted // 4  # they did share batches

    def run_and_close(self, count: int) -> None:
        """The whole of it, memory watched from the first quarter on."""
        try:
            self.run(count // 4)
            before, held = self.left_over(), resident_bytes()
            self.run(count - count // 4)
            after = self.left_over()
            assert all(after[kind] <= before[kind] + 2 for kind in after), (before, after)
            assert resident_bytes() - held < 24 << 20
        finally:
            assert self.engine.shutdown(timeout=PAUSE)
            audit(self.runtime.rank)
            self.runtime.close()
        self.check_counts()


def scripted(path: Path, seed: int, pool: int) -> Soak:
    """On the scripted engine, with a budget that holds a part of what is common, so that blocks come and go."""
    cache = ContextCacheConfig(budget_bytes=96 << 10)
    tested = fake_runtime(path / "engine", SCRIPT, context_cache=cache, join_chunk=8, prefill_chunk=64)
    with fake_runtime(path / "alone", SCRIPT) as plain:
        return Soak(plain, tested, KINDS, seed, pool)


@pytest.mark.parametrize(("count", "pool"), [(150, 33), pytest.param(2000, 110, marks=pytest.mark.slow)])
def test_nothing_is_lost_or_ended_twice_and_memory_is_flat(tmp_path, count, pool):
    soak = scripted(tmp_path, count, pool)
    soak.run_and_close(count)
    assert {kind for kind, _ in soak.reasons} == {kind.__name__ for kind in KINDS}
    cache = soak.runtime.rank.get_context_cache_metrics()
    assert cache.hit_sequences and cache.evicted_records and not cache.poisoned
    generation, prefill = soak.runtime.rank.get_generation_metrics(), soak.runtime.rank.get_prefill_metrics()
    assert generation.total_runs <= soak.submitted and prefill.reused_tokens == cache.reused_tokens


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_the_same_with_adapters_on_a_real_engine(tmp_path, count):
    """More adapters than places, on the CPU, with reuse of prompts."""
    limits = BuilderLimits(max_batch_size=4, max_input_len=320, max_kv_cache_capacity=384)
    path = build_engine(
        family_engines.checkpoint("llama"), tmp_path / "engine", limits=limits, lora=AdapterLimits(4, 2)
    )
    form = AdapterFormat.from_config(open_engine_directory(path).config.extra)
    folders = {name: write_adapter(tmp_path / name, form, 3, seed) for seed, name in enumerate(ADAPTERS[1:])}
    tested = LLMInferenceRuntime(path, threads=1, lora_weights=folders, join_chunk=8, prefill_chunk=64,
                                 context_cache=ContextCacheConfig(budget_bytes=2 << 20))  # fmt: skip
    with LLMInferenceRuntime(path, threads=1, lora_weights=folders) as plain:
        soak = Soak(plain, tested, ON_ANY_ENGINE, count, 40)
    soak.run_and_close(count)
    assert {"adapted", "drawn"} <= {kind for kind, _ in soak.reasons}
    assert tested.rank.get_context_cache_metrics().hit_sequences


def test_a_scheduler_that_ends_in_the_middle_leaves_nobody_waiting(tmp_path):
    soak = scripted(tmp_path, 7, 22)
    soak.open, soak.timers = [], []
    for _ in range(30):
        soak.submit()
    assert soak.engine.shutdown(timeout=PAUSE)
    for _, handle, channel, _ in soak.open:
        assert handle.done() and drain(channel)[-1].finished
    with pytest.raises(EdgeLLMError):
        soak.engine.submit(soak.pool[0].make())
    soak.runtime.close()
