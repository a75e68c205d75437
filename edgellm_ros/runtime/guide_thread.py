"""Where guides are compiled: on a thread with a deep stack, and with an eye on the clock.

llguidance follows names from rule to rule by recursion, several kilobytes a level. Rules that name each other in a long
row would run over the stack of an ordinary thread and end the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

STACK_BYTES = 256 << 20  # address space; 64 MB were enough for the longest row that a guide has room for
LONGEST_COMPILATION = 30.0  # s

_Result = TypeVar("_Result")
_start_lock = threading.Lock()  # covers the size of new threads' stacks, which is the process's


def compile_apart(work: Callable[[], _Result], seconds: float = LONGEST_COMPILATION) -> _Result:
    """What ``work`` returns, or raises; it cannot be stopped, so one that takes too long is left to itself.

    :raises TimeoutError: it takes longer than ``seconds``.
    """
    outcome: list[_Result] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="edgellm-guide", daemon=True)
    with _start_lock:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not outcome:
        raise TimeoutError
    return outcome[0]
