"""The node with an engine that sees: cameras in, answers and reports out."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node_bench import NodeBench
from sensor_msgs.msg import Image
from vision_engines import engine

from edgellm_ros.ros.client import pairs

pytest.importorskip("cv2")

PROCESSOR = {
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "patch_size": 3,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "size": {"shortest_edge": 36, "longest_edge": 648},
}
DISCOVERY = 60.0


@pytest.fixture(scope="module")
def seeing_engine(tmp_path_factory) -> Path:
    """A tiny Qwen2-VL with random weights, and the processor file that its like are published with."""
    folder = tmp_path_factory.mktemp("seeing") / "engine"
    shutil.copytree(engine("qwen2_vl", "onnxruntime"), folder)
    (folder / "visual" / "preprocessor_config.json").write_text(json.dumps(PROCESSOR), "utf-8")
    return folder


class Camera:
    """Publishes a picture at 50 Hz until it is stopped."""

    def __init__(self, bench: NodeBench, topic: str, value: int, encoding: str = "rgb8") -> None:
        self._clock = bench.client.get_clock()
        self._publisher = bench.client.create_publisher(Image, topic, 5)
        self._message = Image(height=24, width=48, encoding=encoding, step=144)
        self.show(value)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def show(self, value: int) -> None:
        """Publish another picture from now on."""
        self._message.data = bytes([value]) * (144 * 24)

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self._message.header.stamp = self._clock.now().to_msg()
            self._publisher.publish(self._message)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def see(start_node: Callable[..., NodeBench], seeing_engine: Path) -> Iterator[Callable[..., NodeBench]]:
    cameras: list[Camera] = []

    def start(topics: dict[str, int], encoding: str = "rgb8", **parameters: Any) -> NodeBench:
        values = {
            "engine.directory": str(seeing_engine),
            "engine.backend": "onnxruntime",
            "generation.max_tokens": 4,
            "generation.temperature": 0.0,
            "images.max_age": 10.0,
            "images.sync_slop": 1.0,
        }
        bench = start_node({**values, **{name.replace("__", "."): value for name, value in parameters.items()}})
        cameras.extend(Camera(bench, topic, value, encoding) for topic, value in topics.items())
        inputs = bench.node.state.cameras
        settings = bench.node.parameters.settings().images
        if topics:
            bench.wait(lambda: type(inputs.select(settings)).__name__ == "FrameSet", "images come", DISCOVERY)
        return bench

    start.cameras = cameras
    yield start
    for camera in cameras:
        camera.stop()


def ask(bench: NodeBench, prompt: str = "what is it?") -> dict[str, str]:
    (report,) = bench.ask(prompt)
    return report


def test_a_prompt_is_answered_with_the_newest_image_and_the_report_tells(see):
    bench = see({"image": 30})
    report = ask(bench)
    assert (report["refusal_code"], report["images"], report["visual_pruning"]) == ("", "1", "off")
    # 48 by 24 becomes 36 by 18, and a token looks at 6 by 6
    assert (report["visual_tokens"], report["visual_tokens_kept"]) == ("18", "18")
    assert 0 <= float(report["image_age_s.image"]) < 10
    assert float(report["images_stamp"]) == pytest.approx(time.time(), abs=60)


def test_the_same_picture_is_encoded_once_and_a_new_one_again(see):
    bench = see({"image": 1})
    metrics = bench.node.state.host._runtime.rank.vision.metrics
    for _ in range(2):
        ask(bench)
    assert metrics.encoded == 1
    see.cameras[0].show(200)
    bench.wait(lambda: ask(bench) and metrics.encoded == 2, "the new picture is seen")


def test_the_pruner_is_live_and_frozen_per_request(see):
    bench = see({"image": 99})
    assert bench.set(visual_pruner__enabled=True, visual_pruner__reduction_ratio=0.5) == ["", ""]
    report = ask(bench)
    assert report["visual_pruning"] == "applied"
    assert (report["visual_tokens"], report["visual_tokens_kept"]) == ("18", "9")
    assert report["setting.visual_pruner.reduction_ratio"] == "0.5"
    bench.set(visual_pruner__min_visual_tokens=100)
    assert ask(bench)["visual_pruning"] == "few_tokens"
    assert "at least one pivot" in bench.set_atomically(
        visual_pruner__pivot_image_tokens=0, visual_pruner__pivot_text_tokens=0
    )
    assert "out of range" in bench.set(visual_pruner__reduction_ratio=1.0)[0]


def test_several_cameras_come_in_their_order(see):
    bench = see({"left/image_raw": 10, "right/image_raw": 200}, cameras=["left", "right"])
    report = ask(bench)
    assert (report["images"], report["visual_tokens"]) == ("2", "36")
    assert {"image_age_s.left", "image_age_s.right"} < set(report)
    assert bench.wait(lambda: bench.diagnostics.get("input left"), "diagnostics of cameras")


def test_no_image_is_refused_and_the_status_says_what_is_missing(see):
    bench = see({}, cameras=["front"])
    report = ask(bench)
    assert report["refusal_code"] == "no_images"
    assert "No image has come from front yet" in report["refusal"]
    bench.wait(lambda: "nothing to see" in bench.client.status.message, "the status names the camera")
    bench.set(images__on_missing="text_only")
    report = ask(bench)
    assert (report["refusal_code"], report["images"]) == ("", "0")
    assert report["images_absent"] == "No image has come from front yet."


def test_a_prompt_that_waits_for_images_can_be_cancelled(see):
    bench = see({}, images__on_missing="wait")
    bench.client.ask("look")
    bench.wait_running()
    bench.trigger("cancel")
    bench.wait(lambda: bench.client.reports, "the report")
    assert pairs(bench.client.reports[0])["refusal_code"] == "cancelled"


@pytest.mark.parametrize("encoding", ["RGB8", "", "64FC3"])
def test_an_image_of_no_known_encoding_is_refused_and_the_node_lives(see, encoding):
    """IMG-5."""
    bench = see({"image": 5}, encoding)
    for _ in range(2):
        report = ask(bench)
        assert report["refusal_code"] == "bad_image"
        assert "image: " in report["refusal"] and "rgb8" in report["refusal"]
    bench.wait(lambda: bench.diagnostics["requests"].level == b"\x01", "diagnostics warn")
    assert bench.lifecycle == "active"


def test_the_overlay_shows_what_was_kept(see):
    bench = see({"image": 200}, visual_pruner__enabled=True, visual_pruner__reduction_ratio=0.6)
    found: list[Image] = []
    bench.client.create_subscription(Image, "edgellm/overlay", found.append, 1)
    bench.wait(lambda: bench.node.state.cameras._overlay.get_subscription_count(), "somebody looks", DISCOVERY)
    ask(bench)
    bench.wait(lambda: found, "the overlay")
    picture = np.frombuffer(found[0].data, np.uint8).reshape(found[0].height, found[0].width, 3)
    assert found[0].width == 48 and found[0].height > 24
    assert {50, 200} <= set(np.unique(picture[:24]))


def test_cameras_are_given_back_when_the_node_is_cleaned_up(see):
    from lifecycle_msgs.msg import Transition

    bench = see({})
    topics, timers = (len(list(found)) for found in (bench.node.subscriptions, bench.node.timers))
    for transition in (Transition.TRANSITION_DEACTIVATE, Transition.TRANSITION_CLEANUP):
        assert bench.change(transition)
    assert bench.node.state.cameras is None
    assert len(list(bench.node.subscriptions)) == topics - 1
    assert len(list(bench.node.timers)) == timers - 1  # that of the glances
    bench.activate()
    assert len(list(bench.node.subscriptions)) == topics
