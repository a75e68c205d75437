from __future__ import annotations

import gc
import itertools
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from lifecycle_msgs.msg import Transition
from node_bench import NodeBench

from edgellm_ros.backends.fake import FakeScript, write_fake_engine_directory
from edgellm_ros.backends.host_memory import resident_memory
from edgellm_ros.errors import EngineDirectoryError
from edgellm_ros.ros import memory
from edgellm_ros.ros.engine_host import EngineHost

CONFIGURE, CLEANUP = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_CLEANUP
ACTIVATE, DEACTIVATE = Transition.TRANSITION_ACTIVATE, Transition.TRANSITION_DEACTIVATE
SHUTDOWN = {
    "unconfigured": Transition.TRANSITION_UNCONFIGURED_SHUTDOWN,
    "inactive": Transition.TRANSITION_INACTIVE_SHUTDOWN,
    "active": Transition.TRANSITION_ACTIVE_SHUTDOWN,
}
NEXT = {
    ("unconfigured", CONFIGURE): "inactive",
    ("inactive", ACTIVATE): "active",
    ("inactive", CLEANUP): "unconfigured",
    ("active", DEACTIVATE): "inactive",
    **dict.fromkeys(SHUTDOWN.items(), "finalized"),
}
WAYS = {"unconfigured": (), "inactive": (CONFIGURE,), "active": (CONFIGURE, ACTIVATE)}
ALL = (CONFIGURE, CLEANUP, ACTIVATE, DEACTIVATE, *SHUTDOWN.values(), Transition.TRANSITION_DESTROY, 99)


@pytest.fixture
def bench(start_node: Callable[..., NodeBench]) -> NodeBench:
    return start_node(active=False)


def bring_to(bench: NodeBench, state: str) -> None:
    for transition in WAYS[state]:
        assert bench.change(transition)


@pytest.mark.parametrize("state", WAYS)
def test_every_transition_is_done_or_refused_and_the_node_lives(
    start_node: Callable[..., NodeBench], state: str
) -> None:
    bench = start_node(active=False)
    bring_to(bench, state)
    illegal = [transition for transition in ALL if (state, transition) not in NEXT]
    for transition in illegal:
        assert not bench.change(transition), transition
        assert bench.lifecycle == state
    legal = [transition for transition in ALL if (state, transition) in NEXT and transition not in SHUTDOWN.values()]
    for transition in (*legal, SHUTDOWN[state]):
        if bench.lifecycle != state:
            bring_to_from(bench, state)
        assert bench.change(transition)
        assert bench.lifecycle == NEXT[state, transition]
    assert bench.node.state.host is None


def bring_to_from(bench: NodeBench, state: str) -> None:
    """From any living state to ``state``."""
    while bench.lifecycle != "unconfigured":
        bench.change(DEACTIVATE if bench.lifecycle == "active" else CLEANUP)
    bring_to(bench, state)


@pytest.mark.parametrize(
    ("start", "transition", "place", "after"),
    [
        ("unconfigured", CONFIGURE, "load", "unconfigured"),
        ("inactive", ACTIVATE, "start", "inactive"),
        ("active", DEACTIVATE, "stop", "unconfigured"),
        ("inactive", CLEANUP, "close", "unconfigured"),
        ("active", SHUTDOWN["active"], "stop", "finalized"),
        ("inactive", SHUTDOWN["inactive"], "close", "finalized"),
    ],
    ids=["configure", "activate", "deactivate", "cleanup", "shutdown while active", "shutdown while inactive"],
)
def test_a_failure_inside_a_transition_is_told_and_leaves_a_known_state(
    bench: NodeBench,
    monkeypatch: pytest.MonkeyPatch,
    start: str,
    transition: int,
    place: str,
    after: str,
) -> None:
    bring_to(bench, start)
    target = EngineHost if place in ("load", "close") else bench.node.bridge
    original = getattr(target, place)
    failures = itertools.count()

    def fail(*arguments: object) -> object:
        if next(failures) == 0:
            raise ZeroDivisionError("injected")
        return original(*arguments)

    monkeypatch.setattr(target, place, fail)
    told: list[str] = []
    monkeypatch.setattr(bench.node.get_logger(), "error", told.append)
    assert not bench.change(transition)
    assert bench.lifecycle == after
    assert any("injected" in sentence for sentence in told) or "injected" in bench.node.state.failure
    monkeypatch.setattr(target, place, original)
    if after != "finalized":
        bring_to_from(bench, "active")
        assert bench.answer("hello")[0] == "hello"


