"""What three cameras cost a process that generates text: time of the receiving thread, and the token rate.

Short windows in turns: cameras off, sending frames of 8 by 8 pixels (what any message costs), and sending real ones;
under an executor that takes every frame as it comes (as for ``action.pairing`` every), and with frames left in the
middleware until a prompt or a chunk wants them. Every window generates ``TOKENS`` tokens, behind a look at the cameras.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CAMERAS, HEIGHT, WIDTH, RATE = 3, 480, 640, 30
TOKENS = 48
SETTLE = 0.3  # s after a switch
DISCOVERY = 30.0  # s
KINDS = ("taken", "on_demand")


def use_profile() -> None:
    """Fast DDS with enough shared memory for frames, as the package's launch files have it."""
    from edgellm_ros.resources import resource_path
    from edgellm_ros.ros.dds_profile import PROFILE_NAME, profile_variable

    os.environ.setdefault(profile_variable(os.environ), str(resource_path(PROFILE_NAME)))


class Receiver:
    """The cameras of a node, received by one thread whose processor time is counted."""

    def __init__(self, kind: str) -> None:
        import rclpy
        from rclpy.executors import SingleThreadedExecutor

        from edgellm_ros.ros.images import CameraInputs
        from edgellm_ros.ros.parameters import Settings
        from edgellm_ros.ros.qos_events import QosWatch

        rclpy.init()
        self.node = rclpy.create_node("sees")
        source = "receive" if kind == "taken" else "header"
        cameras = [f"camera{index}" for index in range(CAMERAS)]
        self.settings = Settings.from_values({"cameras": cameras, "images.stamp_source": source})
        self.inputs = CameraInputs(self.node, self.settings, QosWatch(print), lambda *_: None, None)
        self.thread_seconds = 0.0
        executor = SingleThreadedExecutor()
        executor.add_node(self.node)
        self._ended = threading.Event()

        def spin() -> None:
            while not self._ended.is_set():
                executor.spin_once(timeout_sec=0.1)
                self.thread_seconds = time.thread_time()

        self._thread = threading.Thread(target=spin, daemon=True)
        self._thread.start()

    def look(self) -> bool:
        """Take the newest frames as a prompt does; whether there were any."""
        from edgellm_ros.errors import RequestError

        try:
            return bool(self.inputs.take(self.settings.images, stopped=lambda: False).images)
        except RequestError:
            return False

    def close(self) -> None:
        """End the thread, then ROS."""
        import rclpy

        self._ended.set()
        self._thread.join()
        self.inputs.close()
        self.node.destroy_node()
        rclpy.try_shutdown()


class Publisher:
    """The process of the cameras."""

    def __init__(self) -> None:
        numbers = [str(value) for value in (CAMERAS, HEIGHT, WIDTH, RATE)]
        command = [sys.executable, "-m", "benchmarks.camera_publisher", *numbers]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def switch(self, word: str) -> int:
        """``off``, ``tiny`` or ``on``; messages that were published since the last switch."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(engine: Path, rounds: int) -> dict[str, list[float]]:
    """Values of each round by name; a round before them is dropped."""
    from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime

    use_profile()
    publisher = Publisher()
    found: dict[str, list[float]] = {}
    with LLMInferenceRuntime(engine, threads=2) as runtime:
        for number in range(rounds + 1):
            for kind in KINDS:
                receiver = Receiver(kind)
                values = _round(receiver, publisher, lambda: _generate(runtime))
                receiver.close()
                if number:
                    for name, value in values.items():
                        found.setdefault(f"{kind}_{name}", []).append(value)
    publisher.close()
    return found


def _round(receiver: Receiver, publisher: Publisher, generate: Callable[[], float]) -> dict[str, float]:
    publisher.switch("on")
    end = time.monotonic() + DISCOVERY
    while not receiver.look():
        if time.monotonic() > end:
            raise TimeoutError("no frame came from the publisher; see whether Fast DDS has its profile")
        time.sleep(0.05)
    rates: dict[str, list[float]] = {}
    values: dict[str, float] = {}
    for word in ("off", "tiny", "on", "off"):
        publisher.switch(word)
        time.sleep(SETTLE)
        publisher.switch(word)
        thread, cpu, start = receiver.thread_seconds, time.process_time(), time.monotonic()
        if word == "on":
            receiver.look()
        rates.setdefault(word, []).append(generate())
        seconds = time.monotonic() - start
        messages = publisher.switch(word)
        if word != "off":
            values[f"{word}_ms_per_message"] = 1e3 * (receiver.thread_seconds - thread) / max(1, messages)
            values[f"{word}_messages_per_second"] = messages / seconds
        values[f"{word}_cpu_percent"] = 100 * (time.process_time() - cpu) / seconds
    publisher.switch("off")
    off = sum(rates["off"]) / len(rates["off"])  # before and after
    return {
        **values,
        "off_tokens_per_second": off,
        "on_tokens_per_second": rates["on"][0],
        "lowered_percent": 100 * (1 - rates["on"][0] / off),
    }


def _generate(runtime: Any) -> float:
    from edgellm_ros.runtime.request import LLMGenerationRequest, LLMGenerationResponse, Message, Request

    request = LLMGenerationRequest([Request((Message("user", "Count."),), ignore_eos=True)], max_generate_length=TOKENS)
    response = LLMGenerationResponse()
    if not runtime.handle_request(request, response):
        raise RuntimeError(f"the runtime refused the request: {runtime.last_refusal}")
    times = response.times[0]
    return (TOKENS - 1) / float(times.last_token - times.first_token)
