"""Which cameras the parameters name, and how their messages are read."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import EdgeLLMError, RefusalCode, RequestError
from .parameter_schema import schema
from .parameters import Settings

if TYPE_CHECKING:
    import numpy as np

ONLY_CAMERA = "image"  # name and topic where ``cameras`` is empty
TRANSPORTS = ("raw", "compressed")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*")
_STAMP_BYTES = 12  # four of encapsulation, then seconds and nanoseconds of the header, which comes first


@dataclass(frozen=True)
class Camera:
    """``topic`` is resolved and whole."""

    name: str
    topic: str
    compressed: bool

    @property
    def message_type(self) -> str:
        """As ``ros2 topic info`` names it."""
        return f"sensor_msgs/msg/{'CompressedImage' if self.compressed else 'Image'}"


@dataclass(frozen=True)
class CameraFacts:
    """One camera as diagnostics tell of it; ``age`` of its newest image in s, None before the first.

    ``others``: what publishers on its topic send that is not of the type subscribed to, so that nothing of it arrives.
    """

    name: str
    topic: str
    transport: str
    publishers: int
    age: float | None
    events: Mapping[str, int]
    others: tuple[str, ...] = ()

    def values(self) -> dict[str, object]:
        """Keys and values of a status."""
        facts = {"topic": self.topic, "transport": self.transport, "publishers": self.publishers, "age_s": self.age}
        return {**facts, **{f"frames.{event}": count for event, count in self.events.items()}}


def cameras_of(
    settings: Settings, resolve: Callable[[str], str], default_names: Sequence[str] = ()
) -> tuple[Camera, ...]:
    """The cameras that the parameters name, or ``default_names``; ``resolve`` gives a topic's whole name after remaps.

    :raises EdgeLLMError: names or transports that cannot be.
    """
    names, transports = settings.cameras or tuple(default_names), settings.images.transport
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
    definition = schema().by_name[name]
    if (
        not (name == "cameras" or name.startswith(("images.", "visual_pruner.")))
        or definition.convert(value) == definition.default
    ):
        return None
    return f"{name} is set but the engine takes no images; load an engine with vision or leave it at its default."


def refuse_unseen(settings: Settings) -> None:
    """Settings of cameras that an engine without vision would silently ignore.

    :raises EdgeLLMError: one of them was set; the sentence names it.
    """
    for name, value in settings.values().items():
        if reason := unseen(name, value):
            raise _bad(reason)


def _bad(sentence: str) -> EdgeLLMError:
    return EdgeLLMError(sentence, RefusalCode.BAD_PARAMETER)
