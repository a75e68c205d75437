"""Starts a node as a process of its own and stops it again."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from types import TracebackType

from .launch_spec import CommandSpec, NodeSpec

STOP_TIMEOUT = 10.0  # s for the process to end by itself, on a machine that is busy
_SET_PARENT_DEATH_SIGNAL = 1
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)  # found here: a forked child should do as little as it can


def _end_with_parent() -> None:
    """Have the kernel terminate this process when the one that started it is gone, killed or not (Linux)."""
    if _PRCTL is not None:
        _PRCTL(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


class NodeProcess:
    """A running node; leaving the ``with`` block stops it. Its output goes to a file, shown when something fails."""

    def __init__(self, spec: NodeSpec | CommandSpec, environment: Mapping[str, str] | None = None) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)
        self._process = subprocess.Popen(
            [sys.executable, "-m", spec.module, *spec.arguments()],
            env={**(os.environ if environment is None else environment), **spec.environment},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt at the terminal is ours to pass on
            preexec_fn=_end_with_parent,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """All that it has written so far."""
        descriptor = self._output.fileno()  # shared with the child, so its position must stay where it is
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode("utf-8", "replace")

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def wait(self, timeout: float) -> int:
        """Wait for its end; the exit code.

        :raises TimeoutError: it still runs.
        """
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the node still runs after {timeout:g} s") from None

    def stop(self) -> int:
        """Interrupt it and wait; it is killed when it does not end. Returns the exit code."""
        if self.exit_code is None:
            self.send_signal(signal.SIGINT)
            try:
                self.wait(STOP_TIMEOUT)
            except TimeoutError:
                self._process.kill()
        return self._process.wait()

    def __enter__(self) -> NodeProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self._output.close()
