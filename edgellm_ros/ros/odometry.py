"""Where a vehicle was, from odometry at any rate: its last positions at even times, in its frame of the moment.

Nothing here knows ROS. Between two messages a vehicle moves and turns evenly.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence
from enum import Enum

import numpy as np

from ..errors import ObservationError, RefusalCode
from .joint_states import FUTURE, JUMP, NANOSECONDS

KEPT = 2048  # messages: more than two seconds at 1 kHz
FARTHEST = 1e9  # m from the origin; nothing that drives is farther away
LONGEST_GAP = 0.5  # s between two messages over which a way is still known


class OdometryEvent(str, Enum):
    """What became of a message."""

    TAKEN = "taken"
    NOT_FINITE = "not_finite"
    NO_ORIENTATION = "no_orientation"
    ZERO_STAMP = "zero_stamp"
    FUTURE_STAMP = "future_stamp"
    OUT_OF_ORDER = "out_of_order"


class OdometryTracker:
    """Poses of the last moments. Any thread may call it; the condition's lock covers all fields."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._poses: deque[tuple[int, np.ndarray, np.ndarray]] = deque(maxlen=KEPT)  # ns, x y z, quaternion x y z w
        self._events: Counter[OdometryEvent] = Counter()

    def add(self, position: Sequence[float], orientation: Sequence[float], stamp: int, now: int) -> OdometryEvent:
        """Take x, y, z in m and a quaternion x, y, z, w; ``stamp`` and ``now`` in ns of the node's clock."""
        place, turn = np.array(position, dtype=np.float64), np.array(orientation, dtype=np.float64)
        with np.errstate(over="ignore"):
            size = float(np.linalg.norm(turn))
        with self._condition:
            newest = self._poses[-1][0] if self._poses else 0
            if stamp <= 0:  # a message can carry a negative one
                event = OdometryEvent.ZERO_STAMP
            elif now and stamp > now + FUTURE * NANOSECONDS:
                event = OdometryEvent.FUTURE_STAMP
            elif not (np.abs(place).max() < FARTHEST and np.isfinite(turn).all()):
                event = OdometryEvent.NOT_FINITE
            elif not 0.5 <= size < np.inf:
                event = OdometryEvent.NO_ORIENTATION  # all zero: a driver that does not fill it
            elif 0 <= newest - stamp < JUMP * NANOSECONDS:
                event = OdometryEvent.OUT_OF_ORDER
            else:
                event = OdometryEvent.TAKEN
                if stamp < newest:
                    self._poses.clear()  # the source began again
                self._poses.append((stamp, place, turn / size))
                self._condition.notify_all()
            self._events[event] += 1
        return event

    def clear(self) -> None:
        """Forget the poses: the clock began again."""
        with self._condition:
            self._poses.clear()

    def events(self) -> dict[str, int]:
        """Messages by what became of them."""
        with self._condition:
            return {event.value: count for event, count in self._events.items()}

    def check_age(self, now: int) -> None:
        """:raises ObservationError: the newest pose is older than a gap over which a way is still known."""
        with self._condition:
            newest = self._poses[-1][0] if self._poses else None
        age = float("inf") if newest is None else (now - newest) / NANOSECONDS
        if age > LONGEST_GAP:
            found = "no odometry has come" if newest is None else f"the newest odometry is {age:.2f} s old"
            raise ObservationError(
                f"{found}; want {LONGEST_GAP:g} s at most: check the topic odom.", RefusalCode.STALE_OBSERVATION
            )

    def history(self, moment: int, points: int, step: float, timeout: float) -> np.ndarray:
        """Positions float64 [points,3] in m, ``step`` s apart, the last at ``moment`` (ns) and the origin.

        x is forward and y left as the vehicle stood at ``moment``. Waits up to ``timeout`` s for a message at or after
        that moment.

        :raises ObservationError: there is none, or the way before it is not known.
        """
        with self._condition:
            self._condition.wait_for(lambda: bool(self._poses) and self._poses[-1][0] >= moment, timeout)
            poses = list(self._poses)
        if not poses or poses[-1][0] < moment:
            found = (
                "none has come" if not poses else f"the newest is {(moment - poses[-1][0]) / NANOSECONDS:.2f} s older"
            )
            raise ObservationError(
                f"No odometry belongs to the images ({found}); check the topic odom.", RefusalCode.STALE_OBSERVATION
            )
        times = moment - np.arange(points - 1, -1, -1) * round(step * NANOSECONDS)
        stamps = np.array([stamp for stamp, _, _ in poses])
        if stamps[0] > times[0]:
            raise ObservationError(
                f"Odometry is known for {(moment - stamps[0]) / NANOSECONDS:.2f} s before the images; the policy needs "
                f"{step * (points - 1):.2f} s: wait.",
                RefusalCode.STALE_OBSERVATION,
            )
        after = np.clip(np.searchsorted(stamps, times), 1, max(len(stamps) - 1, 1))
        if len(stamps) == 1:
            after[:] = 0
        before = np.maximum(after - 1, 0)
        gaps = (stamps[after] - stamps[before]) / NANOSECONDS
        if gaps.max() > LONGEST_GAP:
            raise ObservationError(
                f"Odometry was silent for {gaps.max():.2f} s within the history that the policy needs; want "
                f"{LONGEST_GAP:g} s at most.",
                RefusalCode.STALE_OBSERVATION,
            )
        share = np.where(gaps > 0, (times - stamps[before]) / np.maximum(stamps[after] - stamps[before], 1), 0.0)
        places = np.array([place for _, place, _ in poses])
        driven = places[before] + share[:, None] * (places[after] - places[before])
        first, second = poses[int(before[-1])][2], poses[int(after[-1])][2]
        second = second if first @ second >= 0 else -second
        turn = first + share[-1] * (second - first)
        moved: np.ndarray = (driven - driven[-1]) @ _rotation(turn / np.linalg.norm(turn))
        return moved


def _rotation(quaternion: np.ndarray) -> np.ndarray:
    """[3,3]: vehicle to world; rows of world vectors times it are in the vehicle's frame."""
    x, y, z, w = quaternion
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
