"""The reader's side of the demonstration: lines that are typed, Ctrl-C, and how wide the terminal is."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

from ..errors import RequestError
from ..json_values import shown

_LOOK = 0.2  # s between looks at whether it still makes sense to wait


def read_line(ended: Callable[[], bool]) -> str | None:
    """The next line behind a prompt; None at the end of the input, or once ``ended`` says so at a terminal."""
    print("> ", end="", flush=True)
    if sys.stdin is None:  # it was closed before the start
        print(flush=True)
        return None
    if sys.stdin.isatty():  # whose lines come one by one; what a pipe holds may lie in a buffer already
        while not select.select([sys.stdin], [], [], _LOOK)[0]:
            if ended():
                print(flush=True)
                return None
    line = sys.stdin.readline()
    if not line:
        print(flush=True)
    return line.strip() if line else None


def seed_of(text: str) -> int:
    """The seed that is typed. :raises RequestError: it is no whole number from 0 on."""
    if not text.isdecimal():
        raise RequestError(f"The seed is {shown(text)}; want a whole number from 0 on.")
    return int(text)


def columns() -> int:
    """Characters that fit into a line without wrapping."""
    return max(shutil.get_terminal_size().columns - 1, 1)


def show_progress(line: str) -> None:
    """Replace the line of the cursor, cut to what fits."""
    print(f"\r{line[: columns()]}\033[K", end="", flush=True)


def end_for_sure(seconds: float = 20.0) -> None:
    """End this process with status 1 if it still runs then: locks of a middleware may outlive a process killed."""
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()


class Interrupts:
    """Within it the first Ctrl-C only asks to stop; the second is an interrupt as anywhere else."""

    def __init__(self) -> None:
        self.asked = False

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)
