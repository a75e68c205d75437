"""The ROS node as an engine: a real node process and, in this process, the client that talks to it."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from .ours import version
from .session_times import median_share_between
from .workspace import ROOT, child_environment

NODE_NAME = "edgellm_benchmark"
_START_SECONDS = 60.0
_ANSWER_SECONDS = 120.0


class Client:
    """Publishes prompts and notes when the node's messages arrive. Its callbacks run in one thread of its own."""

    def __init__(self) -> None:
        import rclpy
        from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
        from rclpy.executors import SingleThreadedExecutor
        from rclpy.qos import DurabilityPolicy, QoSProfile
        from std_msgs.msg import String

        self._string = String
        self._context = rclpy.Context()
        self._context.init()
        self._node = rclpy.create_node("edgellm_benchmark_client", context=self._context)
        latched = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self._prompt = self._node.create_publisher(String, "prompt", 10)
        self._node.create_subscription(String, "response/delta", self._on_delta, 100)
        self._node.create_subscription(DiagnosticArray, "report", self._on_report, 10)
        self._node.create_subscription(DiagnosticStatus, f"{NODE_NAME}/status", self._on_status, latched)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._first_delta = 0.0
        self._report: dict[str, str] = {}
        self._changed = threading.Condition()
        self._status: Any = None
        self._thread = threading.Thread(target=self._executor.spin, daemon=True)
        self._thread.start()

    def wait_active(self, process: subprocess.Popen[bytes]) -> float:
        """The time at which the node's status said that it is ready.

        :raises RuntimeError: the node ended, or was not ready in time.
        """
        deadline = time.monotonic() + _START_SECONDS
        with self._changed:
            while self._status is None or self._status.level != b"\0":
                if process.poll() is not None:
                    raise RuntimeError(f"the node exited with code {process.returncode}")
                if time.monotonic() > deadline:
                    said = self._status.message if self._status is not None else "nothing"
                    raise RuntimeError(f"the node was not ready within {_START_SECONDS:.0f} s; its status said: {said}")
                self._changed.wait(0.05)
        return time.monotonic()

    def ask(self, text: str) -> tuple[float, float]:
        """Seconds from publishing a prompt to its first delta, and the time to first token that the report gives.

        :raises RuntimeError: no report in time, or the request was refused.
        """
        deadline = time.monotonic() + _START_SECONDS
        while not (self._prompt.get_subscription_count() and self._node.count_publishers("response/delta")):
            if time.monotonic() > deadline:
                raise RuntimeError("the node's topics were not found")
            time.sleep(0.02)
        self._first_delta, self._report = 0.0, {}
        start = time.monotonic()
        self._prompt.publish(self._string(data=text))
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._report), _ANSWER_SECONDS):
                raise RuntimeError(f"no report within {_ANSWER_SECONDS:.0f} s")
        report = self._report
        if report["refusal"] or not self._first_delta:
            raise RuntimeError(f"the node did not answer: {report['refusal'] or report['finish_reason']}")
        return self._first_delta - start, float(report["time_to_first_token_s"])

    def close(self) -> None:
        """Leave the graph."""
        self._executor.shutdown()
        self._thread.join(5)
        self._node.destroy_node()
        self._context.try_shutdown()

    def _on_delta(self, message: Any) -> None:
        self._first_delta = self._first_delta or time.monotonic()

    def _on_report(self, message: Any) -> None:
        with self._changed:
            self._report = {pair.key: pair.value for pair in message.status[0].values}
            self._changed.notify_all()

    def _on_status(self, message: Any) -> None:
        with self._changed:
            self._status = message
            self._changed.notify_all()


class Node:
    """Starts the node anew in each round, asks it, and ends it."""

    def __init__(self, *, threads: int, engine_directory: str) -> None:
        self._threads = threads
        self._directory = engine_directory
        os.environ["ROS_DOMAIN_ID"] = str(100 + os.getpid() % 100)
        os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")

    def versions(self) -> dict[str, str]:
        """Versions of this package, the engine library and the ROS client library."""
        return {name: version(name) for name in ("edgellm_ros", "onnxruntime", "rclpy")}

    def session(self, prompts: int, tokens: int) -> dict[str, float]:
        """Start, ``prompts`` requests of ``tokens`` each, stop; medians over the requests."""
        client = Client()
        with tempfile.TemporaryDirectory() as folder:
            times = Path(folder) / "times.json"
            log = (Path(folder) / "log").open("w+b")
            start = time.monotonic()
            process = subprocess.Popen(
                self._command(tokens), cwd=ROOT, env=self._environment(times), stdout=log, stderr=log
            )
            try:
                active = client.wait_active(process) - start
                asked = [client.ask(f"Question {index}: tell me about the number {index}.") for index in range(prompts)]
                peak = peak_memory(process.pid)
            except RuntimeError as error:
                log.seek(0)
                lines = log.read().decode("utf-8", "replace").strip().splitlines()
                raise RuntimeError(f"{error} (last line of its log: {lines[-1][:150] if lines else 'none'})") from None
            finally:
                end(process)
                client.close()
                log.close()
            noted = json.loads(times.read_text(encoding="utf-8"))
        return {
            "first_delta": 1e3 * statistics.median(first for first, _ in asked),
            "first_delta_added": 1e3 * statistics.median(first - own for first, own in asked),
            "publish_time": 1e6 * statistics.median(noted["publish"]),
            "outside_share": median_share_between(noted["sessions"]),
            "active_after": active,
            "peak_memory": peak,
        }

    def close(self) -> None:
        """Nothing runs between rounds."""

    def _command(self, tokens: int) -> list[str]:
        settings = {
            "engine.directory": self._directory,
            "engine.threads": self._threads,
            "autostart": "true",
            "generation.max_tokens": tokens,
            "generation.temperature": 0.0,
        }
        parameters = [word for name, value in settings.items() for word in ("-p", f"{name}:={value}")]
        node = [sys.executable, "-m", "benchmarks.timed_node"]
        return [*node, "--ros-args", "-r", f"__node:={NODE_NAME}", *parameters]

    def _environment(self, times: Path) -> dict[str, str]:
        return {**child_environment(), "EDGELLM_NODE_TIMES": str(times)}


def peak_memory(pid: int) -> float:
    """Peak resident memory of a live process in MB (10^6 bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("the system does not tell the peak memory of a process")


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt as Ctrl-C does, wait, and kill only what does not listen."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
