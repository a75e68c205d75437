"""What a runtime counts, and when it says that something happened."""

from __future__ import annotations

import pytest
from runtime_helpers import answer, item, request

from edgellm_ros.runtime.request import LLMGenerationResponse
from edgellm_ros.runtime.session import GenerationSession
from edgellm_ros.runtime.stage_times import StageTimes

FOUR = [item(f"number {index}", max_generate_length=12, ignore_eos=True) for index in range(4)]


def test_times_are_in_order(scripted):
    times = answer(scripted, request("hi")).times[0]
    assert 0 < times.prefill_start <= times.first_token <= times.last_token


def test_metrics_count_every_sequence_also_those_taken_early(scripted):
    prefill, generation = scripted.rank.get_prefill_metrics(), scripted.rank.get_generation_metrics()
    before = prefill.total_runs, prefill.computed_tokens, generation.generated_tokens
    taken = []
    prepared = scripted.prepare(request("hi", "hello", max_generate_length=5))
    response = LLMGenerationResponse()
    scripted.rank.handle_request(
        prepared, response, boundary_hook=lambda boundary: taken.extend(boundary.take_completed_at_or_above(0))
    )
    assert sorted(taken) == [0, 1] and response.output_ids == []
    assert prefill.total_runs - before[0] == 2
    assert prefill.computed_tokens - before[1] == sum(map(len, prepared.pre_tokenized_input_ids))
    assert generation.generated_tokens - before[2] == 10


def test_metrics_count_sequences_that_were_dropped(seeded):
    prefill, generation = seeded.rank.get_prefill_metrics(), seeded.rank.get_generation_metrics()
    before = prefill.total_runs, generation.total_runs, generation.generated_tokens
    with seeded.rank.begin_generation(seeded.prepare(request(*FOUR)), LLMGenerationResponse()) as opened:
        session = GenerationSession(seeded.rank, opened)
        session.prime_from_prefill()
        session.advance()
    after = prefill.total_runs, generation.total_runs, generation.generated_tokens
    assert [late - early for late, early in zip(after, before, strict=True)] == [4, 4, 8]


def test_stage_times_add_up(seeded):
    before = seeded.rank.get_stage_times()
    response = answer(seeded, request(FOUR[0]))
    after = seeded.rank.get_stage_times()
    for stage, runs in (("llm_prefill", 1), ("llm_generation", len(response.output_ids[0]) - 1)):
        assert after[stage].count - before[stage].count == runs
        assert after[stage].p50 <= after[stage].p90 <= after[stage].p99
    assert after["llm_generation"].total == pytest.approx(seeded.rank.get_generation_metrics().seconds)


def test_times_may_be_read_in_the_middle_of_the_first_of_a_stage():
    """Readers are on other threads, and come when they like."""
    times, seen = StageTimes(), []

    class Watched(dict):
        def __setitem__(self, stage, value):
            super().__setitem__(stage, value)
            seen.append(times.values()["first"].count)

    times._totals = Watched()
    times.record("first", 0.5)
    assert seen == [1]
