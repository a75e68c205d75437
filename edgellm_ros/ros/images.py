"""The cameras of the node: subscriptions that only keep references, and the images that a prompt is answered with.

Messages arrive serialised and stay so: a callback reads the stamp out of the first bytes and no more. The frames that
a prompt uses are deserialised and decoded once, by the thread that answers it.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import EdgeLLMError, RefusalCode, RequestError
from .parameters import ImageSettings, Settings
from .synchronizer import Frame, FrameEvent, FrameSet, NoFrames, Synchronizer

if TYPE_CHECKING:
    import numpy as np
    from rclpy.lifecycle import LifecycleNode

    from .qos_events import QosWatch

DEPTH = 2  # of a subscription; the newest frame is what counts
ONLY_CAMERA = "image"  # name and topic where ``cameras`` is empty
TRANSPORTS = ("raw", "compressed")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*")
_POLL = 0.1  # s between looks at a request that waits for images
_STAMP_BYTES = 12  # four of encapsulation, then seconds and nanoseconds of the header, which comes first
_SENTENCES = {
    FrameEvent.ZERO_STAMP: "stamps its images zero, so they are not used; set images.stamp_source to receive.",
    FrameEvent.FUTURE_STAMP: "stamps its images ahead of this node's clock, so they are not used; correct the clocks.",
    FrameEvent.OUT_OF_ORDER: "sent an image that is not newer than its last; it is not used.",
    FrameEvent.SOURCE_JUMP: "began again with older stamps; its earlier images were forgotten.",
    FrameEvent.CLOCK_JUMP: "sent an image after the clock went back; all earlier images were forgotten.",
    FrameEvent.UNREADABLE: "sent a message that is too short to be an image; it is not used.",
}


@dataclass(frozen=True)
class Camera:
    """``topic`` is resolved and whole."""

    name: str
    topic: str
    compressed: bool


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


def cameras_of(settings: Settings, resolve: Callable[[str], str]) -> tuple[Camera, ...]:
    """The cameras that the parameters name; ``resolve`` gives a topic's whole name after remaps.

    :raises EdgeLLMError: names or transports that cannot be.
    """
    names, transports = settings.cameras, settings.images.transport
    for name in names:
        if not _NAME.fullmatch(name):
            raise _bad(f"cameras has {name!r}; want names of letters, digits and underscores.")
    if len(set(names)) != len(names):
        raise _bad(f"cameras is {list(names)}; want each name once.")
    for transport in transports:
        if transport not in TRANSPORTS:
            raise _bad(f"images.transport has {transport!r}; want {' or '.join(TRANSPORTS)}.")
    count = max(len(names), 1)
    if len(transports) not in (1, count):
        raise _bad(f"images.transport has {len(transports)} entries for {count} cameras; want 1 or {count}.")
    transports = transports * count if len(transports) == 1 else transports
    topics = {name: f"{name}/image_raw" for name in names} or {ONLY_CAMERA: ONLY_CAMERA}
    found = []
    for (name, topic), transport in zip(topics.items(), transports, strict=True):
        # a remap names the base topic, so the suffix comes behind what it resolves to
        suffix = "/compressed" if transport == "compressed" else ""
        found.append(Camera(name, resolve(topic) + suffix, bool(suffix)))
    return tuple(found)


class CameraInputs:
    """Subscriptions belong to the executor's thread; ``take`` to the one that answers prompts."""

    def __init__(
        self, node: LifecycleNode, settings: Settings, qos: QosWatch, warn: Callable[[str, str], None]
    ) -> None:
        """Subscribe to every camera; ``warn(kind, sentence)`` logs.

        :raises EdgeLLMError: see ``cameras_of``.
        """
        from rclpy.qos import qos_profile_sensor_data
        from sensor_msgs.msg import CompressedImage, Image

        self.cameras = cameras_of(settings, node.resolve_topic_name)
        self.frames = Synchronizer([camera.name for camera in self.cameras])
        self._node = node
        self._warn = warn
        self._stamps = settings.images.stamp_source == "header"
        profile = _with_depth(qos_profile_sensor_data)
        self._subscriptions = [
            node.create_subscription(
                CompressedImage if camera.compressed else Image,
                camera.topic,
                self._receiver(camera),
                profile,
                event_callbacks=qos.subscription_callbacks(camera.topic),
                qos_overriding_options=qos.overridable(),
                raw=True,
            )
            for camera in self.cameras
        ]

    def close(self) -> None:
        """Unsubscribe."""
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions.clear()
        self.frames.clear()

    def _receiver(self, camera: Camera) -> Callable[[bytes], None]:
        def receive(serialised: bytes) -> None:
            now = self._now()
            stamp = stamp_of(serialised) if self._stamps else now
            if stamp is None:
                event = FrameEvent.UNREADABLE
                self.frames.count(event)
            else:
                event = self.frames.add(Frame(camera.name, stamp, serialised), now)
            if event is not FrameEvent.TAKEN:
                self._warn(f"{camera.name} {event.value}", f"The camera on {camera.topic} {_SENTENCES[event]}")

        return receive

    def _now(self) -> int:
        return int(self._node.get_clock().now().nanoseconds)

    def select(self, settings: ImageSettings) -> FrameSet | NoFrames:
        """The newest valid frames of the moment, or why there are none."""
        return self.frames.select(self._now(), slop=settings.sync_slop, max_age=settings.max_age)

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
            self.frames.wait(_POLL)
            found = self.select(settings)
        if isinstance(found, NoFrames):
            if settings.on_missing == "text_only":
                return RequestImages(absent=found.sentence)
            raise RequestError(f"{found.sentence} (images.on_missing is {settings.on_missing}.)", RefusalCode.NO_IMAGES)
        start = time.perf_counter()
        by_name = {camera.name: camera for camera in self.cameras}
        decoded = [decode_frame(by_name[frame.camera], frame.payload, settings.max_pixels) for frame in found.frames]
        return RequestImages(
            images=tuple(image for image, _ in decoded),
            cameras=tuple(frame.camera for frame in found.frames),
            ages=found.ages,
            stamp=found.stamp,
            frame_id=decoded[0][1],
            decode_time=time.perf_counter() - start,
        )

    def publishers(self) -> dict[str, int]:
        """Publishers on each camera's topic."""
        return {camera.topic: self._node.count_publishers(camera.topic) for camera in self.cameras}


