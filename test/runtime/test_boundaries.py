"""What happens between two steps: who leaves when, what is counted, what is handed out."""

from __future__ import annotations

import threading

import pytest
from runtime_helpers import WAIT, answer, drain, fake_runtime, item, outcome, request, stepped

from edgellm_ros.backends.fake import FakeScript, Fault
from edgellm_ros.errors import RefusalCode
from edgellm_ros.runtime.boundary import AdmitDecision
from edgellm_ros.runtime.request import FinishReason, LLMGenerationResponse
from edgellm_ros.runtime.scheduler import RequestEngine, RequestEngineConfig
from edgellm_ros.runtime.scheduler_config import BatchCompatibility
from edgellm_ros.runtime.session import GenerationSession
from edgellm_ros.runtime.streaming import StreamChannel


def watched_batches(runtime, monkeypatch) -> list[int]:
    """Rows of every engine call from now on."""
    engine, rows = runtime.rank.executor.engine, []
    run = engine.run
    monkeypatch.setattr(
        engine, "run", lambda shapes, *rest: rows.append(shapes["inputs_embeds"][0]) or run(shapes, *rest)
    )
    return rows


def test_a_cancelled_row_leaves_before_the_next_step(seeded, monkeypatch):
    """Its consumer hears of it first, and the step is run without it."""
    channels = [StreamChannel(), StreamChannel()]
    items = [item(text, max_generate_length=8, ignore_eos=True) for text in "ab"]
    generation = seeded.rank.begin_generation(
        seeded.prepare(request(*items, channels=channels)), LLMGenerationResponse()
    )
    with generation:
        session = GenerationSession(seeded.rank, generation)
        session.prime_from_prefill()
        rows = watched_batches(seeded, monkeypatch)
        session.advance()
        channels[0].cancel()
        assert session.resident_count() == 2
        session.advance()
        assert rows == [2, 1] and session.resident_count() == 1
        assert drain(channels[0])[-1].finish_reason is FinishReason.CANCELLED
        (taken,) = session.take_completed_at_or_above(0).values()
        assert taken.generate_length == 2 and taken.iterations == 1
        assert session.take_completed_at_or_above(0) == {}


def test_a_row_that_ends_at_birth_never_meets_a_step(seeded, monkeypatch):
    """Its first token is its last: prime delivers it, and no other row is left to step."""
    channel = StreamChannel()
    rows = watched_batches(seeded, monkeypatch)
    response = answer(seeded, request(item("a", max_generate_length=1), channels=[channel]))
    assert rows == [1] and response.finish_reasons == [FinishReason.LENGTH]
    assert [chunk.finished for chunk in drain(channel)].count(True) == 1


def test_a_joiner_that_ends_at_birth_is_harvested_like_the_others(seeded):
    wanted = outcome(answer(seeded, request(item("late", max_generate_length=1))))
    channel, found = StreamChannel(), {}

    def before_step(session, step):
        if step == 1:
            late = seeded.prepare(request(item("late", max_generate_length=1), channels=[channel]))
            assert session.admit_request(late, 9, 90) is AdmitDecision.ADMITTED
        found.update({index: session.materialize_result(result)
                      for index, result in session.take_completed_at_or_above(1).items()})  # fmt: skip

    stepped(seeded, request(item("first", max_generate_length=9, ignore_eos=True)), before_step)
    assert outcome(found[9]) == wanted
    assert [chunk.finished for chunk in drain(channel)].count(True) == 1


def test_steps_of_a_joiner_count_from_its_own_start(seeded):
    iterations = {}

    def before_step(session, step):
        if step == 5:
            late = seeded.prepare(request(item("late", max_generate_length=4, ignore_eos=True)))
            session.admit_request(late, 1, 11)
        iterations.update({index: result.iterations for index, result in session.take_completed_at_or_above(1).items()})

    response = stepped(seeded, request(item("first", max_generate_length=20, ignore_eos=True)), before_step)
    assert len(response.output_ids[0]) == 20
    assert iterations[1] <= 4  # not the nine that the batch had run by then


