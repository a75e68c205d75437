from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest
from bridge_bench import CANCELLED, STOPPED, BridgeBench, settings
from scripted_host import ScriptedHost

from edgellm_ros.errors import InputTooLongError
from edgellm_ros.ros.prompt_request import RequestState
from edgellm_ros.runtime.request import FinishReason


@pytest.fixture
def bench() -> Iterator[BridgeBench]:
    bench = BridgeBench()
    yield bench
    bench.bridge.stop(STOPPED)
    assert not [thread for thread in threading.enumerate() if thread.name == "edgellm-publish"]


class TestBusy:
    """``prompt.on_busy`` with one request running."""

    def test_queue_answers_in_order_and_refuses_when_full(self, bench: BridgeBench) -> None:
        bench.start()
        for number in range(4):
            bench.bridge.offer(f"p{number}", settings(prompt__queue_size=2))
            bench.running(0)
        assert bench.codes() == ["queue_full"]
        for number in range(3):
            bench.running(number).end(text=f"a{number}")
        bench.wait_reports(4)
        assert [handle.prompt for handle in bench.host.handles] == ["p0", "p1", "p2"]
        assert bench.host.most_at_once == 1

    def test_reject_refuses_and_leaves_the_running_one_alone(self, bench: BridgeBench) -> None:
        bench.start()
        bench.bridge.offer("p0", settings(prompt__on_busy="reject"))
        bench.running(0)
        bench.bridge.offer("p1", settings(prompt__on_busy="reject"))
        assert bench.codes() == ["busy"]
        bench.running(0).end(text="a")
        bench.wait_reports(2)
        assert bench.codes() == ["busy", ""]

    def test_replace_ends_the_running_and_the_waiting_ones(self, bench: BridgeBench) -> None:
        bench.start()
        bench.bridge.offer("p0", settings())
        bench.running(0).push("half")
        bench.bridge.offer("p1", settings())
        bench.bridge.offer("p2", settings(prompt__on_busy="replace"))
        assert bench.running(1).prompt == "p2"
        bench.running(1).end(text="a2")
        bench.wait_reports(3)
        assert sorted(bench.codes()) == ["", "superseded", "superseded"]
        assert {report.finish_reason for report in bench.outputs.reports if report.refusal} == {FinishReason.CANCELLED}

    def test_drop_oldest_drops_the_one_that_waited_longest(self, bench: BridgeBench) -> None:
        bench.start()
        for number in range(4):
            bench.bridge.offer(f"p{number}", settings(prompt__queue_size=2, prompt__on_busy="drop_oldest"))
            bench.running(0)
        assert bench.codes() == ["queue_full"] and bench.outputs.reports[0].finish_reason is FinishReason.CANCELLED
        for number in range(3):
            bench.running(number).end()
        bench.wait_reports(4)
        assert [handle.prompt for handle in bench.host.handles] == ["p0", "p2", "p3"]


def test_a_request_keeps_the_settings_of_its_arrival(bench: BridgeBench) -> None:
    bench.start()
    bench.bridge.offer("p0", settings(generation__temperature=0.1))
    bench.bridge.offer("p1", settings(generation__temperature=0.2, generation__stop=["x"]))
    bench.running(0).end()
    bench.running(1).end()
    bench.wait_reports(2)
    assert [handle.request.sampling.temperature for handle in bench.host.handles] == [0.1, 0.2]
    assert bench.host.handles[1].request.requests[0].stop_strings == ("x",)
    assert [dict(report.changed_settings) for report in bench.outputs.reports] == [
        {"generation.temperature": 0.1},
        {"generation.temperature": 0.2, "generation.stop": ("x",)},
    ]


def test_history_gives_earlier_turns_and_a_reset_forgets_the_running_one_too(bench: BridgeBench) -> None:
    bench.start()
    remembering = settings(prompt__history_turns=1, generation__system_prompt="Be brief.")
    for number in range(2):
        bench.bridge.offer(f"p{number}", remembering)
        bench.running(number).end(text=f"a{number}")
        bench.wait_reports(number + 1)
    bench.bridge.offer("p2", remembering)
    contents = [message.content for message in bench.running(2).request.requests[0].messages]
    assert contents == ["Be brief.", "p1", "a1", "p2"]
    bench.history.clear()
    bench.running(2).end(text="late")
    bench.wait_reports(3)
    assert len(bench.history) == 0
    assert [report.history_turns for report in bench.outputs.reports] == [0, 1, 1]


@pytest.mark.parametrize(
    ("overflow", "codes", "dropped"), [("reject", "input_too_long", 0), ("truncate_history", "", 2)]
)
def test_history_that_does_not_fit_is_refused_or_shortened(
    bench: BridgeBench, overflow: str, codes: str, dropped: int
) -> None:
    host = bench.start(ScriptedHost("ok"))
    for number in range(3):
        bench.bridge.offer(f"p{number}", settings())
        bench.wait_reports(number + 1)
    plain_submit = host.submit

    def submit(request, channel):
        if len(request.requests[0].messages) > 3:
            raise InputTooLongError("too long")
        return plain_submit(request, channel)

    host.submit = submit  # type: ignore[method-assign]
    bench.bridge.offer("p3", settings(prompt__history_turns=3, prompt__overflow=overflow))
    bench.wait_reports(4)
    report = bench.outputs.reports[-1]
    assert bench.codes()[-1] == codes and report.history_turns_dropped == dropped


@pytest.mark.parametrize("seed", range(4))
def test_every_request_ends_exactly_once_whatever_happens(bench: BridgeBench, seed: int) -> None:
    """Prompts of all policies, cancels, restarts and engine ends at random times, from three threads."""
    rng = random.Random(seed)
    bench.start()
    offered = 80
    finished = threading.Event()

    def engine() -> None:
        engine_rng, answered = random.Random(seed + 1000), 0
        while not finished.is_set():
            for handle in bench.host.handles[answered:]:
                for _ in range(engine_rng.randrange(3)):
                    handle.push("x")
                if not handle.done():
                    handle.end(engine_rng.choice([FinishReason.END_ID, FinishReason.ERROR, FinishReason.LENGTH]))
                answered += 1
            time.sleep(engine_rng.random() * 0.002)

    def canceller() -> None:
        cancel_rng = random.Random(seed + 2000)
        while not finished.is_set():
            bench.bridge.cancel_all(CANCELLED)
            time.sleep(cancel_rng.random() * 0.01)

    threads = [threading.Thread(target=target) for target in (engine, canceller)]
    for thread in threads:
        thread.start()
    requests = []
    for number in range(offered):
        if number % 20 == 19:
            bench.bridge.stop(STOPPED)
            bench.start()
        policy = rng.choice(["queue", "replace", "reject", "drop_oldest"])
        requests.append(bench.bridge.offer(f"p{number}", settings(prompt__on_busy=policy, prompt__queue_size=2)))
        time.sleep(rng.random() * 0.003)
    bench.wait_reports(offered)
    finished.set()
    for thread in threads:
        thread.join()
    assert sorted(report.request_id for report in bench.outputs.reports) == sorted(r.request_id for r in requests)
    assert all(request.state is RequestState.ENDED for request in requests)
    assert len(bench.outputs.of("response")) == offered
    assert bench.host.most_at_once == 1
    values = bench.counters.values()
    assert values.received == offered == values.answered + sum(values.refused.values())
