"""A runtime and a scheduler on it, both closed at the end."""

from __future__ import annotations

import time

from runtime_helpers import WAIT, fake_runtime

from edgellm_ros.backends.fake import FakeScript
from edgellm_ros.runtime.scheduler import RequestEngine, RequestEngineConfig, ShutdownMode


class Bench:
    """A runtime and an engine on it, both closed at the end."""

    def __init__(self, path, script=None, limits=None, **config):
        self.runtime = fake_runtime(path, script, **(limits or {}))
        self.engine = RequestEngine(self.runtime, RequestEngineConfig(**config))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.runtime.rank.backend.release()
        assert self.engine.shutdown(ShutdownMode.CANCEL, WAIT)
        self.runtime.close()


def until(condition) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)


SLOW = FakeScript(answers=["abcdefghijklmnopqrstuvwxyz"], step_latency=0.01)
