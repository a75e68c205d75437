"""Who waits: a full queue, what is refused before it, and cancelling from there."""

from __future__ import annotations

import random
import threading
import time

import pytest
from runtime_helpers import WAIT, check_stream, drain, request
from scheduler_bench import SLOW, until

from edgellm_ros.backends.fake import FakeMode, FakeScript, Fault
from edgellm_ros.errors import RefusalCode, RequestError, SubmitError
from edgellm_ros.runtime.request import FinishReason, SamplingParameters
from edgellm_ros.runtime.streaming import StreamChannel

DRAWN = SamplingParameters(temperature=1.3, top_k=40)


def test_a_full_queue_refuses_and_recovers(bench):
    made = bench(SLOW, max_pending_requests=3)
    running = made.engine.submit(request("hi"))
    until(lambda: made.engine.running == 1)
    waiting = [made.engine.submit(request("hi", max_generate_length=1)) for _ in range(3)]
    with pytest.raises(SubmitError, match="3 requests wait") as refused:
        made.engine.submit(request("hi"))
    assert refused.value.code is RefusalCode.QUEUE_FULL
    assert made.engine.pending == 3 and made.engine.metrics().refused == 1
    for handle in (running, *waiting):
        assert handle.get(WAIT).finish_reasons[0] in (FinishReason.END_ID, FinishReason.LENGTH)
    assert made.engine.submit(request("hi")).get(WAIT)


def test_a_flood_during_one_step_is_refused(bench):
    script = FakeScript(answers=["abc"], fault=Fault.HANG, fault_step=1)
    made = bench(script, command_queue_capacity=2)
    made.engine.submit(request("hi"))
    until(made.runtime.rank.backend.hanging.is_set)
    made.engine.submit(request("hi"))
    made.engine.submit(request("hi"))
    with pytest.raises(SubmitError):
        made.engine.submit(request("hi"))


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (lambda: request("a", "b"), RefusalCode.BAD_REQUEST),
        (lambda: request(" "), RefusalCode.EMPTY_PROMPT),
        (lambda: request("hi", lora_weights_name="x"), RefusalCode.UNKNOWN_ADAPTER),
        (lambda: request("x" * 5000), RefusalCode.INPUT_TOO_LONG),
        (lambda: request("hi", pre_tokenized_input_ids=[[10**6]]), RefusalCode.BAD_REQUEST),
    ],
    ids=["two sequences", "blank", "adapter", "too long", "foreign id"],
)
def test_bad_requests_are_refused_at_submission_and_good_ones_answered(bench, asked, code):
    engine = bench(FakeScript(answers=["ok"])).engine
    channel = StreamChannel()
    with pytest.raises(RequestError) as refused:
        engine.submit(asked(), channel)
    assert refused.value.code is code
    assert not channel.attached and not channel.finished
    assert engine.submit(request("hi"), channel).get(WAIT).output_texts == ["ok"]


def test_a_channel_given_twice_ends_once(bench):
    engine = bench(SLOW).engine
    channel = StreamChannel()
    engine.submit(request("before them"))
    first, second = engine.submit(request("hi"), channel), engine.submit(request("hi"), channel)
    check_stream(list(channel), first.get(WAIT))
    with pytest.raises(RequestError) as refused:
        second.get(WAIT)
    assert refused.value.code is RefusalCode.BAD_CHANNEL and second.refusal.code is RefusalCode.BAD_CHANNEL


def test_cancel_while_waiting_ends_at_once(bench):
    engine = bench(SLOW).engine
    first = engine.submit(request("hi"))
    until(lambda: engine.running == 1)
    channel = StreamChannel()
    second = engine.submit(request("hi"), channel)
    second.cancel()
    assert second.done() and not first.done() and engine.pending == 0
    response = second.get()
    check_stream(drain(channel), response)
    assert response.finish_reasons == [FinishReason.CANCELLED] and response.output_ids == [[]]
    assert not channel.attached
    first.cancel()
    first.cancel()
    assert first.get(WAIT).finish_reasons == [FinishReason.CANCELLED]
    assert engine.metrics().cancelled == 2


@pytest.mark.parametrize("batch", [1, 3])
def test_cancel_while_running_keeps_the_text_so_far(bench, batch):
    engine = bench(SLOW, max_batch_size=batch).engine
    channel = StreamChannel()
    handle = engine.submit(request("hi"), channel)
    others = [engine.submit(request("hi")) for _ in range(batch - 1)]
    first = channel.wait_pop(WAIT)
    handle.cancel()
    response = handle.get(WAIT)
    check_stream([first, *channel], response)
    assert response.finish_reasons == [FinishReason.CANCELLED]
    assert "abcdefghijklmnopqrstuvwxyz".startswith(response.output_texts[0])
    for other in others:
        assert other.get(WAIT).output_texts == ["abcdefghijklmnopqrstuvwxyz"]


def test_cancelling_the_second_then_the_first_ends_each_once(bench):
    engine = bench(SLOW).engine
    ended = []
    first, second = (engine.submit(request("hi")) for _ in range(2))
    for handle in (first, second):
        handle.add_done_callback(lambda done: ended.append(done.request_id))
    until(lambda: engine.running == 1)
    second.cancel()
    first.cancel()
    first.get(WAIT)
    assert ended == [second.request_id, first.request_id]


@pytest.mark.parametrize("batch", [1, 4])
def test_a_hundred_random_submit_and_cancel_pairs(bench, batch):
    made = bench(FakeScript(mode=FakeMode.SEEDED, step_latency=0.0005), max_batch_size=batch)
    generator = random.Random(batch)
    ends: dict[int, int] = {}
    timers, pairs = [], []
    for index in range(100):
        channel = StreamChannel(generator.choice([1, 1, 5]))
        handle = made.engine.submit(request(f"p{index}", max_generate_length=generator.randrange(1, 30)), channel)
        handle.add_done_callback(lambda done: ends.__setitem__(done.request_id, ends.get(done.request_id, 0) + 1))
        pairs.append((handle, channel))
        timer = threading.Timer(generator.random() * 0.3, handle.cancel)
        timer.start()
        timers.append(timer)
        if generator.random() < 0.3:
            time.sleep(0.002)
    for handle, channel in pairs:
        response = handle.get(WAIT)
        check_stream(drain(channel), response)
        assert response.finish_reasons[0] in (FinishReason.CANCELLED, FinishReason.END_ID, FinishReason.LENGTH)
    for timer in timers:
        timer.join(WAIT)
    assert list(ends.values()) == [1] * 100
    metrics = made.engine.metrics()
    assert metrics.submitted == 100 == metrics.completed + metrics.cancelled and metrics.failed == 0
    assert made.engine.pending == made.engine.running == 0
    assert made.engine.submit(request("after")).get(WAIT)
