from __future__ import annotations

import random

import pytest
from runtime_helpers import (
    DRAWN,
    SOME,
    STR_1,
    answer,
    check_stream,
    drain,
    fake_runtime,
    item,
    outcome,
    request,
    stepped,
)

from edgellm_ros.backends.fake import FakeMode, FakeScript
from edgellm_ros.errors import MisuseError, RefusalCode, RequestError
from edgellm_ros.runtime.boundary import AdmitDecision, SlotSeed
from edgellm_ros.runtime.request import FinishReason, LLMGenerationResponse, SamplingParameters
from edgellm_ros.runtime.session import GenerationSession
from edgellm_ros.runtime.streaming import StreamChannel


def test_a_batch_gives_what_each_sequence_gives_alone(seeded, alone):
    response = answer(seeded, request(*SOME))
    assert [outcome(response, index) for index in range(4)] == alone


def test_stepped_and_blocking_runs_agree(seeded, alone):
    channels = [StreamChannel(), None, StreamChannel(3), None]
    response = stepped(seeded, request(*SOME, channels=channels, num_logprobs=3))
    assert [outcome(response, index) for index in range(4)] == alone
    check_stream(drain(channels[0]), response, 0)
    check_stream(drain(channels[2]), response, 2)
    blocking = answer(seeded, request(*SOME, num_logprobs=3))
    assert blocking.logprobs == response.logprobs
    assert all(len(row) == len(ids) for row, ids in zip(response.logprobs, response.output_ids, strict=True))
    for ids, rows in zip(response.output_ids, response.logprobs, strict=True):
        for token, candidates in zip(ids, rows, strict=True):
            assert candidates[0].token_id == token and len(candidates) == 4


@pytest.mark.parametrize("order", range(6))
def test_joiners_give_what_they_give_alone(seeded, alone, order):
    """Everybody arrives at a random step of a running batch, in a random order."""
    generator = random.Random(order)
    arrivals = generator.sample(range(1, 4), 3)
    steps = {arrival: generator.randrange(8) for arrival in arrivals}
    results: dict[int, object] = {}

    def before_step(session, index):
        for arrival in arrivals:
            if steps[arrival] == index:
                prepared = seeded.prepare(request(SOME[arrival]))
                assert session.admit_request(prepared, arrival, 100 + arrival) is AdmitDecision.ADMITTED
        for taken, result in session.take_completed_at_or_above(1).items():
            results[taken] = outcome(session.materialize_result(result))

    def run():
        response = LLMGenerationResponse()
        prepared = seeded.prepare(request(SOME[0]))
        generation = seeded.rank.begin_generation(prepared, response)
        session = GenerationSession(seeded.rank, generation)
        session.prime_from_prefill()
        index = 0
        while not session.finished() or index <= max(steps.values()):
            before_step(session, index)
            session.advance()
            index += 1
        before_step(session, -1)
        assert session.resident_count() == 0
        assert seeded.rank.finish_generation(generation, prepared, response)
        results[0] = outcome(response)

    run()
    assert [results[index] for index in range(4)] == alone


