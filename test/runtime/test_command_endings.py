"""How the command ends on signals and without readers, whatever it was about to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from edgellm_ros.backends.fake import FakeScript, write_fake_engine_directory
from edgellm_ros.cli.endings import Terminated, terminations

WAIT = 60.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_a_termination_is_raised_once_and_handlers_are_put_back(number):
    before = signal.getsignal(number)
    undone = []
    with pytest.raises(Terminated) as found, terminations():
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)  # as while the first is answered
            undone.append(True)
    assert undone and found.value.exit_code == 128 + number and str(found.value) == number.name
    assert signal.getsignal(number) is before


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminations():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_beside_the_main_thread_nothing_changes():
    ran = []

    def run():
        with terminations():
            ran.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WAIT)
    assert ran == [signal.getsignal(signal.SIGTERM)]


def test_output_that_nobody_reads_is_no_traceback(tmp_path):
    engine = write_fake_engine_directory(tmp_path / "engine", FakeScript(["a"]))
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "edgellm_ros.cli.main", "info", str(engine)],
            stdout=write,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            timeout=WAIT,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")
