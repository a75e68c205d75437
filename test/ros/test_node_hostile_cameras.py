"""A node that sees among hostile cameras: each prompt ends once, with reason or answer, and afterwards it works."""

from __future__ import annotations

import itertools
import math
import random
import struct
import zlib

import numpy as np
import pytest
import rclpy
import test_node_cameras as node_cameras
from rclpy.context import Context
from rclpy.node import Node
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image
from test_policy_hostile import odd_image, odd_stamp

from edgellm_ros.ros.client import pairs

see, seeing_engine, ask, DISCOVERY = (
    node_cameras.see,
    node_cameras.seeing_engine,
    node_cameras.ask,
    node_cameras.DISCOVERY,
)
NEVER = ("engine_failed", "cancelled")


def line(height, width, now):
    """So long and narrow that a tower's square of it would take gigabytes."""
    message = Image(height=height, width=width, encoding="mono8", step=width, data=bytes(height * width))
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(now, 10**9)
    return serialize_message(message)


def odd_file(rng):
    """JPEG and PNG, whole or cut, damaged, of odd sizes, or claiming any."""
    cv2 = pytest.importorskip("cv2")
    shape = rng.choice([(24, 48, 3), (24, 48), (1, 1, 3), (1, 300, 3), (300, 1), (24, 48, 4)])
    kind = rng.choice([".png", ".png", ".jpg"]) if shape[-1] != 4 else ".png"
    deep = kind == ".png" and rng.random() < 0.3
    data = bytearray(cv2.imencode(kind, np.full(shape, 77, np.uint16 if deep else np.uint8))[1].tobytes())
    choice = rng.random()
    if choice < 0.2:
        return bytes(data[: rng.randrange(len(data))])
    if choice < 0.4:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif choice < 0.5 and kind == ".png":
        struct.pack_into(">II", data, 16, rng.choice([0, 1, 2**31 - 1, 60_000]), rng.choice([0, 1, 2**31 - 1, 60_000]))
        struct.pack_into(">I", data, 29, zlib.crc32(data[12:29]))
    return bytes(data)


def odd_compressed(rng, now):
    message = CompressedImage(format=rng.choice(["jpeg", "png", "", "16UC1; compressedDepth png", "\x1b[31m"]))
    message.data = rng.choice(
        [odd_file(rng), odd_file(rng), struct.pack("<iff", 0, 0.0, math.nan) + odd_file(rng), b""]
    )
    message.header.stamp = odd_stamp(rng, now)
    return serialize_message(message)


@pytest.mark.parametrize(("transport", "kind", "make"), [
    ("raw", Image, odd_image), ("compressed", CompressedImage, odd_compressed),
], ids=["raw", "compressed"])  # fmt: skip
def test_hostile_images_end_no_node_and_each_prompt_ends_once_with_a_reason(see, capfd, transport, kind, make):
    """IMG-5 to IMG-9 and SYN-2, through topics."""
    rng = random.Random(transport)
    bench = see({}, **{"images__transport": [transport], "images__max_age": 60.0})
    cameras = bench.node.state.cameras
    (topic,) = [camera.topic for camera in cameras.cameras]
    publisher = bench.client.create_publisher(kind, topic, 10)
    bench.wait(lambda: publisher.get_subscription_count() and cameras.facts()[0].publishers, "they meet", DISCOVERY)
    ends = []
    for number in range(60):
        now = bench.client.get_clock().now().nanoseconds
        told = sum(cameras.frames.events("image").values())
        publisher.publish(line(1, 1_000_000, now) if (transport, number % 12) == ("raw", 5) else make(rng, now))
        bench.wait(lambda told=told: cameras._look() or sum(cameras.frames.events("image").values()) > told, "it comes")
        ends.append(ask(bench)["refusal_code"])
    assert {"bad_image"} < {*ends} and not {*ends} & {*NEVER}, ends
    assert len(bench.client.reports) == len(ends)
    said = capfd.readouterr().err
    assert "Traceback" not in said
    good = node_cameras.Camera(bench, topic, 9) if transport == "raw" else None
    if good is not None:
        see.cameras.append(good)
        bench.wait(lambda: ask(bench)["refusal_code"] == "", "a sound image is answered", DISCOVERY)
    assert bench.lifecycle == "active"


