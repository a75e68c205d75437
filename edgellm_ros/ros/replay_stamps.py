"""Whether the stamps of a recording are of the clock that it was recorded by."""

from __future__ import annotations

import struct
from collections.abc import Collection

from .bag import Bag

LOOKED_AT = 10.0  # s of the recording; a topic that is silent until then is not waited for
FAR = 1.0  # s between stamp and recording; what the node takes for current is younger
_STAMPED = {
    "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/JointState", "nav_msgs/msg/Odometry",
}  # fmt: skip
_NANO = 1_000_000_000


def strange_stamps(bag: Bag, topics: Collection[str]) -> str:
    """What is strange of the first stamps on ``topics``, in one sentence; empty where nothing is.

    A stamp of zero says nothing and is passed over.

    :raises EdgeLLMError: the recording ends early, or is damaged.
    """
    kinds = bag.topics
    open_topics = {topic for topic in topics if kinds.get(topic) in _STAMPED}
    if not open_topics:
        return ""
    end = None
    for message in bag.messages(open_topics):
        end = message.time + round(LOOKED_AT * _NANO) if end is None else end
        if message.time > end:
            break
        if message.topic not in open_topics:
            continue
        open_topics.discard(message.topic)
        stamp = _stamp(message.data)
        away = (message.time - stamp) / _NANO
        if stamp and abs(away) > FAR:
            return (
                f"The stamps of {message.topic} lie {abs(away):.2f} s {'before' if away > 0 else 'behind'} the time of "
                "their recording, which is the node's clock here, so that they may not count as current; record a "
                "simulation with 'ros2 bag record --use-sim-time', and a robot whose clocks agree."
            )
        if not open_topics:
            break
    return ""


def _stamp(data: bytes) -> int:
    """Of the header that such messages begin with, behind the four bytes that name their encoding; ns."""
    if len(data) < 12:
        return 0
    seconds, nanoseconds = struct.unpack_from("<iI" if data[1] & 1 else ">iI", data, 4)
    return int(seconds) * _NANO + int(nanoseconds)
