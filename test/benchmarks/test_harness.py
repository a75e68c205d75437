"""The harness on fake engines: interleaving, medians, rows, and peers that cannot take part. No speed is asserted."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_specs import HERE, KEYS, fake, faulty, scripted

from benchmarks.harness import Case, EngineSpec, Interleaver, Metric, SkippedPeer, table
from benchmarks.process import EngineLostError, EngineProcess
from benchmarks.session_times import median_share_between

RATE = Metric("rate", "tokens/s", ">= 1.1 x peer")


def run(ours: EngineSpec, *peers: EngineSpec | SkippedPeer, rounds: int = 3, timeout: float = 60, **options: object):
    case = Case("a_case", ours, options.pop("metrics", (RATE,)), "work", {"tokens": 4}, peers)
    return Interleaver(rounds, 2, timeout=timeout).run(case)


def test_median_of_the_rounds_after_the_first():
    (row,) = run(scripted("ours", [1000, 30, 10, 20]), scripted("peer", [5000, 8, 4, 5]))
    assert (row.ours, row.peer_value, row.ratio) == (20, 5, 4)
    assert row.ours_runs == (30, 10, 20)
    assert row.peer_runs == (8, 4, 5)


def test_json_row_has_exactly_the_agreed_keys():
    (row,) = run(scripted("ours", [0, 1, 2, 3]), scripted("peer", [0, 4, 4, 4]))
    content = json.loads(json.dumps(row.to_json()))
    assert set(content) == KEYS
    assert content["runs"] == {"ours": [1, 2, 3], "peer": [4, 4, 4]}
    assert content["ratio"] == 0.5
    assert content["versions"]["ours"] == content["versions"]["peer"] == "1.0"
    assert content["versions"]["python"]


def test_a_case_with_facts_has_them_in_each_row_and_how_far_rounds_spread():
    case = Case("a", scripted("ours", [0, 10, 30, 20]), (RATE,), "work", {}, (scripted("peer", [0, 4, 4, 8]),))
    (row,) = Interleaver(3, 2).run(replace(case, facts={"model": "m", "views": 2}))
    content = row.to_json()
    assert set(content) == KEYS | {"model", "views", "median", "p95", "peer_p95"}
    assert (content["model"], content["median"], content["p95"], content["peer_p95"]) == ("m", 20, 29, 7.6)


def test_engines_take_turns_and_each_starts_some_round(tmp_path):
    journal = str(tmp_path / "journal")
    names = ("ours", "first", "second")
    run(*(scripted(name, [1] * 4, journal=journal) for name in names))
    turns = Path(journal).read_text(encoding="utf-8").split()
    rounds = [turns[start : start + 3] for start in range(0, 12, 3)]
    assert all(sorted(one) == sorted(names) for one in rounds)
    assert {one[0] for one in rounds} == set(names)


@pytest.mark.parametrize("at_start", [True, False], ids=["at the start", "in a round"])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise", "ValueError: no such weights"),
        ("crash", "ended by SIGSEGV"),
        ("exit", "exited with code 3; last line: the last words"),
        ("hang", "no answer within 6 s"),
    ],
)
def test_peer_that_fails_is_skipped_by_name_and_reason(fault, reason, at_start):
    bad = faulty(fault, at_start)
    if fault == "hang":
        bad = replace(bad, timeout=6.0)
    broken, good = run(scripted("ours", [9, 1, 2, 3]), bad, scripted("good", [9, 1, 1, 1]))
    assert (broken.peer, broken.skipped, broken.peer_value, broken.ratio) == ("faulty", reason, None, None)
    assert (good.peer, good.ratio, len(good.ours_runs)) == ("good", 2, 3)
    assert broken.to_json()["peer"] == f"faulty (skipped: {reason})"
    assert set(broken.to_json()) == KEYS
    assert f"skipped: faulty: {reason}" in table([broken, good])


def test_peer_known_to_be_missing_is_named_once():
    metrics = (RATE, Metric("other", "s"))
    ours = fake("Scripted", "ours", answers=[{"rate": 1, "other": 2}] * 4)
    rows = run(ours, SkippedPeer("absent", "not importable"), metrics=metrics)
    assert [(row.metric.name, row.peer) for row in rows] == [("rate", "absent"), ("other", None)]
    assert table(rows).count("skipped: absent: not importable") == 1


def test_peer_with_another_metric_only_is_compared_in_that_one():
    metrics = (RATE, Metric("traffic", "GB/s"))
    ours = fake("Scripted", "ours", answers=[{"rate": 1, "traffic": 10}] * 4)
    memory = fake("Scripted", "memory", answers=[{"traffic": 20}] * 4)
    rows = run(ours, scripted("peer", [2] * 4), memory, metrics=metrics)
    assert [(row.metric.name, row.peer, row.ratio) for row in rows] == [
        ("rate", "peer", 0.5),
        ("traffic", "memory", 0.5),
    ]


@pytest.mark.parametrize("at_start", [True, False], ids=["at the start", "in a round"])
def test_our_own_failure_is_not_hidden(at_start):
    with pytest.raises(EngineLostError, match="no such weights"):
        run(faulty("raise", at_start), scripted("peer", [1] * 4))


def test_our_missing_metric_is_an_error():
    with pytest.raises(EngineLostError, match="gave no other"):
        run(scripted("ours", [1] * 4), metrics=(Metric("other", "s"),))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (EngineSpec("gone", "fake_engines:Scripted", interpreter="/no/such/python"), "cannot be started"),
        (EngineSpec("gone", "no_such_module:Engine"), "ModuleNotFoundError"),
        (EngineSpec("gone", "benchmarks.harness:Nothing"), "AttributeError"),
    ],
    ids=["interpreter", "module", "class"],
)
def test_engine_that_cannot_be_loaded_says_why(spec, reason):
    with pytest.raises(EngineLostError, match=reason):
        EngineProcess(spec, threads=1, timeout=60)


def test_child_gets_the_thread_count_and_ends_with_its_parent_object():
    engine = EngineProcess(scripted("ours", []), threads=3, timeout=60)
    try:
        assert engine.round("threads", {}) == {"rate": 3, "omp": 3}
        pid = engine.pid
    finally:
        engine.close()
        engine.close()
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(pid)


def test_an_interrupt_ends_every_engine_at_once(tmp_path):
    started: list[EngineProcess] = []

    def start(spec: EngineSpec, **options: object) -> EngineProcess:
        if len(started) == 2:
            raise KeyboardInterrupt
        started.append(EngineProcess(spec, **options))
        return started[-1]

    hanging = faulty("hang", at_start=False)
    case = Case("a_case", hanging, (RATE,), "work", peers=tuple(scripted(name, [1]) for name in "ab"))
    with pytest.raises(KeyboardInterrupt):
        Interleaver(1, 1, start=start).run(case)
    assert len(started) == 2
    assert not any(alive(engine.pid) for engine in started)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("rounds", [0, -1])
def test_rounds_must_be_positive(rounds):
    with pytest.raises(ValueError, match="at least 1"):
        Interleaver(rounds, 1)


def test_spread_and_target_stand_in_the_table():
    (row,) = run(scripted("ours", [0, 3, 1, 2]), scripted("peer", [0, 4, 6, 5]))
    text = table([row])
    assert "1-3" in text
    assert "4-6" in text
    assert ">= 1.1 x peer" in text
    assert "0.400" in text


def test_interpreter_of_its_own_runs_the_engine():
    spec = EngineSpec(
        "other", "fake_engines:Scripted", {"answers": []}, sys.executable, environment={"PYTHONPATH": str(HERE)}
    )
    engine = EngineProcess(spec, threads=1, timeout=60)
    assert engine.versions["scripted"] == "1.0"
    engine.close()


def test_share_between_calls_is_the_median_step():
    spans = [(0.0, 0.9), (1.0, 1.8), (2.0, 2.9), (3.0, 3.9), (60.0, 60.9)]
    assert median_share_between(spans) == pytest.approx(15)
    with pytest.raises(ValueError, match="at least 2"):
        median_share_between(spans[:1])
