"""After every test of this folder: no request is open, no latch taken, no block pinned, no consumer left waiting."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from runtime_audit import audit
from runtime_helpers import SOME, STR_1, answer, edgellm_threads, fake_runtime, outcome, request
from scheduler_bench import Bench

from edgellm_ros.backends.fake import FakeMode, FakeScript
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.rank_model import RankModel
from edgellm_ros.runtime.request import FinishReason
from edgellm_ros.runtime.streaming import StreamChannel

_runtimes: WeakSet[Any] = WeakSet()
_channels: WeakSet[Any] = WeakSet()


def _remember(kind: type, method: str, where: WeakSet[Any]) -> None:
    original: Callable[..., Any] = getattr(kind, method)

    @functools.wraps(original)
    def remembering(self: Any, *arguments: Any, **options: Any) -> Any:
        result = original(self, *arguments, **options)
        where.add(self)
        return result

    setattr(kind, method, remembering)


_remember(RankModel, "__init__", _runtimes)
_remember(StreamChannel, "attach", _channels)


@pytest.fixture(autouse=True)
def _nothing_is_left_over() -> Iterator[None]:
    for runtime in list(_runtimes):  # of tests of other folders, which may end with an engine that hangs
        try:
            audit(runtime)
        except AssertionError:
            _runtimes.discard(runtime)
    _channels.clear()
    yield
    for runtime in list(_runtimes):
        try:
            audit(runtime)
        except AssertionError:
            _runtimes.discard(runtime)  # kept alive by the report, it would fail every later test as well
            raise
    waiting = [channel for channel in list(_channels) if not channel.finished]
    if waiting:
        del waiting
        gc.collect()  # what no consumer holds any more leaves nobody waiting
        waiting = [channel for channel in list(_channels) if not channel.finished]
    _channels.clear()
    assert not waiting, f"{len(waiting)} channels never got their last chunk"


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLMInferenceRuntime]:
    """A fake engine that greets, with three places, shared by the tests of a file that has no runtime of its own."""
    directory = tmp_path_factory.mktemp("fake") / "engine"
    script = FakeScript(answers=["Hello there"])
    with fake_runtime(directory, script, max_batch=3, max_input=50, max_kv=60, prefill_chunk=16) as made:
        yield made


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    before = edgellm_threads()
    made: list[Bench] = []

    def make(script: FakeScript | None = None, limits: dict[str, int] | None = None, **config: Any) -> Bench:
        made.append(Bench(tmp_path / f"engine{len(made)}", script, limits, **config))
        return made[-1]

    yield make
    for one in made:
        one.__exit__()
    assert edgellm_threads() <= before


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLMInferenceRuntime]:
    with fake_runtime(tmp_path_factory.mktemp("seeded") / "engine", FakeScript(mode=FakeMode.SEEDED)) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLMInferenceRuntime]:
    script = FakeScript(answers=[STR_1])
    with fake_runtime(tmp_path_factory.mktemp("scripted") / "engine", script, prefill_chunk=8) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def alone(seeded: LLMInferenceRuntime) -> list[tuple[list[int], str, FinishReason]]:
    """Every one of SOME by itself."""
    return [outcome(answer(seeded, request(entry))) for entry in SOME]


@pytest.fixture(scope="module")
def adapter_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def adapter_folders(adapter_folder: Path) -> dict[str, Path]:
    from adapter_requests import engine  # what needs no engine needs no builder either
    from adapters_for_tests import write_adapter

    from edgellm_ros.adapter_format import AdapterFormat
    from edgellm_ros.engine_format import open_engine_directory

    form = AdapterFormat.from_config(open_engine_directory(engine(adapter_folder)).config.extra)
    return {name: write_adapter(adapter_folder / name, form, 2 + place, place) for place, name in enumerate("abc")}


@pytest.fixture
def open_family(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LLMInferenceRuntime]]:
    """A function that opens the tiny model of a family, whose images are seeds; all are closed behind the test."""
    from vision_engines import engine
    from vision_requests import SeededProcessor

    runtimes: list[LLMInferenceRuntime] = []

    def opened(family: str, lowering: str = "onnxruntime", **options: Any) -> LLMInferenceRuntime:
        monkeypatch.setattr("edgellm_ros.vision.runner.open_processor", lambda path: SeededProcessor(family))
        runtime = LLMInferenceRuntime(engine(family, lowering), backend="onnxruntime", threads=1, **options)
        runtimes.append(runtime)
        return runtime

    yield opened
    for runtime in runtimes:
        runtime.close()
