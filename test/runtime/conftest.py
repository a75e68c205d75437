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
from runtime_helpers import edgellm_threads
from scheduler_bench import Bench

from edgellm_ros.backends.fake import FakeScript
from edgellm_ros.runtime.rank_model import RankModel
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
