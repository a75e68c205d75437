"""The newest frames of all cameras that belong together, and why there are none.

Nothing here knows ROS or looks into a frame. Rules, each with a counter:

* A stamp of zero says nothing: the frame is turned away (``images.stamp_source`` receive stamps on arrival instead).
* A stamp more than ``FUTURE`` ahead of the clock is turned away.
* A frame that is not newer than its camera's last is late and turned away; nothing else changes. If it is older by
  more than ``JUMP``, its source began again: that camera's frames are forgotten and it is the first of the new ones.
* A clock that goes back by more than ``JUMP`` began again: all frames are forgotten, and the next one counts. Frames
  that waited since before then are turned away as such.
* A set holds one frame of every camera, no two further apart than the slop, none older than the limit. No frame is
  ever made up for a camera that has none.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

FUTURE = 0.1  # s by which clocks of a robot may differ
JUMP = 1.0  # s; a smaller step back is one message out of order
FRAMES_KEPT = 6  # of each camera where there are several; a set is looked for among them
_OTHER_CLOCK = 86_400.0  # s; no camera's delay is as long as that
_NANO = 1_000_000_000


class FrameEvent(str, Enum):
    """What became of a frame that came in."""

    TAKEN = "taken"
    ZERO_STAMP = "zero_stamp"
    FUTURE_STAMP = "future_stamp"
    OUT_OF_ORDER = "out_of_order"
    SOURCE_JUMP = "source_jump"  # taken, after its camera's older frames were forgotten
    CLOCK_JUMP = "clock_jump"  # taken, after all frames were forgotten
    BEFORE_JUMP = "before_jump"  # of the time before the clock went back
    UNREADABLE = "unreadable"  # too short to hold a stamp


class Lack(str, Enum):
    """Why there is no set of frames."""

    NO_CLOCK = "no_clock"
    MISSING = "missing"
    STALE = "stale"
    UNPAIRED = "unpaired"


@dataclass(frozen=True, eq=False)
class Frame:
    """A reference to one image as it came in. ``stamp`` is the time of observation in ns."""

    camera: str
    stamp: int
    payload: Any


@dataclass(frozen=True)
class FrameSet:
    """One frame of each camera, in the order of the cameras."""

    frames: tuple[Frame, ...]
    ages: Mapping[str, float]  # s, by camera

    @property
    def stamp(self) -> int:
        """Time of observation in ns: that of the oldest frame."""
        return min(frame.stamp for frame in self.frames)


@dataclass(frozen=True)
class NoFrames:
    """Why there is no set, with one sentence for a person."""

    lack: Lack
    sentence: str


class Synchronizer:
    """Keeps the last frames of each camera. Any thread may call it; the condition's lock covers all fields.

    Times are ns of the node's clock, which stands at zero while a simulation has not begun.
    """

    def __init__(self, cameras: Sequence[str], kept: int = 0) -> None:
        """``kept`` frames of each camera; 0: as many as the newest set may need."""
        self._condition = threading.Condition()
        kept = kept or (1 if len(cameras) == 1 else FRAMES_KEPT)
        self._frames: dict[str, deque[Frame]] = {camera: deque(maxlen=kept) for camera in cameras}
        self._events: dict[str, Counter[FrameEvent]] = {camera: Counter() for camera in cameras}
        self._clock = 0
        self._jumped = False  # the clock went back, and no frame was taken since
        self._left = 0  # the time from which it went back

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names, in order."""
        return tuple(self._frames)

    def add(self, frame: Frame, now: int) -> FrameEvent:
        """Take a frame, or turn it away; the event is counted."""
        with self._condition:
            event = self._add(frame, now)
            self._events[frame.camera][event] += 1
            if event in (FrameEvent.TAKEN, FrameEvent.SOURCE_JUMP, FrameEvent.CLOCK_JUMP):
                self._condition.notify_all()
            return event

    def _add(self, frame: Frame, now: int) -> FrameEvent:
        jumped = now < self._clock - JUMP * _NANO
        if jumped:
            self._jumped, self._left, self._clock = True, self._clock, now
            for frames in self._frames.values():
                frames.clear()
        self._clock = max(self._clock, now)
        frames = self._frames[frame.camera]
        if not frame.stamp:
            return FrameEvent.ZERO_STAMP
        if now and frame.stamp > now + FUTURE * _NANO:
            return FrameEvent.BEFORE_JUMP if frame.stamp <= self._left + FUTURE * _NANO else FrameEvent.FUTURE_STAMP
        behind = frames[-1].stamp - frame.stamp if frames else -1
        if 0 <= behind <= JUMP * _NANO:
            return FrameEvent.OUT_OF_ORDER
        if behind > 0:
            frames.clear()
        frames.append(frame)
        if self._jumped:
            self._jumped = False
            return FrameEvent.CLOCK_JUMP
        return FrameEvent.SOURCE_JUMP if behind > 0 else FrameEvent.TAKEN

    def count(self, camera: str, event: FrameEvent) -> None:
        """Count a frame that could not even be added."""
        with self._condition:
            self._events[camera][event] += 1

    def events(self, camera: str) -> dict[str, int]:
        """A camera's frames by what became of them, since the start."""
        with self._condition:
            counts = self._events[camera]
            return {event.value: counts[event] for event in FrameEvent if counts[event]}

    def age(self, camera: str, now: int) -> float | None:
        """Seconds since a camera's newest frame was taken; None where there is none."""
        with self._condition:
            frames = self._frames[camera]
            return _seconds(now - frames[-1].stamp) if frames else None

    def clear(self) -> None:
        """Forget all frames."""
        with self._condition:
            for frames in self._frames.values():
                frames.clear()

    def select(self, now: int, *, slop: float, max_age: float) -> FrameSet | NoFrames:
        """The newest set. ``slop`` and ``max_age`` in s; a ``max_age`` of 0 sets no limit."""
        with self._condition:
            frames = {camera: tuple(kept) for camera, kept in self._frames.items()}
        return newest_set(frames, now, slop=slop, max_age=max_age)

    def next_after(self, stamp: int, *, slop: float) -> FrameSet | None:
        """The first set later than ``stamp`` (ns), in order; None while it cannot be known yet which that is."""
        with self._condition:
            frames = {camera: tuple(kept) for camera, kept in self._frames.items()}
        return next_set(frames, stamp, slop=slop)

    def near(self, moment: int, within: float) -> FrameSet | NoFrames:
        """The frame of each camera that is nearest to ``moment`` (ns), ``within`` s of it."""
        with self._condition:
            frames = {camera: tuple(kept) for camera, kept in self._frames.items()}
        missing = [camera for camera, kept in frames.items() if not kept]
        if missing:
            return NoFrames(Lack.MISSING, f"No image has come from {_names(missing)} yet.")
        chosen = tuple(min(kept, key=lambda frame: abs(frame.stamp - moment)) for kept in frames.values())
        far = [frame for frame in chosen if abs(frame.stamp - moment) > within * _NANO]
        if far:
            apart = _seconds(abs(far[0].stamp - moment))
            return NoFrames(
                Lack.UNPAIRED,
                f"The image from {far[0].camera} that is nearest to an earlier moment is {apart:.3f} s from it; the "
                f"policy allows {within:g} s: let the camera send more often, or wait.",
            )
        return FrameSet(chosen, {})

    def wait(self, timeout: float) -> None:
        """Until a frame comes in or ``timeout`` s are over."""
        with self._condition:
            self._condition.wait(timeout)


