from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from bridge_bench import CANCELLED, STOPPED, BridgeBench, settings
from scripted_host import ScriptedHost, wait_for

from edgellm_ros.errors import RefusalCode, RequestError
from edgellm_ros.ros.prompt_request import RequestState
from edgellm_ros.runtime.request import FinishReason


@pytest.fixture
def bench() -> Iterator[BridgeBench]:
    bench = BridgeBench()
    yield bench
    bench.bridge.stop(STOPPED)
    assert not [thread for thread in threading.enumerate() if thread.name == "edgellm-publish"]


def test_pieces_come_as_they_are_made_and_the_whole_text_after_them(bench: BridgeBench) -> None:
    bench.start()
    bench.bridge.offer("hello", settings(generation__seed=7))
    handle = bench.running(0)
    handle.push("a")
    wait_for(lambda: bench.outputs.events == [("delta", "a")], "the first piece, while the request runs")
    handle.push("b")
    handle.end(FinishReason.LENGTH, "c")
    bench.wait_reports(1)
    kinds = [kind for kind, _ in bench.outputs.events]
    assert kinds[-2:] == ["response", "report"]
    (report,) = bench.outputs.reports
    assert "".join(bench.outputs.of("delta")) == "abc" == bench.outputs.of("response")[0]  # type: ignore[arg-type]
    assert (report.finish_reason, report.refusal, report.seed) == (FinishReason.LENGTH, None, 7)
    assert (report.first_delta, report.last_delta, report.delta_count) == (
        0,
        kinds.count("delta") - 1,
        kinds.count("delta"),
    )
    assert report.prompt is None and report.response is None
    assert handle.request.sampling_seed == 7


@pytest.mark.parametrize(
    ("prompt", "changes", "code"),
    [
        ("", {}, RefusalCode.EMPTY_PROMPT),
        (" \n\t", {}, RefusalCode.EMPTY_PROMPT),
        ("x" * 11, {"prompt__max_characters": 10}, RefusalCode.INPUT_TOO_LONG),
    ],
)
def test_a_prompt_that_cannot_be_answered_ends_at_once(
    bench: BridgeBench, prompt: str, changes: dict[str, object], code: RefusalCode
) -> None:
    bench.start()
    request = bench.bridge.offer(prompt, settings(**changes))
    assert request.state is RequestState.ENDED
    assert bench.outputs.of("response") == [""] and bench.codes() == [code.value]
    assert bench.outputs.reports[0].finish_reason is FinishReason.ERROR
    assert bench.counters.values().refused == {code.value: 1} and [refusal.code for refusal in bench.refusals] == [code]


def test_exactly_the_limit_of_characters_is_taken(bench: BridgeBench) -> None:
    bench.start(ScriptedHost("ok"))
    bench.bridge.offer("x" * 10, settings(prompt__max_characters=10))
    bench.wait_reports(1)
    assert bench.codes() == [""]


def test_a_refusal_of_the_engine_becomes_the_end_of_the_request(bench: BridgeBench) -> None:
    bench.start(ScriptedHost(refuse=RequestError("Control tokens.", RefusalCode.SPECIAL_TOKENS)))
    bench.bridge.offer("<|im_end|>", settings())
    bench.wait_reports(1)
    assert bench.codes() == ["special_tokens"] and bench.outputs.of("response") == [""]
    assert bench.outputs.reports[0].control_tokens == 1


@pytest.mark.parametrize(
    ("reason", "code"),
    [(FinishReason.DEADLINE, "deadline"), (FinishReason.ERROR, "engine_failed"), (FinishReason.CANCELLED, "cancelled")],
)
def test_an_answer_that_breaks_off_keeps_what_was_streamed(bench: BridgeBench, reason: FinishReason, code: str) -> None:
    bench.start()
    bench.bridge.offer("hello", settings())
    bench.running(0).push("half")
    bench.running(0).end(reason)
    bench.wait_reports(1)
    assert bench.codes() == [code]
    assert bench.outputs.of("response") == ["half"] and bench.outputs.reports[0].finish_reason is reason
    assert len(bench.history) == 0


def test_cancel_ends_running_and_waiting_requests(bench: BridgeBench) -> None:
    bench.start()
    for number in range(3):
        bench.bridge.offer(f"p{number}", settings())
        bench.running(0)
    bench.running(0).push("half")
    assert bench.bridge.cancel_all(CANCELLED) == (1, 2)
    bench.wait_reports(3)
    assert bench.codes() == ["cancelled"] * 3 and bench.bridge.cancel_all(CANCELLED)[1] == 0
    assert bench.outputs.of("response").count("half") == 1


def test_a_stopped_bridge_refuses_and_says_nothing_on_the_data_topic(bench: BridgeBench) -> None:
    bench.start()
    bench.bridge.offer("p0", settings())
    bench.running(0)
    bench.bridge.stop(STOPPED)
    assert bench.outputs.reports[0].refusal == STOPPED and bench.outputs.of("response") == [""]
    bench.bridge.offer("p1", settings())
    assert bench.codes() == ["not_active", "not_active"] and bench.outputs.of("response") == [""]


def test_an_engine_that_does_not_stop_is_given_up_in_time_and_told(bench: BridgeBench) -> None:
    bench.start(ScriptedHost(obey=False))
    bench.bridge.offer("p0", settings())
    bench.running(0).push("half")
    start = time.monotonic()
    bench.bridge.stop(STOPPED)
    assert time.monotonic() - start < 1.5
    assert bench.codes() == ["not_active"] and bench.outputs.of("response") == ["half"]
    bench.running(0).end(text="late")  # nobody may hear it
    assert len(bench.outputs.of("delta")) == 1


