"""What images cost: processors, the callbacks of cameras, and the token rate while cameras send.

    python -m benchmarks.images [processors] [cameras] [--engine DIR] [--rounds 5] [--output FILE]

``processors``: decoding and processing one 1280 by 720 rgb8 frame, one core, for published settings. ``cameras``: three
raw cameras of 640 by 480 at 30 Hz from another process; time of the receiving thread per message with all of rclpy in
it, and the rate of ``--engine`` (a text engine) with the cameras off and on in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
SMOLVLM = {**HALF, "max_image_size": {"longest_edge": 512}, "resample": 1}
PATCHES = {**HALF, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "smolvlm_one_view": ("smolvlm", {**SMOLVLM, "size": {"longest_edge": 2048}, "do_image_splitting": False}),
    "smolvlm_one_view_of_512": ("smolvlm", {**SMOLVLM, "size": {"longest_edge": 512}, "do_image_splitting": False}),
    "smolvlm_13_tiles": ("smolvlm", {**SMOLVLM, "size": {"longest_edge": 2048}, "do_image_splitting": True}),
    "qwen2_5_vl": ("qwen2_5_vl", {**PATCHES, "min_pixels": 3136, "max_pixels": 12845056}),
    "paligemma": ("paligemma", {**HALF, "resample": 3, "size": {"height": 224, "width": 224}, "image_seq_length": 256}),
    "smolvla": ("smolvla", {}),
}
HEIGHT, WIDTH = 720, 1280
CAMERAS, CAMERA_HEIGHT, CAMERA_WIDTH, CAMERA_RATE = 3, 480, 640, 30
TOKENS = 64


def processors(rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each round, processors in turns."""
    import cv2
    import numpy as np

    from edgellm_ros.vision.decode import RawImage, decode_raw
    from edgellm_ros.vision.processor import Processor, open_processor

    cv2.setNumThreads(1)
    opened: dict[str, Processor] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (family, image) in PROCESSORS.items():
            place = Path(folder) / name
            place.mkdir()
            config = {"model_type": family, "resize_imgs_with_padding": [512, 512]}
            (place / "config.json").write_text(json.dumps(config))
            (place / "preprocessor_config.json").write_text(json.dumps(image))
            (place / "processor_config.json").write_text('{"image_seq_len": 64}')
            opened[name] = open_processor(place)
    random = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    frame = RawImage(HEIGHT, WIDTH, "rgb8", False, 3 * WIDTH, cv2.GaussianBlur(random, (0, 0), 3).tobytes())
    times: dict[str, list[float]] = {name: [] for name in opened}
    for _ in range(rounds + 1):
        for name, processor in opened.items():
            start = time.perf_counter()
            processor.process([decode_raw(frame)])
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: values[1:] for name, values in times.items()}


class Receiver:
    """The cameras of a node, received by one thread whose processor time is counted."""

    def __init__(self) -> None:
        import rclpy
        from rclpy.executors import SingleThreadedExecutor

        from edgellm_ros.ros.images import CameraInputs
        from edgellm_ros.ros.parameters import Settings
        from edgellm_ros.ros.qos_events import QosWatch

        rclpy.init()
        self.node = rclpy.create_node("sees")
        settings = Settings.from_values({"cameras": [f"camera{index}" for index in range(CAMERAS)]})
        self.inputs = CameraInputs(self.node, settings, QosWatch(print), print, lambda *_: None)  # type: ignore[arg-type]
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

    def close(self) -> None:
        """End the thread, then ROS."""
        import rclpy

        self._ended.set()
        self._thread.join()
        self.inputs.close()
        self.node.destroy_node()
        rclpy.try_shutdown()

    @property
    def messages(self) -> int:
        """Frames that were taken so far."""
        return sum(self.inputs.frames.events(camera.name).get("taken", 0) for camera in self.inputs.cameras)


def cameras(engine: Path, rounds: int) -> dict[str, list[float]]:
    """Per round: milliseconds per message, token rates without and with cameras, processor time of this process."""
    from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
    from edgellm_ros.runtime.request import LLMGenerationRequest, LLMGenerationResponse, Message, Request

    receiver = Receiver()
    command = [sys.executable, "-m", "benchmarks.camera_publisher"]
    numbers = [str(value) for value in (CAMERAS, CAMERA_HEIGHT, CAMERA_WIDTH, CAMERA_RATE)]
    publisher = subprocess.Popen([*command, *numbers], stdin=subprocess.PIPE, text=True)
    assert publisher.stdin is not None
    found: dict[str, list[float]] = {
        name: []
        for name in ("callback_ms", "rate_without", "rate_with", "lowered_percent", "cpu_s_without", "cpu_s_with")
    }

    def switch(word: str) -> None:
        publisher.stdin.write(f"{word}\n")  # type: ignore[union-attr]
        publisher.stdin.flush()  # type: ignore[union-attr]
        time.sleep(0.5)

    with LLMInferenceRuntime(engine, threads=2) as runtime:

        def rate() -> tuple[float, float]:
            request = LLMGenerationRequest(
                [Request((Message("user", "Count."),), ignore_eos=True)], max_generate_length=TOKENS
            )
            response, cpu = LLMGenerationResponse(), time.process_time()
            assert runtime.handle_request(request, response), runtime.last_refusal
            times = response.times[0]
            return (TOKENS - 1) / (times.last_token - times.first_token), time.process_time() - cpu

        switch("on")
        while receiver.messages < 100:
            time.sleep(0.1)
        for number in range(rounds + 1):
            switch("off")
            without, cpu_without = rate()
            switch("on")
            before, seconds = receiver.messages, receiver.thread_seconds
            with_cameras, cpu_with = rate()
            time.sleep(1.0)
            callback = 1000 * (receiver.thread_seconds - seconds) / max(1, receiver.messages - before)
            values = (callback, without, with_cameras, 100 * (1 - with_cameras / without), cpu_without, cpu_with)
            if number:
                for name, value in zip(found, values, strict=True):
                    found[name].append(value)
    publisher.stdin.close()
    publisher.wait()
    receiver.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["processors"], help="processors, cameras")
    parser.add_argument("--engine", type=Path, help="a text engine, for cameras")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    results: dict[str, dict[str, list[float]]] = {}
    if "processors" in options.parts:
        results["processors_ms"] = processors(options.rounds)
    if "cameras" in options.parts:
        if options.engine is None:
            parser.error("cameras needs --engine")
        results["cameras"] = cameras(options.engine, options.rounds)
    for part, rows in results.items():
        for name, values in rows.items():
            low, high = min(values), max(values)
            print(f"{part:14} {name:26} {statistics.median(values):10.3f}   ({low:.3f} to {high:.3f})")
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
