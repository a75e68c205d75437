from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from scripted_host import wait_for

from edgellm_ros.backends.fake import FakeScript, write_fake_engine_directory
from edgellm_ros.ros.client import PromptClient, pairs, spin_until
from edgellm_ros.ros.launch_spec import NodeSpec, node_specs
from edgellm_ros.ros.node_process import NodeProcess

DEADLINE = 20.0
EXIT_LIMIT = 5.0  # s; an idle machine takes a fifth of one, and 1.8 where the engine hangs


class ProcessBench:
    """A node in its own process and a client in this one."""

    def __init__(self, spec: NodeSpec) -> None:
        self.process = NodeProcess(spec)
        self.context = Context()
        rclpy.init(args=[], context=self.context)
        self.client = PromptClient(context=self.context, namespace=spec.namespace or None, server=spec.name)
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.client)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        done = spin_until(self._executor, lambda: bool(condition()), DEADLINE)
        assert done, f"not in time: {what}; the node wrote:\n{self.process.output()}"

    def wait_active(self) -> None:
        self.wait(lambda: self.client.lifecycle == "active" and self.client.connected, "the node is active")

    def close(self) -> None:
        self.process.stop()
        self.process._output.close()
        self._executor.shutdown()
        self.client.destroy_node()
        rclpy.try_shutdown(context=self.context)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ProcessBench]]:
    benches: list[ProcessBench] = []

    def start(script: FakeScript | None = None, **arguments: str) -> ProcessBench:
        if script is not None:
            arguments["engine_dir"] = str(write_fake_engine_directory(tmp_path / "an engine's", script))
        (spec,) = node_specs({"backend": "fake", **arguments})
        benches.append(ProcessBench(spec))
        return benches[-1]

    yield start
    for bench in benches:
        bench.close()


def test_the_process_that_launch_starts_answers_and_ends_cleanly(start: Callable[..., ProcessBench]) -> None:
    bench = start(FakeScript(["Hello."]), namespace="left", node_name="talker")
    bench.wait_active()
    bench.client.ask("hello")
    bench.wait(lambda: bench.client.responses and bench.client.reports, "the answer")
    assert bench.client.responses == ["Hello."]
    assert bench.process.stop() == 0
    output = bench.process.output()
    assert "Loaded fake" in output and "threads" in output
    assert "hello" not in output, "prompts are not logged"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["INT", "TERM", "HUP"])
def test_a_signal_during_a_generation_ends_it_with_a_reason_and_the_process_in_time(
    start: Callable[..., ProcessBench], number: int
) -> None:
    bench = start(FakeScript(["x" * 2000], step_latency=0.01))
    bench.wait_active()
    bench.client.ask("hello")
    bench.wait(lambda: len(bench.client.deltas) > 3, "the stream has begun")
    begin = time.monotonic()
    bench.process.send_signal(number)
    bench.process.send_signal(number)  # launch and the terminal may both send one
    assert bench.process.wait(DEADLINE) == 0
    assert time.monotonic() - begin < EXIT_LIMIT
    bench.wait(lambda: bench.client.reports and bench.client.responses, "the end is told")
    assert pairs(bench.client.reports[0])["refusal_code"] == "shutting_down"
    bench.wait(lambda: bench.client.responses == ["".join(bench.client.deltas)], "the pieces join to the response")
    assert "Traceback" not in bench.process.output()


def test_a_signal_while_the_engine_hangs_ends_the_process_in_time(start: Callable[..., ProcessBench]) -> None:
    bench = start(FakeScript(["abcdef"], fault="hang", fault_step=3))  # type: ignore[arg-type]
    bench.wait_active()
    bench.client.ask("hello")
    bench.wait(lambda: len("".join(bench.client.deltas)) >= 2, "the stream has begun")
    begin = time.monotonic()
    bench.process.send_signal(signal.SIGINT)
    bench.process.wait(DEADLINE)
    assert time.monotonic() - begin < EXIT_LIMIT
    bench.wait(lambda: bench.client.reports and bench.client.responses, "the end is told")
    assert pairs(bench.client.reports[0])["refusal_code"] == "shutting_down"
    assert "Traceback" not in bench.process.output()