def test_results_that_nobody_took_are_in_the_response(seeded):
    """Also those of joiners: nothing is lost, nothing overflows."""

    def before_step(session, step):
        if step == 0:
            session.admit_request(seeded.prepare(request(item("late", max_generate_length=2))), 7, 70)

    response = stepped(seeded, request(item("first", max_generate_length=9, ignore_eos=True)), before_step)
    assert len(response.output_ids) == 2 and len(response.output_ids[0]) == 9


def test_a_consumer_waits_for_the_last_chunk_also_after_it_cancelled(tmp_path):
    with fake_runtime(tmp_path / "engine", FakeScript(answers=["a" * 60], step_latency=0.002)) as runtime:
        engine = RequestEngine(runtime, RequestEngineConfig())
        try:
            channel = StreamChannel()
            handle = engine.submit(request("hi"), channel)
            chunks = [channel.wait_pop(WAIT)]
            channel.cancel()
            while not chunks[-1].finished:
                chunks.append(channel.wait_pop(WAIT))
                assert chunks[-1] is not None
            assert chunks[-1].finish_reason is FinishReason.CANCELLED is handle.get(WAIT).finish_reasons[0]
            assert channel.wait_pop(0.01) is None
        finally:
            assert engine.shutdown(timeout=WAIT)


@pytest.mark.parametrize("limit", ["policy", "rows"])
def test_the_first_in_the_queue_waits_and_nobody_overtakes_it(tmp_path, limit):
    """Neither the one that fits behind one that does not, nor one that came later."""
    policy = BatchCompatibility(must_agree=("num_logprobs",)) if limit == "policy" else BatchCompatibility()
    script = FakeScript(answers=["abcdefghij"], step_latency=0.004)
    with fake_runtime(tmp_path / "engine", script) as runtime:
        engine = RequestEngine(runtime, RequestEngineConfig(max_batch_size=2, compatibility=policy))
        order, lock = [], threading.Lock()

        def ended(handle):
            with lock:
                order.append(handle.request_id)

        try:
            counts = [0, 1, 0] if limit == "policy" else [0, 0, 0]
            handles = [engine.submit(request("hi", num_logprobs=count)) for count in counts]
            for handle in handles:
                handle.add_done_callback(ended)
            times = [handle.get(WAIT).times[0] for handle in handles]
            metrics = engine.metrics()
        finally:
            assert engine.shutdown(timeout=WAIT)
    assert [stamp.prefill_start for stamp in times] == sorted(stamp.prefill_start for stamp in times)
    if limit == "policy":
        assert metrics.stalls_incompatible > 0
        assert times[1].prefill_start >= times[0].last_token  # it founds the next batch
    else:
        assert metrics.stalls_no_capacity > 0 and metrics.admitted_mid_flight >= 1
    assert metrics.queue_latency_max >= metrics.queue_latency_total / metrics.queue_latency_count


@pytest.mark.parametrize("mode", ["blocking", "scheduled"])
def test_an_engine_that_fails_once_leaves_the_answer_so_far(tmp_path, mode):
    """A failing step is an end like others: the rows have a reason and a sentence, the call itself succeeds."""
    script = FakeScript(answers=["abcdefgh"], fault=Fault.RAISE, fault_step=3, fault_times=1)
    with fake_runtime(tmp_path / "engine", script) as runtime:
        if mode == "blocking":
            response = LLMGenerationResponse()
            assert runtime.handle_request(request("hi"), response) is True
            assert runtime.last_refusal is None
        else:
            engine = RequestEngine(runtime, RequestEngineConfig())
            handle = engine.submit(request("hi"))
            response = handle.get(WAIT)
            assert handle.refusal.code is RefusalCode.ENGINE_FAILED
            assert handle.times.first_token > handle.times.queued > 0
            assert engine.shutdown(timeout=WAIT)
        assert outcome(response) == ([97, 98, 99], "abc", FinishReason.ERROR) and response.messages[0]
        assert answer(runtime, request("hi")).output_texts == ["abcdefgh"]
