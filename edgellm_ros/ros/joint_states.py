"""The robot's joints by name, from messages that may list them in any order and beside others.

Every message is mapped anew: a driver may change its order from one to the next. Nothing here knows ROS.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence
from enum import Enum

import numpy as np

from ..errors import ObservationError, RefusalCode

NANOSECONDS = 1_000_000_000
FUTURE = 0.1  # s by which clocks of a robot may differ
JUMP = 1.0  # s; a larger step back is a clock that began again


class JointEvent(str, Enum):
    """What became of a message."""

    TAKEN = "taken"
    MISSING_JOINT = "missing_joint"
    DUPLICATE_JOINT = "duplicate_joint"
    SHORT_POSITION = "short_position"
    NOT_FINITE = "not_finite"
    ZERO_STAMP = "zero_stamp"
    FUTURE_STAMP = "future_stamp"
    OUT_OF_ORDER = "out_of_order"


class JointTracker:
    """The newest valid positions of ``names``, in their order. Any thread may call it; the lock covers all fields."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._lock = threading.Lock()
        self._events: Counter[JointEvent] = Counter()
        self._positions: np.ndarray | None = None
        self._stamp = 0
        self._fault = ""  # what was wrong with the last message; empty after a good one

    def add(self, names: Sequence[str], positions: Sequence[float], stamp: int, now: int) -> JointEvent:
        """Take a message, or turn it away and keep what there was; ``stamp`` and ``now`` in ns of the node's clock."""
        event, sentence, found = self._read(names, positions, stamp, now)
        with self._lock:
            if event is JointEvent.TAKEN and 0 < self._stamp - stamp < JUMP * NANOSECONDS:
                event = JointEvent.OUT_OF_ORDER  # a late message says nothing new, and clears nothing
            elif event is JointEvent.TAKEN:
                self._positions, self._stamp = found, stamp
            self._events[event] += 1
            if event is not JointEvent.OUT_OF_ORDER:
                self._fault = sentence
        return event

    def _read(
        self, names: Sequence[str], positions: Sequence[float], stamp: int, now: int
    ) -> tuple[JointEvent, str, np.ndarray | None]:
        if not stamp:
            return JointEvent.ZERO_STAMP, "The joint states are stamped zero, so their age is unknown.", None
        if now and stamp > now + FUTURE * NANOSECONDS:
            return JointEvent.FUTURE_STAMP, "The joint states are stamped ahead of this node's clock.", None
        if len(positions) < len(names):
            sentence = f"The joint states name {len(names)} joints and hold {len(positions)} positions."
            return JointEvent.SHORT_POSITION, sentence, None
        places: dict[str, int] = {}
        for index, name in enumerate(names):
            if name in places and name in self.names:
                return JointEvent.DUPLICATE_JOINT, f"The joint states name {name!r} twice.", None
            places[name] = index
        values = np.empty(len(self.names))
        for index, name in enumerate(self.names):
            if name not in places:
                return JointEvent.MISSING_JOINT, f"The joint states lack {name!r}, which the policy needs.", None
            values[index] = positions[places[name]]
            if not math.isfinite(values[index]):
                return JointEvent.NOT_FINITE, f"The joint state of {name!r} is {values[index]}.", None
        return JointEvent.TAKEN, "", values

    def state(self, now: int, max_age: float) -> tuple[np.ndarray, int]:
        """Positions [n] in the units of the messages, and their stamp in ns.

        :raises ObservationError: nothing valid has come, or what has is older than ``max_age`` s (0 sets no limit).
        """
        with self._lock:
            positions, stamp, fault = self._positions, self._stamp, self._fault
        if positions is None:
            raise ObservationError(fault or "No joint states have come yet; check the topic joint_states.")
        age = (now - stamp) / NANOSECONDS
        if max_age and age > max_age:
            raise ObservationError(
                fault or f"The newest joint states are {age:.2f} s old; safety.max_state_age allows {max_age:g} s.",
                RefusalCode.STALE_OBSERVATION,
            )
        return positions, stamp

    def clear(self) -> None:
        """Forget the positions: a clock jumped, or the node stopped."""
        with self._lock:
            self._positions, self._stamp, self._fault = None, 0, ""

    def events(self) -> dict[str, int]:
        """Messages by what became of them."""
        with self._lock:
            return {event.value: self._events[event] for event in JointEvent if self._events[event]}
