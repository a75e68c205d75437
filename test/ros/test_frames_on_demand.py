"""Frames wait until somebody wants them: references alone are kept, and what is used is decoded once."""

from __future__ import annotations

import time
from typing import Any

import pytest
from camera_bench import DISCOVERY, image_message
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image

from edgellm_ros.errors import RequestError
from edgellm_ros.ros.cameras import decode_frame
from edgellm_ros.ros.synchronizer import FRAMES_KEPT, FrameSet

pytest.importorskip("cv2")


def test_callbacks_keep_references_and_decode_nothing(start_cameras, monkeypatch):
    one = start_cameras()
    cameras = one.open()
    monkeypatch.setattr("edgellm_ros.ros.decoded_frames.decode_frame", lambda *_: pytest.fail("decoded"))
    receive = cameras._receiver(cameras.cameras[0])
    serialised = serialize_message(image_message(one.node.get_clock()))
    receive(serialised)
    found = cameras.select(one.settings.images)
    assert found.frames[0].payload is serialised


@pytest.mark.parametrize("options", [{}, {"boxes": None}], ids=["prompts", "chunks"])
def test_frames_wait_in_the_middleware_until_somebody_wants_them(start_cameras, monkeypatch, options):
    monkeypatch.setattr("edgellm_ros.ros.images.GLANCE", 3600.0)
    one = start_cameras()
    cameras = one.open(**options)
    publisher = one.robot.create_publisher(Image, "image", 10)
    one.wait(lambda: publisher.get_subscription_count() and one.node.count_publishers("image"), DISCOVERY)
    values = iter(range(1, 256))
    one.publish_until(
        publisher, lambda: image_message(one.robot.get_clock(), next(values)), lambda: cameras.frames.events("image")
        or (cameras.select(one.settings.images) and cameras.frames.events("image")),
    )  # fmt: skip
    before = cameras.frames.events("image")["taken"]
    for value in (200, 201, 202, 203):
        publisher.publish(image_message(one.robot.get_clock(), value))
    time.sleep(0.3)
    assert cameras.frames.events("image")["taken"] == before  # the executor left them there
    assert one.take().images[0][0, 0, 0] == 203
    assert cameras.frames.events("image")["taken"] <= before + 2  # of a depth of two


def test_a_frame_is_decoded_once_however_often_it_is_used(start_cameras, monkeypatch):
    one = start_cameras()
    cameras = one.open()
    decoded = []

    def count(*arguments: Any) -> Any:
        decoded.append(arguments)
        return decode_frame(*arguments)

    monkeypatch.setattr("edgellm_ros.ros.decoded_frames.decode_frame", count)
    receive = cameras._receiver(cameras.cameras[0])
    for value in (7, 8):
        receive(serialize_message(image_message(one.node.get_clock(), value)))
        first, again = one.take(max_age=0.0), one.take(max_age=0.0)
        assert again.images[0] is first.images[0] and (first.images[0] == value).all()
        assert not first.images[0].flags.writeable
    assert len(decoded) == 2
    with pytest.raises(RequestError, match="24 pixels; want at most 5"):
        one.take(max_age=0.0, max_pixels=5)


def test_an_earlier_frame_of_a_series_was_decoded_when_it_was_the_newest(start_cameras, monkeypatch):
    one = start_cameras()
    cameras = one.open(series=3)
    receive = cameras._receiver(cameras.cameras[0])
    base, taken = one.node.get_clock().now().nanoseconds - 10**9, []
    for number in range(5):
        message = image_message(one.node.get_clock(), number)
        stamp = base + number * 10**8
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp, 10**9)
        receive(serialize_message(message))
        taken.append(one.take(max_age=0.0).images[0])
    monkeypatch.setattr("edgellm_ros.ros.decoded_frames.decode_frame", lambda *_: pytest.fail("decoded again"))
    for number in (2, 3, 4):
        found = cameras.take_near(one.settings.images, base + number * 10**8, 0.01)
        assert found.images[0] is taken[number]
    assert len(cameras._decoded_frames._held) == 3


def test_a_camera_that_is_late_finds_its_pair_among_the_frames_that_wait(start_cameras, monkeypatch):
    monkeypatch.setattr("edgellm_ros.ros.images.GLANCE", 3600.0)
    one = start_cameras({"cameras": ["a", "b"], "images.sync_slop": 0.005, "images.max_age": 0.0})
    cameras = one.open()
    publishers = [one.robot.create_publisher(Image, f"{name}/image_raw", 10) for name in "ab"]
    for publisher, name in zip(publishers, "ab", strict=True):
        one.publish_until(
            publisher, lambda: image_message(one.robot.get_clock()), lambda name=name: cameras.select(
                one.settings.images) and cameras.frames.events(name),
        )  # fmt: skip
    cameras.frames.clear()
    messages = []
    for _ in range(FRAMES_KEPT):
        messages.append(image_message(one.robot.get_clock()))
        publishers[0].publish(messages[-1])
        time.sleep(0.02)
    publishers[1].publish(messages[0])
    one.wait(lambda: isinstance(cameras.select(one.settings.images), FrameSet), 2.0)


@pytest.mark.parametrize("policy", [{"depth": 9}, {"history": "keep_all"}], ids=str)
def test_the_newest_frame_is_used_however_many_are_let_wait(start_cameras, monkeypatch, policy):
    monkeypatch.setattr("edgellm_ros.ros.images.GLANCE", 3600.0)
    one = start_cameras(**{f"qos_overrides./image.subscription.{name}": value for name, value in policy.items()})
    cameras = one.open()
    publisher = one.robot.create_publisher(Image, "image", 50)
    one.wait(lambda: publisher.get_subscription_count() and one.node.count_publishers("image"), DISCOVERY)
    one.publish_until(
        publisher, lambda: image_message(one.robot.get_clock(), 1), lambda: cameras.select(one.settings.images)
        and cameras.frames.events("image"),
    )  # fmt: skip
    for value in range(100, 140):
        publisher.publish(image_message(one.robot.get_clock(), value))
        time.sleep(0.005)
    time.sleep(0.3)
    assert one.take().images[0][0, 0, 0] == 139


def test_cameras_are_glanced_at_while_a_simulation_stands_still(start_cameras, monkeypatch):
    """QOS-2 and the counts of diagnostics do not wait for /clock."""
    monkeypatch.setattr("edgellm_ros.ros.images.GLANCE", 0.05)
    one = start_cameras(use_sim_time=True)
    cameras = one.open()
    publisher = one.robot.create_publisher(Image, "image", 10)
    one.publish_until(publisher, lambda: image_message(one.robot.get_clock()), lambda: cameras.frames.events("image"))


@pytest.mark.parametrize(
    ("parameters", "options"),
    [({"images.stamp_source": "receive"}, {}), ({"action.pairing": "every"}, {"boxes": None}), ({}, {"series": 4})],
    ids=["arrival is the stamp", "every one", "a series"],
)
def test_where_every_frame_counts_the_executor_takes_it(start_cameras, parameters, options):
    one = start_cameras(parameters)
    cameras = one.open(**options)
    assert cameras._glance is None
    publisher = one.robot.create_publisher(Image, "image", 10)
    one.publish_until(publisher, lambda: image_message(one.robot.get_clock()), lambda: cameras.frames.events("image"))