def test_a_failure_while_handling_an_error_does_not_end_the_process(
    bench: NodeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_to(bench, "active")

    def fail(*arguments: object) -> object:
        raise ZeroDivisionError("injected")

    monkeypatch.setattr(bench.node.bridge, "stop", fail)
    assert not bench.change(DEACTIVATE)
    assert bench.lifecycle == "unconfigured" and bench.node.state.host is None
    monkeypatch.undo()


def damaged(folder: Path, kind: str) -> str:
    """An engine directory with one fault; its path."""
    if kind == "empty path":
        return ""
    if kind == "missing":
        return str(folder / "nothing")
    if kind == "a file":
        (folder / "file").write_text("x")
        return str(folder / "file")
    path = write_fake_engine_directory(folder / "engine", FakeScript(["ok"]))
    config, manifest = path / "config.json", path / "manifest.json"
    if kind == "no manifest":
        manifest.unlink()
    elif kind == "not JSON":
        manifest.write_text("{")
    elif kind == "another version":
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format_version": 99}))
    elif kind == "truncated":
        embedding = path / "embedding.safetensors"
        embedding.write_bytes(embedding.read_bytes()[:-1])
    elif kind == "missing file":
        (path / "tokenizer.json").unlink()
    else:
        content = json.loads(config.read_text())
        change = {"wrong type": {"vocab_size": "many"}, "wrong shape": {"vocab_size": content["vocab_size"] + 7}}[kind]
        config.write_text(json.dumps({**content, **change}))
        files = json.loads(manifest.read_text())
        files["files"]["config.json"] = config.stat().st_size
        manifest.write_text(json.dumps(files))
    return str(path)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("empty path", "engine.directory is empty"),
        ("missing", "holds nothing"),
        ("a file", "holds a file"),
        ("no manifest", "manifest.json"),
        ("not JSON", "not valid JSON"),
        ("another version", "format_version 99"),
        ("truncated", "embedding.safetensors"),
        ("missing file", "tokenizer.json is missing"),
        ("wrong type", "vocab_size"),
        ("wrong shape", ""),
    ],
)
def test_an_engine_directory_that_is_not_right_fails_in_one_sentence(
    start_node: Callable[..., NodeBench], tmp_path: Path, kind: str, part: str
) -> None:
    backend = "onnxruntime" if kind == "empty path" else "fake"
    bench = start_node({"engine.directory": damaged(tmp_path, kind), "engine.backend": backend}, active=False)
    threads = threading.active_count()
    assert not bench.change(CONFIGURE)
    assert bench.lifecycle == "unconfigured" and bench.node.state.host is None
    sentence = bench.node.state.failure
    assert part in sentence and "\n" not in sentence.strip() and "Traceback" not in sentence
    assert bench.wait(lambda: sentence in bench.client.status.message, "the status tells")
    assert threading.active_count() <= threads
    path = write_fake_engine_directory(tmp_path / "good", FakeScript(["ok"]))
    assert bench.set(engine__directory=str(path), engine__backend="fake") == ["", ""]
    assert bench.change(CONFIGURE) and bench.change(ACTIVATE)
    assert bench.answer("hello")[0] == "ok"


def test_an_engine_that_would_take_the_robots_memory_is_not_loaded(bench: NodeBench, monkeypatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 10 * 2**20)
    bench.set(engine__memory_reserve_mb=10)
    assert not bench.change(CONFIGURE)
    assert "engine.memory_reserve_mb keeps 10 MB" in bench.node.state.failure
    bench.set(engine__memory_reserve_mb=0)
    assert bench.change(CONFIGURE)
    # The cache takes what is left, not what it may.
    assert 0 < bench.node.state.host.context_cache()["budget_bytes"] < 10 * 2**20


@pytest.mark.parametrize(
    "cycles", [10, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])], ids="{} cycles".format
)
def test_cycles_leave_nothing_behind(bench: NodeBench, cycles: int) -> None:
    def cycle() -> None:
        for transition in (CONFIGURE, ACTIVATE, DEACTIVATE, CLEANUP):
            assert bench.change(transition)

    def held() -> tuple[int, int]:
        gc.collect()
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    for _ in range(3):
        cycle()
    before, taken = held(), resident_memory()
    for _ in range(cycles):
        cycle()
    # threads that were told to stop may need a moment
    bench.wait(lambda: all(now <= then for now, then in zip(held(), before, strict=True)), f"{before} are left")
    grown = (resident_memory() or 0) - (taken or 0)
    assert grown < 4 * 2**20 + cycles * 10_000, f"{grown} bytes more after {cycles} cycles"
    bring_to(bench, "active")
    assert bench.answer("hello")[0] == "hello"


def test_a_failure_that_no_log_can_carry_is_told_and_leaves_a_known_state(bench: NodeBench, monkeypatch) -> None:
    def load(settings: object) -> None:
        raise EngineDirectoryError("the engine is called bad\udcff\0; call it otherwise.")

    monkeypatch.setattr(EngineHost, "load", load)
    assert not bench.change(Transition.TRANSITION_CONFIGURE)
    assert bench.lifecycle == "unconfigured" and "bad\ufffd\ufffd" in bench.node.state.failure


def test_the_node_warns_without_a_profile_and_leaves_a_users_alone(
    start_node: Callable[..., NodeBench], monkeypatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    variables = {"FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE"}
    for name in variables:
        monkeypatch.delenv(name, raising=False)
    bench = start_node(active=False)
    told = bench.node.state.profile_warning
    assert any(name in told for name in variables) and told in capfd.readouterr().err
    assert not variables & set(os.environ)  # told, not set
    bench.close()
    own = tmp_path / "own.xml"
    own.write_text("<dds/>")
    for name in variables:
        monkeypatch.setenv(name, str(own))
    assert start_node(active=False).node.state.profile_warning == ""
    assert {os.environ[name] for name in variables} == {str(own)}
