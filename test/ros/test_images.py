"""Cameras of the node over real topics: quality of service, pairs, waiting, what is shown and told of them."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from camera_bench import DISCOVERY, image_message
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.serialization import serialize_message
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image

from edgellm_ros.errors import EdgeLLMError, RefusalCode, RequestError
from edgellm_ros.ros.cameras import cameras_of
from edgellm_ros.ros.images import RequestImages
from edgellm_ros.ros.parameters import Settings
from edgellm_ros.vision.pruner import PruningOutcome, PruningReport

cv2 = pytest.importorskip("cv2")


@pytest.mark.parametrize("before", [True, False], ids=["publisher first", "node first"])
@pytest.mark.parametrize("reliability", [ReliabilityPolicy.BEST_EFFORT, ReliabilityPolicy.RELIABLE], ids=str)
def test_images_arrive_from_every_publisher_before_and_after(start_cameras, reliability, before):
    """QOS-1."""
    one = start_cameras()
    profile = QoSProfile(depth=5, reliability=reliability)
    if before:
        publisher = one.robot.create_publisher(Image, "image", profile)
    cameras = one.open()
    if not before:
        publisher = one.robot.create_publisher(Image, "image", profile)
    one.publish_until(publisher, lambda: image_message(one.robot.get_clock()), lambda: cameras.frames.events("image"))
    taken = one.take()
    assert np.array_equal(taken.images[0], np.full((4, 6, 3), 7, np.uint8))
    assert (taken.cameras, taken.frame_id) == (("image",), "lens")
    assert 0 <= taken.ages["image"] < 1.0


def test_a_policy_that_does_not_fit_is_told_by_topic_and_name(start_cameras):
    """QOS-2."""
    one = start_cameras(**{"qos_overrides./image.subscription.reliability": "reliable"})
    one.robot.create_publisher(Image, "image", QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT))
    one.open()
    one.wait(lambda: one.qos.found, DISCOVERY)
    (topic, sentence) = one.warnings[0]
    assert topic == "/image"
    assert "reliability" in sentence and "/image" in sentence


def test_several_cameras_pair_and_each_has_its_transport(start_cameras):
    one = start_cameras({"cameras": ["front", "arm/wrist"], "images.transport": ["raw", "compressed"]})
    cameras = one.open()
    assert [camera.topic for camera in cameras.cameras] == ["/front/image_raw", "/arm/wrist/image_raw/compressed"]
    raw = one.robot.create_publisher(Image, "front/image_raw", 5)
    packed = one.robot.create_publisher(CompressedImage, "arm/wrist/image_raw/compressed", 5)
    flat = np.full((16, 16, 3), (10, 200, 60), np.uint8)

    def compressed() -> CompressedImage:
        message = CompressedImage(format="jpeg", data=cv2.imencode(".png", flat[..., ::-1])[1].tobytes())
        message.header.stamp = one.robot.get_clock().now().to_msg()
        return message

    def both() -> bool:
        packed.publish(compressed())
        return type(cameras.select(one.settings.images)).__name__ == "FrameSet"

    one.publish_until(raw, lambda: image_message(one.robot.get_clock()), both)
    taken = one.take()
    assert taken.cameras == ("front", "arm/wrist")
    assert taken.images[0][0, 0].tolist() == [7, 7, 7]
    assert np.array_equal(taken.images[1], flat)
    pairs = dict(taken.report_pairs())
    assert pairs["images"] == 2
    assert {"image_age_s.front", "image_age_s.arm/wrist", "images_stamp", "images_decode_s"} < set(pairs)


@pytest.mark.parametrize(("choice", "code"), [("reject", RefusalCode.NO_IMAGES), ("wait", RefusalCode.DEADLINE)])
def test_no_image_is_refused_by_name_at_once_or_after_waiting(start_cameras, choice, code):
    one = start_cameras({"cameras": ["front"]})
    cameras = one.open()
    settings = Settings.from_values({"images.on_missing": choice}).images
    with pytest.raises(RequestError, match="No image has come from front yet") as refusal:
        cameras.take(settings, stopped=lambda: False, deadline=time.monotonic() + 0.2)
    assert refusal.value.code is code


def test_a_prompt_that_may_do_without_says_why_it_has_none(start_cameras):
    one = start_cameras()
    one.open()
    taken = one.take(on_missing="text_only")
    assert taken.images == ()
    assert dict(taken.report_pairs()) == {"images": 0, "images_absent": "No image has come from image yet."}


def test_waiting_takes_the_first_frame_and_ends_when_the_prompt_is_stopped(start_cameras):
    one = start_cameras({"images.on_missing": "wait"})
    cameras = one.open()
    message = image_message(one.node.get_clock())
    receive = cameras._receiver(cameras.cameras[0])
    timer = threading.Timer(0.1, receive, [serialize_message(message)])
    timer.start()
    assert len(one.take(max_age=0.0).images) == 1
    timer.join()
    cameras.frames.clear()
    with pytest.raises(RequestError, match="No image"):
        cameras.take(one.settings.images, stopped=lambda: True, deadline=time.monotonic() + 60)


@pytest.mark.parametrize(("parameters", "words"), [
    ({"cameras": ["front", "front"]}, "want each name once"),
    ({"cameras": ["/front"]}, "'/front'; want names"),
    ({"cameras": ["front left"]}, "'front left'"),
    ({"images.transport": ["theora"]}, "'theora'; want raw or compressed"),
    ({"cameras": ["a", "b", "c"], "images.transport": ["raw", "raw"]}, "2 entries for 3 cameras; want 1 or 3"),
    ({"images.transport": []}, "0 entries for 1 cameras"),
])  # fmt: skip
def test_cameras_that_cannot_be_are_refused_by_name(parameters, words):
    with pytest.raises(EdgeLLMError) as refusal:
        cameras_of(Settings.from_values(parameters), lambda topic: f"/{topic}")
    assert refusal.value.code is RefusalCode.BAD_PARAMETER
    assert words in str(refusal.value)


def test_the_suffix_comes_behind_a_remapped_base_topic():
    settings = Settings.from_values({"images.transport": ["compressed"]})
    (camera,) = cameras_of(settings, lambda topic: {"image": "/kinect/color"}[topic])
    assert camera.topic == "/kinect/color/compressed"


def test_the_overlay_is_published_only_while_somebody_looks(start_cameras):
    one = start_cameras()
    cameras = one.open()
    seen = RequestImages(
        images=(np.full((40, 60, 3), 200, np.uint8),), cameras=("image",), stamp=1_500_000_007, frame_id="lens"
    )
    report = PruningReport(PruningOutcome.APPLIED, 2, 1, ((1,),))
    cameras._boxes = lambda height, width: pytest.fail("drawn for nobody")
    cameras.show(seen, report, "a cup")
    found: list[Image] = []
    one.robot.create_subscription(Image, "sees/overlay", found.append, 1)
    one.wait(lambda: cameras._overlay.get_subscription_count(), DISCOVERY)
    cameras._boxes = lambda height, width: np.array([[0.0, 0.0, 1.0, 0.5], [0.0, 0.5, 1.0, 1.0]])
    cameras.show(seen, report, "a cup")
    one.wait(lambda: found)
    picture = np.frombuffer(found[0].data, np.uint8).reshape(found[0].height, found[0].width, 3)
    assert (picture[:40, :30] == 50).all() and (picture[:40, 30:] == 200).all()
    assert picture[40:].max() == 255 and (picture[40:] == 0).any()
    stamp = found[0].header.stamp
    assert (found[0].encoding, stamp.sec, stamp.nanosec, found[0].header.frame_id) == ("rgb8", 1, 500_000_007, "lens")


def test_each_camera_is_told_in_diagnostics(start_cameras):
    one = start_cameras({"cameras": ["front"]})
    cameras = one.open()
    (facts,) = cameras.facts()
    assert (facts.name, facts.topic, facts.age, dict(facts.events)) == ("front", "/front/image_raw", None, {})
    cameras._receiver(cameras.cameras[0])(serialize_message(image_message(one.node.get_clock())))
    (facts,) = cameras.facts()
    assert 0 <= facts.age < 5
    assert facts.values()["frames.taken"] == 1


def test_a_bag_that_loops_is_followed_within_one_frame_and_without_a_clock_it_says_so(start_cameras):
    """SYN-3, SYN-4."""
    one = start_cameras(use_sim_time=True)
    cameras = one.open()
    receive = cameras._receiver(cameras.cameras[0])
    message = image_message(one.robot.get_clock())

    def frame_at(seconds: int) -> None:
        message.header.stamp.sec, message.header.stamp.nanosec = seconds, 0
        receive(serialize_message(message))

    frame_at(100)
    with pytest.raises(RequestError, match="nothing came on /clock"):
        one.take()
    publisher = one.robot.create_publisher(Clock, "/clock", 1)
    for now, then in ((100, 100), (160, 160), (100, 100)):
        clock = Clock()
        clock.clock.sec = now
        one.publish_until(publisher, lambda clock=clock: clock, lambda now=now: cameras._now() == now * 10**9)
        frame_at(then)
        taken = one.take()
        assert (taken.stamp, taken.ages["image"]) == (then * 10**9, 0.0)
    assert cameras.frames.events("image")["clock_jump"] == 1
    assert any("clock went back" in sentence for _, sentence in one.warnings)
