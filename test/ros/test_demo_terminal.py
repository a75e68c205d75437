"""The demonstration before a reader at a terminal: Ctrl-C, Ctrl-D, narrow windows, processes that die."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest

from edgellm_ros.cli.demo_terminal import Interrupts, read_line, show_progress
from edgellm_ros.cli.terminal_picture import picture_lines

DEADLINE = 50.0
TASK = "grab the cyan disc and place it on the pink disc"
CTRL_C, CTRL_D = "\x03", "\x04"
pytestmark = pytest.mark.timeout(400)


class Terminal:
    """A demonstration with a terminal of so many columns."""

    def __init__(self, cache, columns, environment, *arguments):
        command = [sys.executable, "-m", "edgellm_ros.cli.main", "demo", "--domain", os.environ["ROS_DOMAIN_ID"]]
        self.screen, reader = pty.openpty()
        fcntl.ioctl(reader, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdin=reader,
            stdout=reader,
            stderr=reader,
            env={**os.environ, "XDG_CACHE_HOME": str(cache), "COLUMNS": str(columns), **environment},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(reader)
        self.said = ""
        self._heard = 0  # characters that a wait has gone past

    def read(self):
        if not select.select([self.screen], [], [], 0.1)[0]:
            return True
        try:
            piece = os.read(self.screen, 65536)
        except OSError:  # the other side is closed
            return False
        self.said += piece.decode("utf-8", "replace")
        return bool(piece)

    def wait(self, text):
        """Until it is said behind what was waited for last."""
        end = time.monotonic() + DEADLINE
        while (found := self.said.find(text, self._heard)) < 0:
            assert time.monotonic() < end and self.read(), self.said
        self._heard = found + len(text)

    def type(self, keys):
        os.write(self.screen, keys.encode())

    def children(self):
        pid = self.process.pid
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def kill(self, module):
        for child in self.children():
            if module in Path(f"/proc/{child}/cmdline").read_text().split("\0"):
                os.kill(int(child), signal.SIGKILL)

    def end(self):
        """The exit status, once there is one."""
        end = time.monotonic() + DEADLINE
        while self.read():
            assert time.monotonic() < end, self.said
        return self.process.wait(DEADLINE)

    def close(self):
        if self.process.poll() is None:
            children = self.children()
            self.process.terminate()
            self.process.wait(DEADLINE)
            end = time.monotonic() + DEADLINE  # what still runs would answer the next test
            while any(Path("/proc", child).exists() for child in children):
                assert time.monotonic() < end, f"{children} outlive the demonstration"
                time.sleep(0.02)
        os.close(self.screen)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def demo(cache):
    opened = []

    def start(*arguments, columns=80, pictures=False):
        opened.append(Terminal(cache, columns, {} if pictures else {"NO_COLOR": "1"}, *arguments))
        opened[-1].wait("Ctrl-C stops the arm.")
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


@pytest.mark.slow
def test_ctrl_c_stops_the_arm_and_gives_the_prompt_back(demo):
    terminal = demo("--speed", "4")
    idle = time.monotonic() + 5.0  # 20 s of the world: longer than an episode, which begins only with its task
    while time.monotonic() < idle:
        terminal.read()
    terminal.type(TASK + "\r")
    terminal.wait(" chunks  seed ")
    terminal.type(CTRL_C)
    terminal.wait("Stopped.")
    terminal.type("what is on the table?\r")
    terminal.wait("time to first token")
    terminal.type(CTRL_D)
    assert terminal.end() == 0
    assert "Traceback" not in terminal.said and "one." not in terminal.said.split("Stopped.")[0].split("arm.")[1]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [20])
def test_ctrl_c_at_the_prompt_ends_with_130_and_no_line_is_wider_than_the_terminal(demo, columns):
    terminal = demo(columns=columns, pictures=True)
    terminal.type("touch the pink disc\r")
    terminal.wait("pruner off")
    terminal.wait("> ")
    terminal.type(CTRL_C)
    assert terminal.end() == 130
    plain = re.sub(r"\x1b\[[0-9;]*[mK]", "", terminal.said)
    drawn = [line for line in re.split(r"[\r\n]+", plain) if "\u2580" in line or " rad  " in line]
    assert drawn and max(map(len, drawn)) < columns and "Traceback" not in plain


@pytest.mark.slow
@pytest.mark.parametrize("busy", [True, False], ids=["at work", "at the prompt"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_a_termination_ends_the_nodes_first_and_is_told_by_the_exit_status(demo, number, busy):
    terminal = demo()
    if busy:
        terminal.type(TASK + "\r")
        terminal.wait(" chunks  seed ")
    nodes = terminal.children()
    assert len(nodes) == 2
    terminal.process.send_signal(number)
    terminal.process.send_signal(number)
    assert terminal.end() == 128 + number
    assert not [node for node in nodes if Path("/proc", node).exists()]
    assert "Traceback" not in terminal.said and f"edgellm demo: ended by {number.name}" in terminal.said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "busy"),
    [
        ("edgellm_ros.tabletop.world_process", "tabletop", True),
        ("edgellm_ros.ros.node", "edgellm", True),
        ("edgellm_ros.ros.node", "edgellm", False),
    ],
    ids=["world at work", "node at work", "node at rest"],
)
def test_a_process_that_is_killed_is_named_in_one_sentence_and_the_rest_ends(demo, module, name, busy):
    terminal = demo()
    if busy:
        terminal.type(TASK + "\r")
        terminal.wait(" chunks  seed ")
    terminal.kill(module)
    assert terminal.end() == 1
    last = re.split(r"[\r\n]+|\x1b\[K", terminal.said.strip())[-1]
    assert last.startswith(f"edgellm demo: the node {name} was ended by signal 9") and "Traceback" not in terminal.said


@pytest.mark.parametrize(("columns", "width"), [(200, 42), (79, 32), (20, 9), (15, 0), (1, 0)])
def test_pictures_fit_side_by_side_or_are_left_out(columns, width):
    lines = picture_lines([np.zeros((128, 128, 3), np.uint8)] * 2, columns=columns)
    assert {line.count("\u2580") for line in lines} == ({2 * width} if width else set())


def test_progress_is_cut_to_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "12")
    show_progress("0123456789abcdef")
    assert capsys.readouterr().out == "\r0123456789a\x1b[K"


def test_lines_of_a_pipe_are_read_to_its_end(monkeypatch):
    read, write = os.pipe()
    os.write(write, b" one \n\ntwo")
    os.close(write)
    with os.fdopen(read) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert [read_line(lambda: True) for _ in range(4)] == ["one", "", "two", None]


def test_the_first_interrupt_asks_and_the_second_is_one():
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
