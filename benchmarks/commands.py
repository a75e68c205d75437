"""Whole commands as engines: what a user waits for, and what the machine must hold meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from .ours import version
from .workspace import ROOT, build_command, child_environment


class Build:
    """``edgellm build`` in a process of its own, into a folder that is removed again."""

    def __init__(self, *, threads: int, source: str, scratch: str, precision: str, limits: Sequence[str]) -> None:
        self._command = [*build_command(), source]
        self._options = ["--precision", precision, *limits]
        self._scratch = Path(scratch)

    def versions(self) -> dict[str, str]:
        """The version of this package."""
        return {"edgellm_ros": version("edgellm_ros")}

    def build(self) -> dict[str, float]:
        """Wall seconds and the peak resident memory in MB (10^6 bytes).

        :raises RuntimeError: the command failed.
        """
        self._scratch.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="build-", dir=self._scratch))
        try:
            start = time.monotonic()
            process = subprocess.Popen(
                [*self._command, str(folder / "engine"), *self._options],
                cwd=ROOT,
                env=child_environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.monotonic() - start
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise RuntimeError(f"edgellm build exited with code {process.returncode}")
            return {"build_time": seconds, "peak_memory": usage.ru_maxrss * 1024 / 1e6}
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Nothing is kept between rounds."""
