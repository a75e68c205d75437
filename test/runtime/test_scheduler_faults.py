"""Engines that fail or hang under a scheduler: who is told what, and that the next is served."""

from __future__ import annotations

import pytest
from runtime_helpers import WAIT, check_stream, drain, request
from scheduler_bench import SLOW, until

from edgellm_ros.backends.fake import FakeScript, Fault
from edgellm_ros.errors import EdgeLLMError, RefusalCode, StepTimeoutError, SubmitError
from edgellm_ros.runtime.request import FinishReason
from edgellm_ros.runtime.scheduler import ShutdownMode
from edgellm_ros.runtime.streaming import StreamChannel
from edgellm_ros.runtime.watchdog import StepWatchdog


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