def stamp_of(serialised: bytes) -> int | None:
    """Time in ns of the header with which a serialised message begins; None where it is too short."""
    if len(serialised) < _STAMP_BYTES:
        return None
    seconds, nanoseconds = struct.unpack_from("<iI" if serialised[1] & 1 else ">iI", serialised, 4)
    return max(0, int(seconds) * 10**9 + int(nanoseconds))


def decode_frame(camera: Camera, serialised: bytes, max_pixels: int) -> tuple[np.ndarray, str]:
    """uint8 RGB [H,W,3] and the frame it was taken in.

    :raises RequestError: the message or the image in it cannot be read; the sentence names the camera.
    """
    from rclpy.serialization import deserialize_message
    from sensor_msgs.msg import CompressedImage, Image

    from ..vision.decode import RawImage, decode_raw
    from ..vision.decode_compressed import decode_compressed

    try:
        message: Any = deserialize_message(serialised, CompressedImage if camera.compressed else Image)
    except Exception as error:  # of the middleware, which has no class of its own for it
        raise RequestError(
            f"{camera.name}: a message of {len(serialised)} bytes on {camera.topic} cannot be read ({error}).",
            RefusalCode.BAD_IMAGE,
        ) from None
    try:
        if camera.compressed:
            pixels = decode_compressed(message.format, message.data, max_pixels=max_pixels)
        else:
            pixels = decode_raw(
                RawImage(
                    message.height,
                    message.width,
                    message.encoding,
                    bool(message.is_bigendian),
                    message.step,
                    message.data,
                ),
                max_pixels=max_pixels,
            )
    except RequestError as error:
        raise RequestError(f"{camera.name}: {error}", error.code) from None
    return pixels, str(message.header.frame_id)


def unseen(name: str, value: Any) -> str | None:
    """Why an engine without vision has no use for a parameter; None where it may be set."""
    from .parameter_schema import schema

    definition = schema().by_name[name]
    if not (name == "cameras" or name.startswith("images.")) or definition.convert(value) == definition.default:
        return None
    return f"{name} is set but the engine takes no images; load an engine with vision or leave it at its default."


def refuse_unseen(settings: Settings) -> None:
    """Settings of cameras that an engine without vision would silently ignore.

    :raises EdgeLLMError: one of them was set; the sentence names it.
    """
    for name, value in settings.values().items():
        if reason := unseen(name, value):
            raise _bad(reason)


def _with_depth(profile: Any) -> Any:
    from rclpy.qos import QoSProfile

    return QoSProfile(
        history=profile.history, depth=DEPTH, reliability=profile.reliability, durability=profile.durability
    )


def _bad(sentence: str) -> EdgeLLMError:
    return EdgeLLMError(sentence, RefusalCode.BAD_PARAMETER)