def newest_set(frames: Mapping[str, Sequence[Frame]], now: int, *, slop: float, max_age: float) -> FrameSet | NoFrames:
    """The set whose slowest camera is newest; frames of each camera ascend by stamp."""
    missing = [camera for camera, kept in frames.items() if not kept]
    if missing:
        return NoFrames(Lack.MISSING, f"No image has come from {_names(missing)} yet.")
    if not now and max_age:
        return NoFrames(
            Lack.NO_CLOCK,
            "use_sim_time is true and nothing came on /clock, so the age of images is unknown; play a bag with --clock "
            "or start the simulation.",
        )
    for camera, kept in frames.items():
        age = _seconds(now - kept[-1].stamp)
        if now and max_age and abs(age) > _OTHER_CLOCK:
            side = "before" if age > 0 else "ahead of"
            return NoFrames(
                Lack.STALE,
                f"The newest image from {camera} is stamped {abs(age):.0f} s {side} this node's clock, which is "
                "another one; set use_sim_time to true where a simulation or a recording gives the time, and to false "
                "where none does.",
            )
        if now and age < -FUTURE:
            return NoFrames(
                Lack.STALE,
                f"The newest image from {camera} is stamped {-age:.2f} s ahead of this node's clock, which went back; "
                "wait for new ones.",
            )
        if max_age and age > max_age:
            return NoFrames(
                Lack.STALE,
                f"The newest image from {camera} is {age:.2f} s old; images.max_age allows {max_age:g} s.",
            )
    slowest = min(frames, key=lambda camera: frames[camera][-1].stamp)
    closest = float("inf")
    for anchor in reversed(frames[slowest]):
        chosen = tuple(
            min(kept, key=lambda frame: (abs(frame.stamp - anchor.stamp), -frame.stamp)) for kept in frames.values()
        )
        stamps = [frame.stamp for frame in chosen]
        apart = _seconds(max(stamps) - min(stamps))
        closest = min(closest, apart)
        if apart > slop:
            continue
        ages = {frame.camera: max(0.0, _seconds(now - frame.stamp)) for frame in chosen}
        oldest = max(ages, key=lambda camera: ages[camera])
        if max_age and ages[oldest] > max_age:
            return NoFrames(
                Lack.STALE,
                f"The newest images that belong together hold one from {oldest} that is {ages[oldest]:.2f} s old; "
                f"images.max_age allows {max_age:g} s.",
            )
        return FrameSet(chosen, ages)
    return NoFrames(
        Lack.UNPAIRED,
        f"The images of {_names(list(frames))} are {closest:.3f} s apart; images.sync_slop allows {slop:g} s: "
        "raise it, or let the slower camera send more often.",
    )


def next_set(frames: Mapping[str, Sequence[Frame]], after: int, *, slop: float) -> FrameSet | None:
    """The first set later than ``after``: each frame of the first camera with the nearest of the others.

    A set is known once every camera has a frame at or after it. A frame of the first camera without company within the
    slop belongs to no set and is passed over.
    """
    if not all(frames.values()):
        return None
    known = min(kept[-1].stamp for kept in frames.values())
    if known < after - JUMP * _NANO:
        after = 0  # the source began again
    first = next(iter(frames.values()))
    for anchor in first:
        if anchor.stamp > known:
            return None
        chosen = tuple(
            min(kept, key=lambda frame: (abs(frame.stamp - anchor.stamp), -frame.stamp)) for kept in frames.values()
        )
        stamps = [frame.stamp for frame in chosen]
        if min(stamps) > after and _seconds(max(stamps) - min(stamps)) <= slop:
            return FrameSet(chosen, {})
    return None


def _seconds(nanoseconds: int) -> float:
    return nanoseconds / _NANO


def _names(cameras: Sequence[str]) -> str:
    return cameras[0] if len(cameras) == 1 else f"{', '.join(cameras[:-1])} and {cameras[-1]}"
