from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from lifecycle_msgs.msg import Transition
from node_bench import NodeBench
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_msgs.msg import String

from edgellm_ros.ros.client import pairs
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime

SLOW = {"fake.answer": "x" * 400, "fake.step_latency": 0.01}


@pytest.fixture
def slow(start_node: Callable[..., NodeBench]) -> NodeBench:
    """A node whose answers take 4 s unless somebody ends them."""
    return start_node(SLOW)


def running(bench: NodeBench, prompt: str = "long") -> None:
    """Start an answer and wait for its first piece."""
    before = len(bench.client.deltas)
    bench.client.ask(prompt)
    bench.wait(lambda: len(bench.client.deltas) > before, "the answer begins")


@pytest.mark.parametrize("way", ["topic", "service"])
def test_cancel_ends_all_requests_with_a_reason(slow: NodeBench, way: str) -> None:
    running(slow)
    slow.client.ask("waits")
    slow.wait(lambda: slow.node.bridge.load == (True, 1), "one waits")
    if way == "topic":
        slow.client.cancel()
    else:
        assert slow.trigger("cancel") == "Cancelled 1 running and 1 waiting requests."
    slow.wait(lambda: len(slow.client.reports) == 2 and len(slow.client.responses) == 2, "both end")
    assert [pairs(report)["refusal_code"] for report in slow.client.reports] == ["cancelled"] * 2
    assert [pairs(report)["finish_reason"] for report in slow.client.reports] == ["cancelled"] * 2
    assert slow.trigger("cancel") == "Cancelled 0 running and 0 waiting requests."


def test_a_reset_ends_what_runs_and_does_not_remember_it(slow: NodeBench) -> None:
    slow.set(prompt__history_turns=1)
    running(slow)
    assert slow.trigger("reset") == "Forgot 0 turns of history; cancelled 1 running and 0 waiting requests."
    slow.wait(lambda: len(slow.client.reports) == 1, "the running one ends")
    assert pairs(slow.client.reports[0])["refusal_code"] == "cancelled"
    slow.set(generation__max_tokens=2)
    assert slow.answer("hello")[1]["history_turns"] == "0"


@pytest.mark.parametrize(
    ("policy", "codes"),
    [
        ("queue", ["queue_full", "cancelled", "cancelled"]),
        ("drop_oldest", ["queue_full", "cancelled", "cancelled"]),
        ("reject", ["busy", "busy", "cancelled"]),
        ("replace", ["superseded", "superseded", "cancelled"]),
    ],
)
def test_a_busy_node_does_what_its_policy_says(slow: NodeBench, policy: str, codes: list[str]) -> None:
    slow.set(prompt__queue_size=1, prompt__on_busy=policy)
    running(slow)
    slow.client.ask("second")
    slow.wait(lambda: slow.node.counters.values().received == 2, "the second arrived")
    slow.client.ask("third")
    slow.wait(lambda: slow.node.counters.values().received == 3, "the third arrived")
    slow.client.cancel()
    slow.wait(lambda: len(slow.client.reports) == 3 and len(slow.client.responses) == 3, "all end")
    assert sorted(pairs(report)["refusal_code"] for report in slow.client.reports) == sorted(codes)


def test_a_refusal_does_not_come_between_the_pieces_of_an_answer(start_node: Callable[..., NodeBench]) -> None:
    bench = start_node({"fake.answer": "x" * 200, "fake.step_latency": 0.01, "prompt.on_busy": "reject"})
    running(bench)
    bench.client.ask("refused")
    bench.wait(lambda: len(bench.client.reports) == 1, "the report comes at once")
    assert pairs(bench.client.reports[0])["refusal_code"] == "busy" and bench.client.responses == []
    bench.wait(lambda: len(bench.client.responses) == 2, "the responses")
    assert bench.client.responses == ["x" * 200, ""]
    bench.wait(lambda: "".join(bench.client.deltas) == "x" * 200, "the pieces")


def test_a_running_request_keeps_its_settings_and_the_next_takes_the_new_ones(
    start_node: Callable[..., NodeBench],
) -> None:
    bench = start_node({"fake.answer": "x" * 60, "fake.step_latency": 0.01, "generation.seed": 1})
    running(bench)
    assert bench.set(generation__seed=2, generation__temperature=0.5) == ["", ""]
    bench.wait(lambda: len(bench.client.reports) == 1, "the first ends")
    _, second = bench.answer("next")
    first = pairs(bench.client.reports[0])
    assert (first["seed"], second["seed"]) == ("1", "2")
    assert "setting.generation.temperature" not in first and second["setting.generation.temperature"] == "0.5"


