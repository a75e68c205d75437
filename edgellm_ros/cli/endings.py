"""How a command ends when it is told to: by a signal, or because nobody reads its output any more."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CLOSED_PIPE = 128 + signal.SIGPIPE  # what a shell shows for a program that its reader left
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """A signal asked for the end; like an interrupt it passes by whatever handles errors."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def terminations() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP raise ``Terminated``, once: what was begun is undone, and further ones are ignored.

    A signal that is ignored already (``nohup``) stays so. Outside of the main thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]

    def end(number: int, frame: FrameType | None) -> None:
        for each in taken:
            signal.signal(each, signal.SIG_IGN)  # of some senders (timeout) each comes twice
        raise Terminated(number)

    before = {number: signal.signal(number, end) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def discard_output() -> None:
    """Send what is still to be written to standard output nowhere: the interpreter flushes it once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
