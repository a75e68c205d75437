"""Frames that cannot be used are turned away by name, whatever they hold, and end nothing."""

from __future__ import annotations

import pytest
from camera_bench import image_message
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image

from edgellm_ros.errors import RefusalCode, RequestError
from edgellm_ros.ros.cameras import Camera, decode_frame, stamp_of

pytest.importorskip("cv2")


@pytest.mark.parametrize(("sentence", "change"), [
    ("stamps its images zero", {"sec": 0, "nanosec": 0}), ("ahead of this node's clock", {"sec": 2**31 - 1}),
])  # fmt: skip
def test_frames_that_are_turned_away_are_told_and_counted(start_cameras, sentence, change):
    """SYN-2."""
    one = start_cameras()
    cameras = one.open()
    message = image_message(one.node.get_clock())
    for name, value in change.items():
        setattr(message.header.stamp, name, value)
    cameras._receiver(cameras.cameras[0])(serialize_message(message))
    assert sentence in one.warnings[0][1] and "/image" in one.warnings[0][1]
    assert sum(cameras.frames.events("image").values()) == 1


def test_zero_stamps_do_where_arrival_counts(start_cameras):
    one = start_cameras({"images.stamp_source": "receive"})
    cameras = one.open()
    message = image_message(one.node.get_clock())
    message.header.stamp.sec = message.header.stamp.nanosec = 0
    cameras._receiver(cameras.cameras[0])(serialize_message(message))
    assert len(one.take().images) == 1


@pytest.mark.parametrize("damage", [b"", bytes(3), bytes(40)])
def test_a_message_that_is_no_image_ends_nothing(start_cameras, damage):
    one = start_cameras({"images.stamp_source": "receive"})
    cameras = one.open()
    cameras._receiver(cameras.cameras[0])(damage)
    with pytest.raises(RequestError) as refusal:
        one.take()
    assert refusal.value.code in (RefusalCode.BAD_IMAGE, RefusalCode.NO_IMAGES)


def test_an_image_that_does_not_decode_is_refused_with_its_camera():
    """IMG-5."""
    message = Image(height=2, width=2, encoding="RGB8", step=6, data=bytes(12))
    with pytest.raises(RequestError, match=r"^front: .*'rgb8' is one") as refusal:
        decode_frame(Camera("front", "/front/image_raw", False), serialize_message(message), 100)
    assert refusal.value.code is RefusalCode.BAD_IMAGE
    large = Image(height=20, width=20, encoding="mono8", step=20, data=bytes(400))
    with pytest.raises(RequestError, match="400 pixels; want at most 100"):
        decode_frame(Camera("front", "/front/image_raw", False), serialize_message(large), 100)


def test_the_stamp_is_read_from_the_first_bytes_in_either_byte_order():
    message = Image()
    message.header.stamp.sec, message.header.stamp.nanosec = 1_700_000_000, 123_456_789
    serialised = bytes(serialize_message(message))
    assert stamp_of(serialised) == 1_700_000_000_123_456_789
    swapped = b"\x00\x00" + serialised[2:4] + serialised[4:8][::-1] + serialised[8:12][::-1]
    assert stamp_of(swapped) == 1_700_000_000_123_456_789
    assert stamp_of(serialised[:11]) is None
