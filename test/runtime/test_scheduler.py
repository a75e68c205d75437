from __future__ import annotations

import pytest
from runtime_helpers import WAIT, answer, check_stream, drain, fake_runtime, item, outcome, request
from scheduler_bench import SLOW, Bench

from edgellm_ros.backends.fake import FakeMode, FakeScript
from edgellm_ros.errors import EdgeLLMError, InputTooLongError, RefusalCode, SubmitError
from edgellm_ros.runtime.request import FinishReason, LLMGenerationResponse, SamplingParameters
from edgellm_ros.runtime.scheduler import RequestEngine, RequestEngineConfig, ShutdownMode
from edgellm_ros.runtime.streaming import StreamChannel

DRAWN = SamplingParameters(temperature=1.3, top_k=40)


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