def blocks_interrupts(pid: int) -> bool:
    """Whether the process has come so far that it takes signals in its own way."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigBlk:"):
            return bool(int(line.split()[1], 16) & 1 << signal.SIGINT - 1)
    return False


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3, 0.6, 1.0])
def test_a_signal_while_the_process_starts_ends_it_without_a_traceback(delay: float) -> None:
    (spec,) = node_specs({"backend": "fake"})
    with NodeProcess(spec) as process:
        wait_for(lambda: blocks_interrupts(process.pid), "the process is in its own code")
        time.sleep(delay)  # no condition to wait for: the moment inside the start is what varies
        process.send_signal(signal.SIGINT)
        process.wait(DEADLINE)
        assert "Traceback" not in process.output()


def test_without_autostart_the_node_waits_to_be_configured(start: Callable[..., ProcessBench]) -> None:
    bench = start(autostart="false")
    bench.wait(lambda: bench.client.lifecycle == "unconfigured", "the node is there")
    assert "autostart" in bench.client.status.message


@pytest.mark.parametrize(
    ("damage", "part"),
    [("missing", "holds nothing"), ("truncated", "embedding.safetensors"), ("version", "format_version 7")],
)
def test_an_engine_that_cannot_be_loaded_is_told_and_the_process_lives(
    start: Callable[..., ProcessBench], tmp_path: Path, damage: str, part: str
) -> None:
    path = write_fake_engine_directory(tmp_path / "engine", FakeScript(["ok"]))
    if damage == "missing":
        path = tmp_path / "nothing"
    elif damage == "truncated":
        file = path / "embedding.safetensors"
        file.write_bytes(file.read_bytes()[:100])
    else:
        manifest = path / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"format_version": 1', '"format_version": 7'))
    bench = start(engine_dir=str(path))
    bench.wait(lambda: bench.client.status is not None and bench.client.status.level == b"\x02", "the status tells")
    assert part in bench.client.status.message and bench.client.lifecycle == "unconfigured"
    bench.wait(lambda: part in bench.process.output(), "the log tells")
    assert "Traceback" not in bench.process.output() and bench.process.exit_code is None
    assert bench.process.stop() == 0


def refused(arguments: list[str], part: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "edgellm_ros.ros.node", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert result.returncode == 2
    assert part in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--ros-args", "-p", "generation.temperature:=hot"], "generation.temperature is 'hot'"),
        (["--ros-args", "-p", "qos_overrides./prompt.subscription.reliability:=banana"], "banana"),
        (["--ros-args", "--params-file", "/nowhere/file.yaml"], "/nowhere/file.yaml"),
        (["--ros-args", "-p", "nonsense"], "nonsense"),
        (["--turbo"], "The argument --turbo is unknown"),
    ],
    ids=["parameter", "quality of service", "missing file", "no assignment", "no ROS argument"],
)
def test_a_command_line_that_cannot_be_taken_ends_the_process_with_one_sentence(
    arguments: list[str], part: str
) -> None:
    refused(arguments, part)


def test_a_value_that_ros_drops_for_one_of_another_type_keeps_the_node_from_starting(tmp_path: Path) -> None:
    file = tmp_path / "robot.yaml"
    file.write_text("/**: {ros__parameters: {safety.max_state_age: 1}}")
    arguments = ["--ros-args", "--params-file", str(file), "-p", "safety.max_state_age:=0.1"]
    refused(arguments, "safety.max_state_age is 0.1 on the command line, and ROS dropped that for 1, which")


def test_a_subscriber_that_is_killed_does_not_end_the_answer(start: Callable[..., ProcessBench]) -> None:
    bench = start(FakeScript(["x" * 150], step_latency=0.01))
    bench.wait_active()
    code = (
        "import rclpy, sys; from std_msgs.msg import String; rclpy.init(); n = rclpy.create_node('listener');"
        "n.create_subscription(String, 'response/delta', lambda m: print(m.data, flush=True), 100); rclpy.spin(n)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ) as listener:
        # What the client sees of the graph may be ahead of what the node has matched, so the node is asked.
        matched: list[str] = []
        bench.client.create_subscription(
            DiagnosticArray,
            "/diagnostics",
            lambda message: matched.extend(pairs(s).get("delta_subscribers", "") for s in message.status),
            10,
        )
        bench.wait(lambda: "2" in matched, "the node has matched the listener")
        bench.client.ask("hello")
        assert listener.stdout is not None and listener.stdout.readline().strip()
        listener.kill()
    bench.wait(lambda: bench.client.responses and bench.client.reports, "the answer is whole")
    assert bench.client.responses == ["x" * 150]


def test_a_signal_is_no_traceback_where_the_executor_has_closed_already() -> None:
    code = """
import os, signal, threading
from edgellm_ros.ros.node_main import StopSignal
stop = StopSignal()
stop.wake = lambda: None.trigger()
(waiting,) = [thread for thread in threading.enumerate() if thread.name == "edgellm-signals"]
os.kill(os.getpid(), signal.SIGTERM)
waiting.join()
assert stop
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_node_that_is_to_outlive_its_terminal_does() -> None:
    code = """
import os, signal
from edgellm_ros.ros.node_main import StopSignal
signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
stop = StopSignal()
os.kill(os.getpid(), signal.SIGHUP)
assert not stop and not signal.sigpending()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