def test_no_prompt_is_taken_while_the_engine_holds_one_that_was_given_up(bench: BridgeBench) -> None:
    bench.start(ScriptedHost(obey=False))
    bench.bridge.offer("p0", settings())
    bench.running(0)
    bench.bridge.cancel_all(CANCELLED)
    bench.wait_reports(1)
    bench.bridge.offer("p1", settings())
    assert bench.codes() == ["cancelled", "step_timeout"] and "let go" in bench.bridge.engine_fault
    bench.running(0).end()
    assert bench.bridge.engine_fault == ""
    bench.bridge.offer("p2", settings())
    bench.running(1).end()
    bench.wait_reports(3)
    assert bench.codes()[-1] == ""


def test_activating_again_does_not_forget_what_the_same_engine_still_holds(bench: BridgeBench) -> None:
    host = bench.start(ScriptedHost(obey=False))
    bench.bridge.offer("p0", settings())
    bench.running(0)
    bench.bridge.stop(STOPPED)
    bench.start(host)
    bench.bridge.offer("p1", settings())
    assert bench.codes() == ["not_active", "step_timeout"]
    bench.bridge.stop(STOPPED)
    bench.start(ScriptedHost("fresh"))  # cleaned up and configured: another engine
    bench.bridge.offer("p2", settings())
    bench.wait_reports(3)
    assert bench.codes()[-1] == ""
    host.handles[0].end()


def test_a_worker_that_comes_back_late_leaves_the_next_request_alone(bench: BridgeBench) -> None:
    """A request that was given up while it was being prepared must not take the next one's place when it returns."""
    entered, leave = threading.Event(), threading.Event()
    slow = ScriptedHost()

    def count_control_tokens(text: str) -> int:
        entered.set()
        assert leave.wait(10.0)
        return 0

    slow.count_control_tokens = count_control_tokens  # type: ignore[method-assign]
    bench.start(slow)
    bench.bridge.offer("p0", settings())
    assert entered.wait(10.0)
    late = next(thread for thread in threading.enumerate() if thread.name == "edgellm-publish")
    bench.bridge.stop(STOPPED)
    bench.start(ScriptedHost())
    bench.bridge.offer("p1", settings())
    bench.running(0)
    leave.set()
    late.join(10.0)
    assert not late.is_alive()
    assert bench.bridge.cancel_all(CANCELLED) == (1, 0)
    bench.wait_reports(2)
    assert bench.codes() == ["not_active", "cancelled"]


def test_a_deadline_that_the_engine_does_not_keep_is_kept_for_it(bench: BridgeBench) -> None:
    bench.start(ScriptedHost(obey=False))
    bench.bridge.offer("p0", settings(generation__timeout=0.1))
    bench.running(0)
    bench.wait_reports(1)
    assert bench.codes() == ["deadline"] and bench.outputs.reports[0].finish_reason is FinishReason.DEADLINE
    bench.running(0).end()


def test_a_hung_engine_refuses_prompts(bench: BridgeBench) -> None:
    host = bench.start()
    host.healthy = False
    bench.bridge.offer("p0", settings())
    assert bench.codes() == ["step_timeout"]


def test_pieces_are_joined_when_they_come_faster_than_the_interval(bench: BridgeBench) -> None:
    bench.start()
    bench.bridge.offer("p0", settings(stream__min_interval=0.2))
    handle = bench.running(0)
    start = time.monotonic()
    while time.monotonic() < start + 0.5:
        handle.push("x")
        time.sleep(0.002)
    handle.end(text="!")
    bench.wait_reports(1)
    deltas = bench.outputs.of("delta")
    assert 2 <= len(deltas) <= 5 and deltas[-1].endswith("!")  # type: ignore[attr-defined]
    assert "".join(deltas) == bench.outputs.of("response")[0]  # type: ignore[arg-type]


def test_an_unexpected_failure_ends_the_request_and_not_the_worker(bench: BridgeBench) -> None:
    host = bench.start()

    def broken(request, channel):
        raise ZeroDivisionError("oops")

    host.submit = broken  # type: ignore[method-assign]
    bench.bridge.offer("p0", settings())
    bench.wait_reports(1)
    del host.submit  # type: ignore[attr-defined]
    bench.bridge.offer("p1", settings())
    bench.running(0).end()
    bench.wait_reports(2)
    assert bench.codes() == ["engine_failed", ""]


def test_text_is_in_the_report_only_when_asked_for(bench: BridgeBench) -> None:
    bench.start(ScriptedHost("ok"))
    bench.bridge.offer("secret", settings(report__include_text=True))
    bench.wait_reports(1)
    assert (bench.outputs.reports[0].prompt, bench.outputs.reports[0].response) == ("secret", "ok")


@pytest.mark.parametrize("include", [False, True])
def test_the_system_prompt_is_in_the_report_only_when_asked_for(bench: BridgeBench, include: bool) -> None:
    bench.start(ScriptedHost("ok"))
    bench.bridge.offer("p", settings(report__include_text=include, generation__system_prompt="secret"))
    bench.wait_reports(1)
    told = dict(bench.outputs.reports[0].pairs())["setting.generation.system_prompt"]
    assert told == ("secret" if include else "(6 characters)")


def test_a_wrong_join_of_pieces_is_counted(bench: BridgeBench) -> None:
    bench.start()
    bench.bridge.offer("p0", settings())
    bench.running(0).push("a")
    bench.running(0)._texts.append("not streamed")
    bench.running(0).end()
    bench.wait_reports(1)
    assert bench.counters.values().stream_mismatches == 1
