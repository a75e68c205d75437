from __future__ import annotations

import random
import threading
import time

import pytest
from runtime_helpers import WAIT, answer, check_stream, drain, edgellm_threads, fake_runtime, item, outcome, request

from edgellm_ros.backends.fake import FakeMode, FakeScript, Fault
from edgellm_ros.errors import EdgeLLMError, InputTooLongError, RefusalCode, RequestError, StepTimeoutError, SubmitError
from edgellm_ros.runtime.request import FinishReason, LLMGenerationResponse, SamplingParameters
from edgellm_ros.runtime.scheduler import RequestEngine, RequestEngineConfig, ShutdownMode
from edgellm_ros.runtime.streaming import StreamChannel
from edgellm_ros.runtime.watchdog import StepWatchdog

DRAWN = SamplingParameters(temperature=1.3, top_k=40)


class Bench:
    """A runtime and an engine on it, both closed at the end."""

    def __init__(self, path, script=None, limits=None, **config):
        self.runtime = fake_runtime(path, script, **(limits or {}))
        self.engine = RequestEngine(self.runtime, RequestEngineConfig(**config))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.runtime.rank.backend.release()
        assert self.engine.shutdown(ShutdownMode.CANCEL, WAIT)
        self.runtime.close()


@pytest.fixture
def bench(tmp_path):
    before = edgellm_threads()
    made = []

    def make(script=None, limits=None, **config):
        made.append(Bench(tmp_path / f"engine{len(made)}", script, limits, **config))
        return made[-1]

    yield make
    for one in made:
        one.__exit__()
    assert edgellm_threads() <= before


def until(condition) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)


SLOW = FakeScript(answers=["abcdefghijklmnopqrstuvwxyz"], step_latency=0.01)


def test_the_scheduled_run_gives_what_the_blocking_run_gives(bench):
    one = bench(FakeScript(mode=FakeMode.SEEDED))
    other = bench(FakeScript(mode=FakeMode.SEEDED), max_batch_size=4)
    asked = [
        request(item(f"number {index}", sampling=DRAWN, sampling_seed=index, stop_strings=("th",)), num_logprobs=2)
        for index in range(8)
    ]
    with fake_runtime_like(one) as plain:
        expected = [answer(plain, entry) for entry in asked]
    for engine in (one.engine, other.engine):
        channels = [StreamChannel() for _ in asked]
        handles = [engine.submit(entry, channel) for entry, channel in zip(asked, channels, strict=True)]
        for handle, channel, wanted in zip(handles, channels, expected, strict=True):
            response = handle.get(WAIT)
            assert outcome(response) == outcome(wanted) and response.logprobs == wanted.logprobs
            check_stream(drain(channel), response)
            assert handle.refusal is None and handle.done()
    assert other.engine.metrics().admitted_mid_flight > 0
    assert other.engine.metrics().completed == 8


def fake_runtime_like(bench_: Bench):
    from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime

    return LLMInferenceRuntime(bench_.runtime.rank.directory.path)


def test_first_come_first_served(bench):
    engine = bench(SLOW).engine
    ended = []
    handles = [engine.submit(request("hi", max_generate_length=3)) for _ in range(6)]
    for handle in handles:
        handle.add_done_callback(lambda done: ended.append(done.request_id))
    for handle in handles:
        handle.get(WAIT)
    assert ended == [handle.request_id for handle in handles] == sorted(ended)
    starts = [handle.get().times[0] for handle in handles]
    assert all(times.queued <= times.prefill_start for times in starts)
    assert engine.metrics().queue_latency_count == 6


def test_together_is_faster_than_one_after_another(bench):
    """Four rows share steps: the engine runs far fewer of them than there are tokens."""
    made = bench(FakeScript(answers=["abcdefghij"], step_latency=0.005), max_batch_size=4)
    blocker = made.engine.submit(request("start"))
    for handle in [made.engine.submit(request("hi")) for _ in range(7)]:
        assert handle.get(WAIT).output_texts == ["abcdefghij"]
    blocker.get(WAIT)
    metrics = made.runtime.rank.get_generation_metrics()
    assert metrics.generated_tokens == 8 * 11 and metrics.steps < 60


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


