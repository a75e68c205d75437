"""Engines for the harness's own tests: they answer from a list, or fail in one of the ways that real ones do."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


class Scripted:
    """Answers round after round from ``answers``; notes its turns in ``journal`` when one is given."""

    def __init__(self, *, threads: int, name: str = "scripted", answers: list, journal: str = "") -> None:
        self._name, self._answers, self._journal, self._threads = name, list(answers), journal, threads

    def versions(self) -> dict:
        return {self._name: "1.0"}

    def work(self, **arguments: float) -> dict:
        print("a library that prints to standard output")
        print("and to standard error", file=sys.stderr)
        if self._journal:
            with Path(self._journal).open("a", encoding="utf-8") as journal:
                journal.write(self._name + "\n")
        return self._answers.pop(0)

    def threads(self) -> dict:
        return {"rate": self._threads, "omp": int(os.environ["OMP_NUM_THREADS"])}

    def close(self) -> None:
        pass


class Faulty(Scripted):
    """Fails at the start or in a round, by raising, dying or hanging."""

    def __init__(self, *, threads: int, fault: str, at_start: bool = False) -> None:
        super().__init__(threads=threads, name="faulty", answers=[{"rate": 1.0}] * 99)
        self._fault, self._rounds = fault, 0
        if at_start:
            self.fail()

    def work(self, **arguments: float) -> dict:
        self._rounds += 1
        if self._rounds == 2:
            self.fail()
        return super().work()

    def fail(self) -> None:
        if self._fault == "raise":
            raise ValueError("no such weights")
        if self._fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._fault == "exit":
            print("the last words", file=sys.stderr)
            os._exit(3)
        time.sleep(600)
