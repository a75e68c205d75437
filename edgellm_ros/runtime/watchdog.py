"""A clock on every engine call, so that nobody waits for an engine that hangs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..errors import StepTimeoutError

_LOG = logging.getLogger(__name__)


class StepWatchdog:
    """Observes engine calls and calls ``on_timeout`` once for each that takes longer than ``timeout`` seconds.

    ``on_timeout(1)`` comes after one ``timeout``, ``on_timeout(2)`` if the call has not returned after another one.
    While it runs, the thread that drives the engine is inside the call or waits to leave it, so the batch's state may
    be read and its sequences ended. The abandoned call raises ``StepTimeoutError`` when it returns.
    """

    def __init__(self, timeout: float, on_timeout: Callable[[int], None]) -> None:
        self.timeout = timeout
        self._on_timeout = on_timeout
        self._lock = threading.Lock()  # held while the state of a call changes, and while a timeout is dealt with
        self._started = 0.0
        self._stage = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="edgellm-watchdog", daemon=True)
        self._thread.start()

    @property
    def hanging(self) -> bool:
        """True from a timeout until the call returns."""
        return self._stage > 0

    def step_started(self) -> None:
        """The engine starts to work."""
        with self._lock:
            self._started = time.monotonic()

    def step_ended(self) -> None:
        """It is done.

        :raises StepTimeoutError: it took too long, and what it was for has been ended meanwhile.
        """
        with self._lock:
            abandoned = self._stage > 0
            self._started = 0.0
            self._stage = 0
        if abandoned:
            raise StepTimeoutError(timeout_message(self.timeout))

    def _watch(self) -> None:
        interval = min(max(self.timeout / 8, 0.002), 0.25)
        while not self._stop.wait(interval):
            with self._lock:
                late = self._started and time.monotonic() - self._started > self.timeout * (self._stage + 1)
                if late and self._stage < 2:
                    self._stage += 1
                    try:
                        self._on_timeout(self._stage)
                    except Exception:  # a watchdog that dies would leave the next request waiting
                        _LOG.exception("ending the requests of an overdue step failed")

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


def timeout_message(timeout: float) -> str:
    """The sentence for whoever was in an abandoned step."""
    return f"one engine step took longer than {timeout:g} s; check the load of the machine or allow more time."
