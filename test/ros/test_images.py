"""Cameras of the node over real topics: quality of service, references only, decoding when used, refusals."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import rclpy
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.serialization import serialize_message
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image

from edgellm_ros.errors import EdgeLLMError, RefusalCode, RequestError
from edgellm_ros.ros.cameras import Camera, cameras_of, decode_frame, stamp_of
from edgellm_ros.ros.images import CameraInputs, RequestImages
from edgellm_ros.ros.parameters import Settings
from edgellm_ros.ros.qos_events import QosWatch
from edgellm_ros.ros.synchronizer import FRAMES_KEPT, FrameSet
from edgellm_ros.vision.pruner import PruningOutcome, PruningReport

cv2 = pytest.importorskip("cv2")

DISCOVERY = 60.0


def image_message(clock: Any, value: int = 7, *, height: int = 4, width: int = 6, frame: str = "lens") -> Image:
    message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
    message.data = bytes([value]) * (3 * width * height)
    message.header.frame_id = frame
    message.header.stamp = clock.now().to_msg()
    return message


class CameraBench:
    """A node with the cameras of ``parameters``, and one that publishes, each in a thread of its own."""

    def __init__(self, parameters: dict[str, Any], overrides: dict[str, Any]) -> None:
        self.context = Context()
        rclpy.init(context=self.context)
        self.warnings: list[tuple[str, str]] = []
        self.node = Node(
            "sees",
            context=self.context,
            parameter_overrides=[Parameter(name, value=value) for name, value in overrides.items()],
        )
        self.robot = Node("robot", context=self.context)
        self.settings = Settings.from_values(parameters)
        self.qos = QosWatch(lambda topic, sentence: self.warnings.append((topic, sentence)))
        self.executors = [SingleThreadedExecutor(context=self.context) for _ in range(2)]
        for executor, node in zip(self.executors, (self.node, self.robot), strict=True):
            executor.add_node(node)
            threading.Thread(target=self._spin, args=(executor,), daemon=True).start()
        self.cameras: CameraInputs | None = None

    @staticmethod
    def _spin(executor: SingleThreadedExecutor) -> None:
        with contextlib.suppress(ExternalShutdownException):
            executor.spin()

    def open(self, **options: Any) -> CameraInputs:
        values = {"boxes": lambda height, width: np.array([[0.0, 0.0, 1.0, 0.5], [0.0, 0.5, 1.0, 1.0]]), **options}
        self.cameras = CameraInputs(
            self.node,
            self.settings,
            self.qos,
            lambda kind, sentence: self.warnings.append((kind, sentence)),
            **values,
        )
        return self.cameras

    def publish_until(self, publisher: Any, make: Callable[[], Any], condition: Callable[[], Any]) -> None:
        """Publish at 50 Hz, as a camera does, until the condition holds."""
        end = time.monotonic() + DISCOVERY
        while not condition():
            assert time.monotonic() < end, self.warnings
            publisher.publish(make())
            time.sleep(0.02)

    def wait(self, condition: Callable[[], Any], deadline: float = 10.0) -> None:
        end = time.monotonic() + deadline
        while not condition():
            assert time.monotonic() < end, self.warnings
            time.sleep(0.005)

    def take(self, **changes: Any) -> Any:
        assert self.cameras is not None
        values = {f"images.{name}": value for name, value in changes.items()}
        settings = Settings.from_values({**self.settings.values(), **values})
        return self.cameras.take(settings.images, stopped=lambda: False, deadline=time.monotonic() + 10)

    def close(self) -> None:
        for executor in self.executors:
            executor.shutdown(timeout_sec=2.0)
        if self.cameras is not None:
            self.cameras.close()
        self.node.destroy_node()
        self.robot.destroy_node()
        rclpy.try_shutdown(context=self.context)


@pytest.fixture
def bench() -> Iterator[Callable[..., CameraBench]]:
    benches: list[CameraBench] = []

    def start(parameters: dict[str, Any] | None = None, **overrides: Any) -> CameraBench:
        benches.append(CameraBench(parameters or {}, overrides))
        return benches[-1]

    yield start
    for one in benches:
        one.close()


@pytest.mark.parametrize("before", [True, False], ids=["publisher first", "node first"])
@pytest.mark.parametrize("reliability", [ReliabilityPolicy.BEST_EFFORT, ReliabilityPolicy.RELIABLE], ids=str)
def test_images_arrive_from_every_publisher_before_and_after(bench, reliability, before):
    """QOS-1."""
    one = bench()
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


def test_a_policy_that_does_not_fit_is_told_by_topic_and_name(bench):
    """QOS-2."""
    one = bench(**{"qos_overrides./image.subscription.reliability": "reliable"})
    one.robot.create_publisher(Image, "image", QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT))
    one.open()
    one.wait(lambda: one.qos.found, DISCOVERY)
    (topic, sentence) = one.warnings[0]
    assert topic == "/image"
    assert "reliability" in sentence and "/image" in sentence


def test_several_cameras_pair_and_each_has_its_transport(bench):
    one = bench({"cameras": ["front", "arm/wrist"], "images.transport": ["raw", "compressed"]})
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
def test_no_image_is_refused_by_name_at_once_or_after_waiting(bench, choice, code):
    one = bench({"cameras": ["front"]})
    cameras = one.open()
    settings = Settings.from_values({"images.on_missing": choice}).images
    with pytest.raises(RequestError, match="No image has come from front yet") as refusal:
        cameras.take(settings, stopped=lambda: False, deadline=time.monotonic() + 0.2)
    assert refusal.value.code is code


def test_a_prompt_that_may_do_without_says_why_it_has_none(bench):
    one = bench()
    one.open()
    taken = one.take(on_missing="text_only")
    assert taken.images == ()
    assert dict(taken.report_pairs()) == {"images": 0, "images_absent": "No image has come from image yet."}


def test_waiting_takes_the_first_frame_and_ends_when_the_prompt_is_stopped(bench):
    one = bench({"images.on_missing": "wait"})
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


def test_callbacks_keep_references_and_decode_nothing(bench, monkeypatch):
    one = bench()
    cameras = one.open()
    monkeypatch.setattr("edgellm_ros.ros.decoded_frames.decode_frame", lambda *_: pytest.fail("decoded"))
    receive = cameras._receiver(cameras.cameras[0])
    serialised = serialize_message(image_message(one.node.get_clock()))
    receive(serialised)
    found = cameras.select(one.settings.images)
    assert found.frames[0].payload is serialised


@pytest.mark.parametrize("options", [{}, {"boxes": None}], ids=["prompts", "chunks"])
def test_frames_wait_in_the_middleware_until_somebody_wants_them(bench, monkeypatch, options):
    monkeypatch.setattr("edgellm_ros.ros.images.GLANCE", 3600.0)
    one = bench()
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


def test_a_frame_is_decoded_once_however_often_it_is_used(bench, monkeypatch):
    one = bench()
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


def test_an_earlier_frame_of_a_series_was_decoded_when_it_was_the_newest(bench, monkeypatch):
    one = bench()
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


def test_a_camera_that_is_late_finds_its_pair_among_the_frames_that_wait(bench, monkeypatch):
    monkeypatch.setattr("edgellm_ros.ros.images.GLANCE", 3600.0)
    one = bench({"cameras": ["a", "b"], "images.sync_slop": 0.005, "images.max_age": 0.0})
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
def test_the_newest_frame_is_used_however_many_are_let_wait(bench, monkeypatch, policy):
    monkeypatch.setattr("edgellm_ros.ros.images.GLANCE", 3600.0)
    one = bench(**{f"qos_overrides./image.subscription.{name}": value for name, value in policy.items()})
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


def test_cameras_are_glanced_at_while_a_simulation_stands_still(bench, monkeypatch):
    """QOS-2 and the counts of diagnostics do not wait for /clock."""
    monkeypatch.setattr("edgellm_ros.ros.images.GLANCE", 0.05)
    one = bench(use_sim_time=True)
    cameras = one.open()
    publisher = one.robot.create_publisher(Image, "image", 10)
    one.publish_until(publisher, lambda: image_message(one.robot.get_clock()), lambda: cameras.frames.events("image"))


@pytest.mark.parametrize(
    ("parameters", "options"),
    [({"images.stamp_source": "receive"}, {}), ({"action.pairing": "every"}, {"boxes": None}), ({}, {"series": 4})],
    ids=["arrival is the stamp", "every one", "a series"],
)
def test_where_every_frame_counts_the_executor_takes_it(bench, parameters, options):
    one = bench(parameters)
    cameras = one.open(**options)
    assert cameras._glance is None
    publisher = one.robot.create_publisher(Image, "image", 10)
    one.publish_until(publisher, lambda: image_message(one.robot.get_clock()), lambda: cameras.frames.events("image"))


@pytest.mark.parametrize(("sentence", "change"), [
    ("stamps its images zero", {"sec": 0, "nanosec": 0}), ("ahead of this node's clock", {"sec": 2**31 - 1}),
])  # fmt: skip
def test_frames_that_are_turned_away_are_told_and_counted(bench, sentence, change):
    """SYN-2."""
    one = bench()
    cameras = one.open()
    message = image_message(one.node.get_clock())
    for name, value in change.items():
        setattr(message.header.stamp, name, value)
    cameras._receiver(cameras.cameras[0])(serialize_message(message))
    assert sentence in one.warnings[0][1] and "/image" in one.warnings[0][1]
    assert sum(cameras.frames.events("image").values()) == 1


def test_zero_stamps_do_where_arrival_counts(bench):
    one = bench({"images.stamp_source": "receive"})
    cameras = one.open()
    message = image_message(one.node.get_clock())
    message.header.stamp.sec = message.header.stamp.nanosec = 0
    cameras._receiver(cameras.cameras[0])(serialize_message(message))
    assert len(one.take().images) == 1


@pytest.mark.parametrize("damage", [b"", bytes(3), bytes(40)])
def test_a_message_that_is_no_image_ends_nothing(bench, damage):
    one = bench({"images.stamp_source": "receive"})
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


def test_the_overlay_is_published_only_while_somebody_looks(bench):
    one = bench()
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


def test_each_camera_is_told_in_diagnostics(bench):
    one = bench({"cameras": ["front"]})
    cameras = one.open()
    (facts,) = cameras.facts()
    assert (facts.name, facts.topic, facts.age, dict(facts.events)) == ("front", "/front/image_raw", None, {})
    cameras._receiver(cameras.cameras[0])(serialize_message(image_message(one.node.get_clock())))
    (facts,) = cameras.facts()
    assert 0 <= facts.age < 5
    assert facts.values()["frames.taken"] == 1


def test_a_bag_that_loops_is_followed_within_one_frame_and_without_a_clock_it_says_so(bench):
    """SYN-3, SYN-4."""
    one = bench(use_sim_time=True)
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