def test_a_joiner_runs_its_prompt_in_chunks_while_others_decode(scripted):
    steps_until_text = []
    channel = StreamChannel()

    def before_step(session, index):
        if index == 2:
            prepared = scripted.prepare(request("x" * 60, channels=[channel]))
            assert session.admit_request(prepared, 7, 70) is AdmitDecision.ADMITTED
            assert session.resident_count() == 2
        if index > 2 and channel._queue:
            steps_until_text.append(index)

    stepped(scripted, request("hi"), before_step)
    prompt = len(scripted.prepare(request("x" * 60)).pre_tokenized_input_ids[0])
    # One chunk per step; the first character has two bytes, so its text comes one step after the first token.
    assert steps_until_text[0] == 2 + -(-prompt // 8) + 1
    assert drain(channel)[-1].finish_reason is FinishReason.END_ID


def test_a_full_batch_has_no_capacity_and_changes_nothing(seeded):
    def before_step(session, index):
        if index == 0:
            before = session.resident_count()
            channel = StreamChannel()
            assert session.admit_request(seeded.prepare(request("more", channels=[channel])), 9, 90) is (
                AdmitDecision.NO_CAPACITY
            )
            assert session.resident_count() == before and not channel.attached

    stepped(seeded, request(*[item(str(index), max_generate_length=9) for index in range(4)]), before_step)


@pytest.mark.parametrize(
    ("arriving", "index", "request_id", "code"),
    [
        (lambda runtime: runtime.prepare(request("a", "b")), 5, 50, RefusalCode.BAD_REQUEST),
        (lambda runtime: request("unprepared"), 5, 50, RefusalCode.UNPREPARED),
        (lambda runtime: runtime.prepare(request("index in use")), 0, 50, RefusalCode.BAD_REQUEST),
        (lambda runtime: runtime.prepare(request("id in use")), 5, 1, RefusalCode.BAD_REQUEST),
        (lambda runtime: request("x", pre_tokenized_input_ids=[[1] * 2000]), 5, 50, RefusalCode.INPUT_TOO_LONG),
        (lambda runtime: runtime.prepare(request("x", lora_weights_name="no")), 5, 50, RefusalCode.UNKNOWN_ADAPTER),
    ],
    ids=["two sequences", "unprepared", "index", "request id", "too long", "adapter"],
)
def test_refused_arrivals_leave_the_batch_as_it_was(seeded, alone, arriving, index, request_id, code):
    def before_step(session, step):
        if step == 1:
            with pytest.raises(RequestError) as refused:
                session.admit_request(arriving(seeded), index, request_id)
            assert refused.value.code is code
            assert session.resident_count() == 1

    assert outcome(stepped(seeded, request(SOME[3]), before_step)) == alone[3]


def test_a_seed_object_joins_with_its_own_settings(seeded, alone):
    entry = SOME[1]
    ids = tuple(seeded.prepare(request(entry)).pre_tokenized_input_ids[0])
    seed = SlotSeed(ids, 3, DRAWN, 12, 40, stop_strings=entry.stop_strings)
    results = {}

    def before_step(session, index):
        if index == 1:
            assert session.admit_sequence(seed) is AdmitDecision.ADMITTED
        results.update(session.take_completed_at_or_above(1))
        for index, result in list(results.items()):
            assert result.request_id == index + 1
            assert outcome(session.materialize_result(result)) == alone[1]

    stepped(seeded, request(SOME[3]), before_step)
    assert list(results) == [3]


def test_the_hook_runs_before_every_step_and_once_after(scripted):
    rounds = []
    answer_length = len(answer(scripted, request("hi")).output_ids[0])
    response = LLMGenerationResponse()
    assert scripted.handle_request(request("hi"), response, boundary_hook=lambda b: rounds.append(b.resident_count()))
    assert rounds == [1] * (answer_length - 1) + [0]


def test_two_ranks_agree_on_every_token_and_cancel(tmp_path_factory):
    """Two runtimes in lockstep: the second one takes ids and cancellations from the first, whatever it sees itself."""
    box: list[list[int]] = []
    ids = []
    runtimes = [
        fake_runtime(tmp_path_factory.mktemp("ranks") / "engine", FakeScript(mode=FakeMode.SEEDED)) for _ in range(2)
    ]
    channel = StreamChannel()

    def send(values):
        box.append(list(values))
        if len(box) == 8:
            channel.cancel()
        return True

    def receive(values):
        values[:] = box.pop(0)
        return True

    wild = SamplingParameters(temperature=20.0)
    entries = [item("hi", sampling=wild, sampling_seed=seed, max_generate_length=20) for seed in (0, 1)]
    left_alone = [answer(runtime, request(entry)) for runtime, entry in zip(runtimes, entries, strict=True)]
    assert left_alone[0].output_ids[0][0] != left_alone[1].output_ids[0][0]  # so that agreeing is seen
    for rank, (runtime, entry) in enumerate(zip(runtimes, entries, strict=True)):
        prepared = runtime.prepare(request(entry, channels=[channel if rank == 0 else None]))
        response = LLMGenerationResponse()
        assert runtime.rank.handle_request(
            prepared, response, parallel_rank=rank, token_broadcast=send if rank == 0 else receive
        )
        ids.append(outcome(response)[::2])
        runtime.close()
    assert ids[0] == ids[1] and ids[0][1] is FinishReason.CANCELLED and box == []


def test_a_hook_may_admit_after_the_last_step(scripted):
    taken = {}

    def hook(boundary):
        if boundary.resident_count() == 0 and not taken:
            taken[7] = None
            assert boundary.admit_request(scripted.prepare(request("more")), 7, 70) is AdmitDecision.ADMITTED
        taken.update(boundary.take_completed_at_or_above(1))

    response = LLMGenerationResponse()
    assert scripted.handle_request(request("hi", max_generate_length=2), response, boundary_hook=hook)
    assert taken[7].finish_reason is FinishReason.END_ID and len(response.output_ids) == 1


def test_ignore_eos_and_bias_and_seed_order(seeded, scripted):
    response = answer(scripted, request(item("hi", ignore_eos=True, max_generate_length=150)))
    assert len(response.output_ids[0]) == 150 and response.finish_reasons == [FinishReason.LENGTH]
    response = answer(scripted, request(item("hi", logit_bias={65: 100.0}, max_generate_length=4)))
    assert response.output_texts == ["AAAA"]
    by_item = answer(seeded, request(item("x", sampling=DRAWN, sampling_seed=5), sampling_seed=6))
    by_batch = answer(seeded, request(item("x", sampling=DRAWN), sampling_seed=5))
    default = answer(seeded, request(item("x", sampling=DRAWN)))
    assert by_item.output_ids == by_batch.output_ids != default.output_ids
    assert answer(seeded, request(item("x", sampling=DRAWN))).output_ids == default.output_ids


def test_thinking_mutes_secondary_ends(tmp_path):
    """Without markers in the tokenizer the first token ends thinking, so every end id counts."""
    with fake_runtime(tmp_path / "engine", FakeScript(answers=["ab"])) as runtime:
        assert answer(runtime, request("hi", enable_thinking=True)).finish_reasons == [FinishReason.END_ID]


def test_misuse_raises(scripted):
    prepared = scripted.prepare(request("hi", max_generate_length=3))
    response = LLMGenerationResponse()
    generation = scripted.rank.begin_generation(prepared, response)
    session = GenerationSession(scripted.rank, generation)
    with pytest.raises(MisuseError, match="prime_from_prefill"):
        session.advance()
    with pytest.raises(MisuseError, match="before prime_from_prefill"):
        session.admit_request(prepared, 1, 2)
    session.prime_from_prefill()
    with pytest.raises(MisuseError, match="twice"):
        session.prime_from_prefill()
    assert not scripted.rank.finish_generation(generation, prepared, response)  # still running
    assert scripted.rank.last_refusal.code is RefusalCode.BUSY
    with pytest.raises(MisuseError, match="closed"):
        session.advance()
    with pytest.raises(MisuseError, match="not open"):
        scripted.rank.finish_generation(generation, prepared, response)
    assert answer(scripted, request("hi")).output_texts == [STR_1]
