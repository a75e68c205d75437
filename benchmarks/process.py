"""The parent's end of an engine that runs in a child process.

Messages are JSON lines over two pipes of their own, so that whatever a library prints cannot be taken for an answer.
A child that dies, hangs or raises becomes one exception with one sentence; the harness goes on.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .harness import EngineSpec

ROOT = Path(__file__).resolve().parent.parent
_CLOSE_SECONDS = 20.0


class EngineLostError(Exception):
    """An engine that did not start, died, hung or raised; the message says which, in one line."""


class EngineProcess:
    """One engine in its own process, ready for rounds.

    :raises EngineLostError: it did not come up within ``timeout`` seconds.
    """

    def __init__(self, spec: EngineSpec, *, threads: int, timeout: float) -> None:
        self.label = spec.label
        self._timeout = timeout
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        self._buffer = b""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "OPENBLAS_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            **spec.environment,
        }
        options = {"threads": threads, **spec.options}
        try:
            self._process = subprocess.Popen(
                [
                    spec.interpreter or sys.executable, "-m", "benchmarks.worker",
                    str(commands), str(answers), spec.program, json.dumps(options),
                ],
                pass_fds=(commands, answers),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=environment,
                cwd=ROOT,
                start_new_session=True,  # a group of its own: kill() must reach what the engine started
            )  # fmt: skip
        except OSError as error:
            self._close_pipes()
            self._log.close()
            raise EngineLostError(f"{spec.interpreter} cannot be started ({error.strerror})") from None
        finally:
            os.close(commands)
            os.close(answers)
        try:
            self.versions: dict[str, str] = self._answer()["versions"]
        except EngineLostError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def round(self, task: str, arguments: Mapping[str, Any]) -> dict[str, float]:
        """Let the engine do ``task`` once; its figures by metric name.

        :raises EngineLostError: it raised, died or took longer than the time-out.
        """
        message = json.dumps({"task": task, "arguments": dict(arguments)}) + "\n"
        try:
            os.write(self._commands, message.encode())
        except BrokenPipeError:
            raise EngineLostError(self._death()) from None
        values: dict[str, float] = self._answer()["values"]
        return values

    def close(self) -> None:
        """End the child and wait for it; harmless twice."""
        self._close_pipes()
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        self._log.close()

    def kill(self) -> None:
        """End the child and what it started, at once; ``close`` must follow."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _close_pipes(self) -> None:
        for name in ("_commands", "_answers"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, name, -1)

    def _answer(self) -> dict[str, Any]:
        deadline = time.monotonic() + self._timeout
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._answers], [], [], max(left, 0))
            if not ready:
                self.kill()
                raise EngineLostError(f"no answer within {self._timeout:.0f} s")
            data = os.read(self._answers, 1 << 16)
            if not data:
                raise EngineLostError(self._death())
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineLostError(str(answer["error"]))
        return answer

    def _death(self) -> str:
        try:
            code = self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its pipe without an answer"
        reason = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        self._log.seek(0)
        lines = [line for line in self._log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return f"{reason}; last line: {lines[-1][:200]}" if lines and code > 0 else reason