@pytest.fixture
def stranger():
    """A node of another process, as far as the middleware can tell."""
    context = Context()
    rclpy.init(context=context)
    node = Node("stranger", context=context)
    yield node
    node.destroy_node()
    rclpy.try_shutdown(context=context)


def test_a_topic_of_another_type_is_told_and_one_that_changes_back_is_seen(see, stranger):
    bench = see({}, images__max_age=60.0)
    other = stranger.create_publisher(CompressedImage, "image", 5)
    told = (
        "What is published on /image is sensor_msgs/msg/CompressedImage, not of the type that the transport raw takes"
    )

    def warned():
        other.publish(CompressedImage(format="jpeg"))
        status = bench.diagnostics.get("input image")
        return status is not None and told in status.message

    bench.wait(warned, "diagnostics name the type", DISCOVERY)
    assert ask(bench)["refusal_code"] == "no_images"
    stranger.destroy_publisher(other)
    see.cameras.append(node_cameras.Camera(bench, "image", 50))
    bench.wait(lambda: ask(bench)["refusal_code"] == "", "the image of the right type is seen", DISCOVERY)
    bench.wait(lambda: "publishers" in bench.diagnostics["input image"].message, "and nothing is wrong any more")


def test_a_camera_that_disappears_is_refused_by_its_age_and_seen_again_when_it_is_back(see):
    """SYN-1."""
    bench = see({"left/image_raw": 10, "right/image_raw": 200}, cameras=["left", "right"], images__max_age=0.5)
    bench.wait(lambda: ask(bench)["refusal_code"] == "", "both are seen", DISCOVERY)
    see.cameras[1].stop()
    report = bench.wait(lambda: (found := ask(bench))["refusal_code"] and found, "it is missed")
    assert (
        report["refusal_code"] == "no_images" and "right" in report["refusal"] and "images.max_age" in report["refusal"]
    )
    assert bench.set(images__on_missing="text_only") == [""]
    report = ask(bench)
    assert (report["refusal_code"], report["images"]) == ("", "0") and "right" in report["images_absent"]
    see.cameras[1] = node_cameras.Camera(bench, "right/image_raw", 200)
    bench.wait(lambda: ask(bench)["images"] == "2", "both are seen again", DISCOVERY)


def test_settings_of_the_pruner_that_are_none_change_nothing_while_an_answer_runs(see):
    bench = see({"image": 99}, visual_pruner__enabled=True, visual_pruner__reduction_ratio=0.5,
                generation__max_tokens=40)  # fmt: skip
    odd = [0.0, 1.0, -0.5, 2.0, math.nan, math.inf, -math.inf, "0.5", True, [0.5], 1e-300]
    bench.client.ask("what is it?")
    for value in odd:
        assert bench.set(visual_pruner__reduction_ratio=value) != [""], value
    for name, value in itertools.product(
        ("min_visual_tokens", "pivot_text_tokens"), (-1, 65_536, 2**40, 1.5, "4", math.nan)
    ):
        assert bench.set(**{f"visual_pruner__{name}": value}) != [""], (name, value)
    assert bench.set(visual_pruner__algorithm="fast") != [""] and bench.set(visual_pruner__enabled="yes") != [""]
    bench.wait(lambda: bench.client.reports, "the answer")
    for report in (pairs(bench.client.reports[0]), ask(bench)):
        assert (report["visual_pruning"], report["visual_tokens_kept"]) == ("applied", "9")
        assert report["setting.visual_pruner.reduction_ratio"] == "0.5"