def test_drain_finishes_everything(bench):
    made = bench(SLOW)
    handles = [made.engine.submit(request("hi", max_generate_length=4)) for _ in range(3)]
    assert made.engine.shutdown(ShutdownMode.DRAIN, WAIT)
    assert [handle.get(0).finish_reasons for handle in handles] == [[FinishReason.LENGTH]] * 3
    with pytest.raises(SubmitError) as refused:
        made.engine.submit(request("hi"))
    assert refused.value.code is RefusalCode.SHUTTING_DOWN
    assert not made.engine.healthy
    assert made.engine.shutdown()


def test_cancelling_shutdown_ends_everything_at_once(bench):
    made = bench(FakeScript(answers=["x" * 2000], step_latency=0.01), max_batch_size=2)
    channels = [StreamChannel() for _ in range(5)]
    handles = [made.engine.submit(request("hi", max_generate_length=2000), channel) for channel in channels]
    channels[0].wait_pop(WAIT)
    assert made.engine.shutdown(ShutdownMode.CANCEL, WAIT)
    for handle, channel in zip(handles, channels, strict=True):
        assert handle.get(0).finish_reasons == [FinishReason.CANCELLED]
        assert drain(channel)[-1].finished


@pytest.mark.parametrize("fault", [Fault.RAISE, Fault.NAN, Fault.CRASH, Fault.OUT_OF_MEMORY])
@pytest.mark.parametrize("step", [0, 3])
def test_a_failing_engine_ends_its_batch_and_serves_the_next(bench, fault, step):
    engine = bench(FakeScript(answers=["abcdef"], fault=fault, fault_step=step), max_batch_size=2).engine
    channel = StreamChannel()
    handle = engine.submit(request("hi"), channel)
    response = handle.get(WAIT)
    check_stream(drain(channel), response)
    assert response.finish_reasons == [FinishReason.ERROR]
    assert response.output_texts == ["abcdef"[:step]]
    assert handle.refusal.code is RefusalCode.ENGINE_FAILED and handle.refusal.message == response.messages[0]
    assert engine.submit(request("hi")).get(WAIT).output_texts == ["abcdef"]
    assert engine.metrics().failed == 1 and engine.healthy


def test_a_fault_of_the_runtime_itself_ends_all_and_serves_the_next(bench, monkeypatch):
    made = bench(SLOW, max_batch_size=2)
    channels = [StreamChannel(), StreamChannel()]
    handles = [made.engine.submit(request("hi"), channel) for channel in channels]
    channels[1].wait_pop(WAIT)
    strategy = made.runtime.rank._strategy
    monkeypatch.setattr(strategy, "decode_step", lambda sequences: 1 / 0)
    for handle in handles:
        assert handle.get(WAIT).finish_reasons == [FinishReason.ERROR]
        assert "ZeroDivisionError" in handle.refusal.message
    for channel in channels:
        assert drain(channel)[-1].finished
    monkeypatch.undo()
    assert made.engine.submit(request("hi")).get(WAIT).finish_reasons == [FinishReason.END_ID]