def test_parameters_are_answered_while_a_generation_runs(slow: NodeBench) -> None:
    running(slow)
    times = []
    for number in range(20):
        start = time.monotonic()
        assert slow.set(generation__max_tokens=100 + number) == [""]
        times.append(time.monotonic() - start)
    assert slow.node.bridge.load[0], "the generation still runs"
    assert sorted(times)[len(times) // 2] < 0.1


def test_a_read_only_parameter_names_the_transition_that_a_change_needs(slow: NodeBench) -> None:
    (reason,) = slow.set(engine__threads=1)
    assert "engine.threads" in reason and "is active" in reason and "deactivate and clean up" in reason
    assert slow.change(Transition.TRANSITION_DEACTIVATE)
    (reason,) = slow.set(engine__threads=1)
    assert "is inactive" in reason and "clean up the node" in reason
    assert slow.change(Transition.TRANSITION_CLEANUP)
    assert slow.set(engine__threads=1, fake__answer="short", fake__step_latency=0.0) == ["", "", ""]
    assert slow.change(Transition.TRANSITION_CONFIGURE) and slow.change(Transition.TRANSITION_ACTIVATE)
    assert slow.answer("hello")[0] == "short"


def test_a_paused_node_refuses_and_goes_on_when_enabled(slow: NodeBench) -> None:
    running(slow)
    assert "stopped 1 running" in slow.enable(False)
    slow.wait(lambda: len(slow.client.reports) == 1, "the running one ends")
    assert pairs(slow.client.reports[0])["refusal_code"] == "disabled"
    (report,) = slow.ask("hello")
    assert report["refusal_code"] == "disabled" and report["finish_reason"] == "error"
    slow.wait(lambda: "Paused" in slow.client.status.message, "the status says so")
    slow.enable(True)
    slow.set(generation__max_tokens=2)
    assert slow.answer("hello")[0] == "xx"


def test_an_inactive_node_says_why_and_keeps_off_the_data_topic(start_node: Callable[..., NodeBench]) -> None:
    bench = start_node(active=False)
    (report,) = bench.ask("hello", responses=False)
    assert report["refusal_code"] == "not_active" and "configure" in report["refusal"]
    assert bench.change(Transition.TRANSITION_CONFIGURE)
    (report,) = bench.ask("hello", responses=False)
    assert report["refusal_code"] == "not_active" and "activate" in report["refusal"]
    assert bench.client.responses == []
    assert bench.change(Transition.TRANSITION_ACTIVATE)
    assert bench.answer("hello")[0] == "hello"


@pytest.mark.parametrize("fault", ["nan", "raise", "out_of_memory"])
def test_an_engine_fault_ends_one_request_and_the_next_is_answered(
    start_node: Callable[..., NodeBench], fault: str
) -> None:
    bench = start_node({"fake.answer": "abcdef", "fake.fault": fault, "fake.fault_step": 3, "engine.warmup": False})
    text, report = bench.answer("hello")
    assert report["refusal_code"] == "engine_failed" and report["refusal"] and "abcdef".startswith(text)
    assert bench.client.reports[-1].level == b"\x02"
    assert bench.answer("hello")[0] == "abcdef"
    bench.wait(
        lambda: "requests" in bench.diagnostics and bench.diagnostics["requests"].level == b"\x01", "diagnostics"
    )
    assert "refused.engine_failed" in pairs(bench.diagnostics["requests"])


def test_an_engine_that_hangs_ends_the_request_and_is_told(start_node: Callable[..., NodeBench]) -> None:
    bench = start_node(
        {
            "fake.answer": "abcdef",
            "fake.fault": "hang",
            "fake.fault_step": 3,
            "engine.warmup": False,
            "engine.step_timeout": 0.3,
        }
    )
    (report,) = bench.ask("hello")
    assert report["refusal_code"] == "step_timeout"
    (report,) = bench.ask("hello")
    assert report["refusal_code"] == "step_timeout"
    bench.wait(lambda: bench.client.status.level == b"\x02", "the status is an error")
    assert bench.set(generation__seed=1) == [""], "the node lives"


def test_a_generation_ends_at_its_timeout(slow: NodeBench) -> None:
    slow.set(generation__timeout=0.3)
    text, report = slow.answer("hello")
    assert report["refusal_code"] == "deadline" == report["finish_reason"] and text
    assert float(report["total_s"]) < 2.0


def test_deactivation_ends_the_running_request_with_a_reason(slow: NodeBench) -> None:
    running(slow)
    slow.client.ask("waits")
    slow.wait(lambda: slow.node.bridge.load == (True, 1), "one waits")
    start = time.monotonic()
    assert slow.change(Transition.TRANSITION_DEACTIVATE)
    assert time.monotonic() - start < 2.0
    slow.wait(lambda: len(slow.client.reports) == 2 and len(slow.client.responses) == 2, "both end")
    assert {pairs(report)["refusal_code"] for report in slow.client.reports} == {"not_active"}
    slow.wait(lambda: "".join(slow.client.deltas) in slow.client.responses, "the pieces join to the response")
    assert slow.change(Transition.TRANSITION_ACTIVATE)
    slow.set(generation__max_tokens=2)
    assert slow.answer("again")[0] == "xx"


def test_a_subscriber_that_goes_away_does_not_disturb_an_answer(slow: NodeBench) -> None:
    heard: list[str] = []
    subscription = slow.client.create_subscription(String, "response/delta", lambda m: heard.append(m.data), 10)
    slow.set(generation__max_tokens=80)
    running(slow)
    slow.wait(lambda: heard, "the second subscriber hears")
    slow.client.destroy_subscription(subscription)
    slow.wait(lambda: slow.client.reports and slow.client.responses, "the end")
    assert slow.client.responses == ["x" * 80]


def test_names_follow_the_namespace(start_node: Callable[..., NodeBench]) -> None:
    bench = start_node(namespace="/left/arm")
    assert bench.node.get_fully_qualified_name() == "/left/arm/edgellm"
    topics = {name for name, _ in bench.client.get_topic_names_and_types()}
    for name in ("prompt", "cancel", "response", "response/delta", "report", "edgellm/status"):
        assert f"/left/arm/{name}" in topics
    assert "/diagnostics" in topics
    assert bench.answer("hello")[0] == "hello"


def test_topics_can_be_remapped(start_node: Callable[..., NodeBench]) -> None:
    bench = start_node(arguments=["--ros-args", "-r", "prompt:=chat/in", "-r", "response:=chat/out"])
    assert bench.node.outputs.response.topic_name == "/chat/out"
    assert bench.answer("hello")[0] == "hello"


def test_quality_of_service_can_be_overridden_and_a_mismatch_is_told(start_node: Callable[..., NodeBench]) -> None:
    bench = start_node(
        arguments=["--ros-args", "-p", "qos_overrides./response/delta.publisher.reliability:=best_effort"]
    )
    bench.wait(lambda: bench.node.count_subscribers("/response/delta"), "the two know each other")
    bench.wait(lambda: "/response/delta" in bench.node.qos.found, "the mismatch is told", deadline=2.0)
    sentence = bench.node.qos.found["/response/delta"]
    assert "reliability" in sentence and "/response/delta" in sentence
    bench.wait(
        lambda: "output response" in bench.diagnostics and bench.diagnostics["output response"].level == b"\x01",
        "diagnostics warn",
    )


def test_a_best_effort_prompt_is_told_by_topic_and_policy(start_node: Callable[..., NodeBench]) -> None:
    bench = start_node()
    qos = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
    publisher = bench.client.create_publisher(String, "prompt", qos)
    bench.wait(lambda: bench.node.count_publishers("/prompt") == 2, "the two know each other")
    bench.wait(lambda: "/prompt" in bench.node.qos.found, "the mismatch is told", deadline=2.0)
    assert "reliability" in bench.node.qos.found["/prompt"]
    bench.client.destroy_publisher(publisher)


def test_status_and_diagnostics_name_what_is_missing_first(start_node: Callable[..., NodeBench]) -> None:
    bench = start_node({"engine.backend": "auto"}, active=False)
    bench.wait(lambda: "engine.directory" in bench.client.status.message, "the status names the parameter")
    bench.wait(lambda: len(bench.diagnostics) >= 6, "diagnostics")
    assert set(bench.diagnostics) == {"engine", "requests", "input prompt", "output response", "memory", "device"}
    assert "engine.directory" in bench.diagnostics["engine"].message
    assert int(pairs(bench.diagnostics["memory"])["resident_bytes"]) > 0


def test_simulated_time_without_a_clock_is_told(start_node: Callable[..., NodeBench]) -> None:
    bench = start_node({"use_sim_time": True})
    bench.wait(lambda: "/clock" in bench.client.status.message, "the status names the clock")
    assert bench.answer("hello")[0] == "hello"


def test_prompts_and_answers_are_not_logged(
    start_node: Callable[..., NodeBench], capfd: pytest.CaptureFixture[str]
) -> None:
    bench = start_node({"fake.answer": "private answer", "prompt.max_characters": 20})
    bench.answer("private prompt")
    bench.ask("private prompt that is too long")
    assert "private" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(("warm", "calls"), [(True, [1]), (False, [])])
def test_configuring_warms_the_engine_up_and_passes_the_threads_on(
    start_node: Callable[..., NodeBench], monkeypatch: pytest.MonkeyPatch, warm: bool, calls: list[int]
) -> None:
    warmed: list[int] = []
    threads: list[int] = []
    made = LLMInferenceRuntime.__init__

    def make(self: LLMInferenceRuntime, *arguments: object, **options: object) -> None:
        threads.append(options["threads"])  # type: ignore[arg-type]
        made(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(LLMInferenceRuntime, "__init__", make)
    monkeypatch.setattr(LLMInferenceRuntime, "warm_up", lambda self, size: warmed.append(size))
    start_node({"engine.warmup": warm, "engine.threads": 3})
    assert (warmed, threads) == (calls, [3])
