"""The cameras of the node: subscriptions that only keep references, and the images that a prompt is answered with.

Messages arrive serialised and stay so: a callback reads the stamp out of the first bytes and no more. The frames that
a prompt or a chunk uses are deserialised and decoded once, by the thread that computes it. Where the newest are all
that counts, and stamps are the cameras' own, that thread takes them from the middleware too, and the executor leaves
them there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import Refusal, RefusalCode, RequestError
from .cameras import Camera, CameraFacts, cameras_of, stamp_of
from .decoded_frames import DecodedFrames
from .memory import keep_message_memory
from .parameters import ImageSettings, Settings
from .synchronizer import FRAMES_KEPT, Frame, FrameEvent, FrameSet, Lack, NoFrames, Synchronizer

if TYPE_CHECKING:
    import numpy as np
    from rclpy.lifecycle import LifecycleNode

    from ..vision.pruner import PruningReport
    from .qos_events import QosWatch

DEPTH = 2  # of a subscription; the newest frame is what counts
FRAMES_IN_ORDER = 256  # of each camera that wait where every one is used
GLANCE = 1.0  # s between looks at cameras whose frames wait to be used
_POLL = 0.1  # s between looks at a request that waits for images
_QUICK_POLL = 0.01  # s, where nobody tells that one came
_SENTENCES = {
    FrameEvent.ZERO_STAMP: "stamps its images zero, so they are not used; set images.stamp_source to receive.",
    FrameEvent.FUTURE_STAMP: "stamps its images ahead of this node's clock, so they are not used; correct the clocks.",
    FrameEvent.OUT_OF_ORDER: "sent an image that is not newer than its last; it is not used.",
    FrameEvent.SOURCE_JUMP: "began again with older stamps; its earlier images were forgotten.",
    FrameEvent.CLOCK_JUMP: "sent an image after the clock went back; all earlier images were forgotten.",
    FrameEvent.BEFORE_JUMP: "sent an image before the clock went back; it is not used.",
    FrameEvent.UNREADABLE: "sent a message that is too short to be an image; it is not used.",
}


@dataclass(frozen=True, eq=False)
class RequestImages:
    """What one prompt is answered with. ``stamp`` in ns; ``ages`` and ``decode_time`` in s; ``absent``: why none."""

    images: tuple[np.ndarray, ...] = ()
    cameras: tuple[str, ...] = ()
    ages: Mapping[str, float] = field(default_factory=dict)
    stamp: int = 0
    frame_id: str = ""
    decode_time: float = 0.0
    absent: str = ""
    asked: bool = False  # whether there were cameras to ask

    def report_pairs(self) -> list[tuple[str, object]]:
        """Keys and values of a report."""
        pairs: list[tuple[str, object]] = [("images", len(self.images))]
        if self.images:
            pairs += [("images_stamp", f"{self.stamp // 10**9}.{self.stamp % 10**9:09d}")]
            pairs += [("images_decode_s", self.decode_time)]
            pairs += [(f"image_age_s.{camera}", age) for camera, age in self.ages.items()]
        if self.absent:
            pairs.append(("images_absent", self.absent))
        return pairs


class CameraInputs:
    """Subscriptions belong to the executor's thread; ``take`` to the one that answers prompts.

    The lock is for taking messages that wait, and for the end of their subscriptions.
    """

    def __init__(
        self,
        node: LifecycleNode,
        settings: Settings,
        qos: QosWatch,
        warn: Callable[[str, str], None],
        boxes: Callable[[int, int], np.ndarray] | None,
        default_names: Sequence[str] = (),
        series: int = 1,
    ) -> None:
        """Subscribe to every camera, those of ``default_names`` where ``cameras`` is empty.

        ``series``: frames of each camera that are used together; more than the newest, and all that come are kept.

        ``warn(kind, sentence)`` logs; ``boxes`` says where an image's tokens look (None: nobody answers by them).

        :raises EdgeLLMError: see ``cameras_of``.
        """
        from rclpy.clock import Clock, ClockType
        from rclpy.qos import qos_profile_sensor_data
        from sensor_msgs.msg import CompressedImage, Image

        self.cameras = cameras_of(settings, node.resolve_topic_name, default_names)
        keep_message_memory()
        in_order = FRAMES_IN_ORDER if settings.action.pairing == "every" or series > 1 else 0
        self.frames = Synchronizer([camera.name for camera in self.cameras], in_order)
        self._decoded_frames = DecodedFrames(self.cameras, series)
        self.used = 0  # ns; the stamp of what ``take_next`` gave last
        self._node = node
        self._warn = warn
        self._boxes = boxes
        self._overlay = node.create_publisher(
            Image,
            "~/overlay",
            1,
            event_callbacks=qos.publisher_callbacks(node.resolve_topic_name("~/overlay")),
            qos_overriding_options=qos.overridable(),
        )
        self._stamps = settings.images.stamp_source == "header"
        self._taking = threading.Lock()
        self._glance: Any = None
        group = None
        if self._stamps and not in_order:
            from .on_demand import OnDemandGroup

            group = OnDemandGroup()

            def glance() -> None:
                self._look()
                group.look()

            steady = Clock(clock_type=ClockType.STEADY_TIME)  # a simulation may stand still or not have begun
            self._glance = node.create_timer(GLANCE, glance, clock=steady)
        depth = in_order or (FRAMES_KEPT if group is not None and len(self.cameras) > 1 else DEPTH)
        profile = _with_depth(qos_profile_sensor_data, depth)
        self._subscriptions = [
            node.create_subscription(
                CompressedImage if camera.compressed else Image,
                camera.topic,
                self._receiver(camera),
                profile,
                event_callbacks=qos.subscription_callbacks(camera.topic),
                qos_overriding_options=qos.overridable(),
                callback_group=group,
                raw=True,
            )
            for camera in self.cameras
        ]

    def close(self) -> None:
        """Take everything back from the node."""
        self._node.destroy_publisher(self._overlay)
        if self._glance is not None:
            self._node.destroy_timer(self._glance)
        with self._taking:
            for subscription in self._subscriptions:
                self._node.destroy_subscription(subscription)
            self._subscriptions.clear()
        self.frames.clear()

    def _look(self) -> None:
        """Take what waits, where the executor leaves it."""
        if self._glance is None:
            return
        from .on_demand import take_waiting

        with self._taking:
            for subscription in self._subscriptions:
                for serialised in take_waiting(subscription):
                    subscription.callback(serialised)

    def _receiver(self, camera: Camera) -> Callable[[bytes], None]:
        def receive(serialised: bytes) -> None:
            now = self._now()
            stamp = stamp_of(serialised) if self._stamps else now
            if stamp is None:
                event = FrameEvent.UNREADABLE
                self.frames.count(camera.name, event)
            else:
                event = self.frames.add(Frame(camera.name, stamp, serialised), now)
            if event is not FrameEvent.TAKEN:
                self._warn(f"{camera.name} {event.value}", f"The camera on {camera.topic} {_SENTENCES[event]}")

        return receive

    def _now(self) -> int:
        return int(self._node.get_clock().now().nanoseconds)

    def select(self, settings: ImageSettings) -> FrameSet | NoFrames:
        """The newest valid frames of the moment, or why there are none."""
        self._look()
        return self.frames.select(self._now(), slop=settings.sync_slop, max_age=settings.max_age)

    def silent(self, settings: ImageSettings) -> Refusal | None:
        """Why nobody may go on by what the cameras showed last: one of them is older than ``images.max_age``.

        Frames that wait are taken only where those that are known are too old.
        """
        now, limit = self._now(), settings.max_age
        ages = [self.frames.age(camera.name, now) for camera in self.cameras]
        if not limit or all(age is not None and age <= limit for age in ages):
            return None
        found = self.select(settings)
        if isinstance(found, NoFrames) and found.lack is not Lack.UNPAIRED:
            return Refusal(RefusalCode.NO_IMAGES, found.sentence)
        return None

    def take(
        self, settings: ImageSettings, *, stopped: Callable[[], bool], deadline: float = float("inf")
    ) -> RequestImages:
        """The images of a prompt that is answered now; ``deadline`` is of ``time.monotonic``.

        :raises RequestError: there are none and ``images.on_missing`` does not allow that, or one does not decode.
        """
        found = self.select(settings)
        while isinstance(found, NoFrames) and settings.on_missing == "wait" and not stopped():
            if time.monotonic() >= deadline:
                raise RequestError(f"{found.sentence} The prompt waited for it in vain.", RefusalCode.DEADLINE)
            self.frames.wait(_POLL if self._glance is None else _QUICK_POLL)
            found = self.select(settings)
        if isinstance(found, NoFrames):
            if settings.on_missing == "text_only":
                return RequestImages(absent=found.sentence, asked=True)
            raise RequestError(f"{found.sentence} (images.on_missing is {settings.on_missing}.)", RefusalCode.NO_IMAGES)
        return self._decoded(found, settings)

    def take_next(self, settings: ImageSettings, *, after: int, timeout: float) -> RequestImages | None:
        """The first set of images later than ``after`` (ns), each once and in order; None when none came in time.

        :raises RequestError: one does not decode.
        """
        found = self.frames.next_after(after, slop=settings.sync_slop)
        if found is None:
            self.frames.wait(timeout)
            found = self.frames.next_after(after, slop=settings.sync_slop)
        if found is None:
            return None
        self.used = found.stamp
        return self._decoded(found, settings)

    def take_near(self, settings: ImageSettings, moment: int, within: float) -> RequestImages:
        """The images nearest to an earlier moment (ns).

        :raises RequestError: a camera has none ``within`` s of it, or one does not decode.
        """
        found = self.frames.near(moment, within)
        if isinstance(found, NoFrames):
            raise RequestError(found.sentence, RefusalCode.NO_IMAGES)
        return self._decoded(found, settings)

    def _decoded(self, found: FrameSet, settings: ImageSettings) -> RequestImages:
        start = time.perf_counter()
        decoded = [self._decoded_frames.of(frame, settings.max_pixels) for frame in found.frames]
        return RequestImages(
            images=tuple(image for image, _ in decoded),
            cameras=tuple(frame.camera for frame in found.frames),
            ages=found.ages,
            stamp=found.stamp,
            frame_id=decoded[0][1],
            decode_time=time.perf_counter() - start,
            asked=True,
        )

    def show(self, images: RequestImages, pruning: PruningReport | None, answer: str) -> None:
        """Publish what was seen, which of its tokens were read, and the answer, if somebody looks."""
        if self._boxes is None or not images.images or not self._overlay.get_subscription_count():
            return
        from .overlay import overlay, overlay_message

        kept = pruning.kept if pruning is not None else ()
        boxes = [self._boxes(*image.shape[:2]) for image in images.images]
        drawn = overlay(images.images, boxes, kept, answer)
        self._overlay.publish(overlay_message(drawn, images.stamp, images.frame_id))

    def facts(self) -> tuple[CameraFacts, ...]:
        """Each camera for diagnostics."""
        return tuple(self._facts(camera, self._now()) for camera in self.cameras)

    def _facts(self, camera: Camera, now: int) -> CameraFacts:
        kinds = [info.topic_type for info in self._node.get_publishers_info_by_topic(camera.topic)]
        return CameraFacts(
            name=camera.name,
            topic=camera.topic,
            transport="compressed" if camera.compressed else "raw",
            publishers=kinds.count(camera.message_type),
            age=self.frames.age(camera.name, now),
            events=self.frames.events(camera.name),
            others=tuple(sorted({*kinds} - {camera.message_type})),
        )


def _with_depth(profile: Any, depth: int) -> Any:
    from rclpy.qos import QoSProfile

    return QoSProfile(
        history=profile.history, depth=depth, reliability=profile.reliability, durability=profile.durability
    )
