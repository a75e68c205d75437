from __future__ import annotations

from edgellm_ros.errors import Refusal, RefusalCode
from edgellm_ros.ros.counters import Counters, Throttle
from edgellm_ros.ros.report import Level, Report, Timings, value_text
from edgellm_ros.runtime.request import FinishReason


def test_repeated_messages_of_a_kind_are_held_back_and_counted() -> None:
    now = 0.0
    throttle = Throttle(5.0, lambda: now)
    assert throttle.admit("a", "first") == "first"
    assert throttle.admit("b", "another kind") == "another kind"
    assert [throttle.admit("a", "again") for _ in range(3)] == [None] * 3
    now = 5.0
    assert throttle.admit("a", "later") == "later (3 more since the last message of this kind)"
    now = 10.0
    assert throttle.admit("a", "alone") == "alone"


def test_every_end_is_counted_by_reason_and_code() -> None:
    counters = Counters()
    full = Refusal(RefusalCode.QUEUE_FULL, "Full.")
    counters.ended(
        Report("1", FinishReason.END_ID, None, Timings(), prompt_tokens=3, completion_tokens=2, reused_tokens=1)
    )
    counters.ended(Report("2", FinishReason.ERROR, full, Timings()))
    values = counters.values()
    assert (values.answered, values.prompt_tokens, values.completion_tokens, values.reused_tokens) == (1, 3, 2, 1)
    assert values.refused == {"queue_full": 1} and values.finish_reasons == {"end_id": 1, "error": 1}
    assert values.last_refusal == full and values.last_refusal_age is not None


def test_a_report_says_its_end_in_level_sentence_and_pairs() -> None:
    timings = Timings(queued=0.1, time_to_first_token=0.2, total=1.5, tokens_per_second=40.0)
    report = Report(
        "1", FinishReason.LENGTH, None, timings, seed=7, completion_tokens=9,
        delta_count=2, first_delta=0, last_delta=1, changed_settings={"generation.stop": ("a",)},
    )  # fmt: skip
    pairs = dict(report.pairs())
    assert report.level is Level.OK and report.sentence == "Answered with 9 tokens in 1.50 s (length)."
    acted = Report("2", FinishReason.END_ID, None, timings, details={"chunks": 3})
    assert acted.sentence == "Acted with 3 chunks in 1.50 s (end_id)."
    assert pairs["seed"] == "7" and pairs["refusal_code"] == "" and pairs["first_delta"] == "0"
    assert pairs["setting.generation.stop"] == '["a"]' and pairs["tokens_per_second"] == "40"
    assert "prompt" not in pairs and "response" not in pairs


def test_faults_of_the_engine_are_errors_and_other_refusals_warnings() -> None:
    for code, level in ((RefusalCode.ENGINE_FAILED, Level.ERROR), (RefusalCode.CANCELLED, Level.WARN)):
        report = Report("1", FinishReason.ERROR, Refusal(code, "So."), Timings())
        assert (report.level, report.sentence) == (level, "So.")


def test_values_become_text_that_reads_back() -> None:
    assert [value_text(value) for value in (None, 0.1234567, True, ("ä",), 3)] == ["", "0.123457", "true", '["ä"]', "3"]