@pytest.mark.parametrize("step", [0, 3], ids=["prompt", "decode"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_hanging_step_ends_its_requests_at_once_and_recovers(bench, step, batch):
    script = FakeScript(answers=["abcdef"], fault=Fault.HANG, fault_step=step)
    made = bench(script, max_batch_size=batch, step_timeout=1.0)
    backend = made.runtime.rank.backend
    channel = StreamChannel(interval=4)
    handle = made.engine.submit(request("hi"), channel)
    until(backend.hanging.is_set)
    queued = made.engine.submit(request("hi"))
    response = handle.get(WAIT)
    assert backend.hanging.is_set()  # it still hangs
    check_stream(drain(channel), response)
    assert response.finish_reasons == [FinishReason.ERROR]
    assert response.output_texts == ["abcdef"[:step]]
    assert handle.refusal.code is RefusalCode.STEP_TIMEOUT
    assert not made.engine.healthy
    with pytest.raises(SubmitError) as refused:
        made.engine.submit(request("hi"))
    assert refused.value.code is RefusalCode.STEP_TIMEOUT
    backend.release()
    assert queued.get(WAIT).output_texts == ["abcdef"]
    until(lambda: made.engine.healthy)
    assert made.engine.submit(request("hi")).get(WAIT).output_texts == ["abcdef"]
    assert made.engine.metrics().step_timeouts == 1 and made.engine.metrics().failed == 1
    assert drain(channel) == []


def test_a_step_that_never_returns_ends_the_waiting_too(bench):
    made = bench(FakeScript(answers=["abcdef"], fault=Fault.HANG, fault_step=1), step_timeout=0.7)
    first = made.engine.submit(request("hi"))
    until(made.runtime.rank.backend.hanging.is_set)
    channel = StreamChannel()
    waiting = made.engine.submit(request("hi"), channel)
    for handle in (first, waiting):
        assert handle.get(WAIT).finish_reasons == [FinishReason.ERROR]
        assert handle.refusal.code is RefusalCode.STEP_TIMEOUT
    assert drain(channel)[-1].finished
    assert not made.engine.shutdown(ShutdownMode.CANCEL, 0.1)  # the thread is still inside


def test_a_call_that_was_given_up_raises_when_it_returns():
    """Whatever it brings, nobody waits for it any more."""
    stages: list[int] = []
    watchdog = StepWatchdog(0.02, stages.append)
    try:
        watchdog.step_started()
        until(lambda: stages == [1, 2])
        with pytest.raises(StepTimeoutError):
            watchdog.step_ended()
        assert not watchdog.hanging
    finally:
        watchdog.close()


def test_shutdown_of_a_hanging_engine_without_a_watchdog_leaves_nobody_waiting(bench):
    made = bench(FakeScript(answers=["abcdef"], fault=Fault.HANG, fault_step=1))
    channels = [StreamChannel(), StreamChannel()]
    handles = [made.engine.submit(request("hi"), channel) for channel in channels]
    until(made.runtime.rank.backend.hanging.is_set)
    assert not made.engine.shutdown(ShutdownMode.DRAIN, 0.05)
    for handle in handles:
        with pytest.raises(EdgeLLMError) as ended:
            handle.get(WAIT)
        assert ended.value.code is RefusalCode.SHUTTING_DOWN
    for channel in channels:
        assert [chunk.finished for chunk in channel].count(True) == 1


def test_get_waits_no_longer_than_asked(bench):
    handle = bench(SLOW).engine.submit(request("hi"))
    with pytest.raises(TimeoutError):
        handle.get(0.01)
    assert handle.get(WAIT)


def test_the_blocking_helper_leaves_the_response_alone_on_failure(bench):
    engine = bench(FakeScript(answers=["ok"])).engine
    response = LLMGenerationResponse(output_texts=["older"])
    assert not engine.handle_request(request(" "), response)
    assert engine.last_refusal.code is RefusalCode.EMPTY_PROMPT
    with pytest.raises(InputTooLongError):
        engine.handle_request(request("x" * 5000), response)
    assert response == LLMGenerationResponse(output_texts=["older"])
    assert engine.handle_request(request("hi"), response) and response.output_texts == ["ok"]


def test_handles_carry_what_a_report_needs(bench):
    engine = bench(FakeScript(answers=["ok"])).engine
    handle = engine.submit(request(item("a<|im_end|>b", sampling_seed=77)))
    assert handle.seed == 77 and handle.control_token_count == 1
    assert handle.get(WAIT).input_token_counts == [handle.prompt_token_count]


def test_a_failing_callback_hurts_nobody(bench):
    engine = bench(FakeScript(answers=["ok"])).engine
    handle = engine.submit(request("hi"))
    handle.add_done_callback(lambda done: 1 / 0) if not handle.done() else None
    assert handle.get(WAIT).output_texts == ["ok"]
    assert engine.submit(request("hi")).get(WAIT).output_texts == ["ok"]


def test_a_deadline_counts_from_the_start_of_work(bench):
    engine = bench(FakeScript(answers=SLOW.answers, step_latency=0.03)).engine
    first = engine.submit(request("hi"))
    second = engine.submit(request("hi", max_generate_length=2, deadline=0.6))
    assert first.get(WAIT).finish_reasons == [FinishReason.END_ID]
    assert second.get(WAIT).finish_reasons == [FinishReason.LENGTH]


@pytest.mark.parametrize(
    "fields",
    [{"max_batch_size": 0}, {"idle_wait": float("nan")}, {"step_timeout": -1}, {"max_pending_requests": True}],
)
def test_configurations_are_checked(fields):
    with pytest.raises(EdgeLLMError) as refused:
        RequestEngineConfig(**fields)
    assert refused.value.code is RefusalCode.BAD_PARAMETER


def test_more_rows_than_the_engine_has_are_refused(tmp_path):
    with fake_runtime(tmp_path / "engine", max_batch=2) as runtime, pytest.raises(EdgeLLMError, match="built for 2"):
        RequestEngine(runtime, RequestEngineConfig(max_batch_size=3))
