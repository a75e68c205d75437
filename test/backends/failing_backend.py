"""A CPU backend that fails at one of its calls, and counts what of it is closed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.errors import BackendError

OPENING = (
    "open_engine", "allocate", "allocate_kv_cache", "allocate_sampler", "open_embeddings", "stopwatch",
)  # fmt: skip


class FailingBackend(CPUBackend):
    """Fails at call ``at`` of those that open something, counted from 1; 0: at none."""

    def __init__(self, at: int = 0) -> None:
        super().__init__(1)
        self._at, self.calls, self.closes = at, 0, 0
        self.open: list[Any] = []  # engines that nobody has closed

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name not in OPENING:
            return found

        def counted(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self._at:
                raise BackendError(f"{name} was made to fail; let it.")
            opened = found(*arguments, **options)
            if name == "open_engine":
                self._watch(opened)
            return opened

        return counted

    def _watch(self, engine: Any) -> None:
        inner = engine.close

        def close() -> None:
            if engine in self.open:
                self.open.remove(engine)
            inner()

        engine.close = close
        self.open.append(engine)

    def close(self) -> None:
        """Leaves its engines alone, so that those which their owner forgot show."""
        self.closes += 1


def fail_everywhere(make: Callable[[FailingBackend], Any]) -> list[FailingBackend]:
    """Make something as often as it calls its backend to open something, each time with another of the calls failing.

    Then whole, to be closed twice. Nothing may be left open. Returns the backends, that of the whole one last.
    """
    backends: list[FailingBackend] = []
    for at in itertools.count(1):
        backends.append(backend := FailingBackend(at))
        try:
            made = make(backend)
        except BackendError as error:
            assert "was made to fail" in str(error) and not backend.open, f"call {at}"
            continue
        assert backend.calls == at - 1 and backend.open
        made.close()
        made.close()
        assert not backend.open
        return backends
    raise AssertionError
