"""The robot's joints by name, from messages that may list them in any order and beside others.

Every message is mapped anew: a driver may change its order from one to the next. Nothing here knows ROS.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Sequence
from enum import Enum

import numpy as np

from ..errors import ObservationError, RefusalCode

NANOSECONDS = 1_000_000_000
FUTURE = 0.1  # s by which clocks of a robot may differ
JUMP = 1.0  # s; a larger step back is a clock that began again
KEPT = 512  # messages, to find the one that belongs to an image


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
        self._condition = threading.Condition(self._lock)
        self._states: deque[tuple[int, np.ndarray]] = deque(maxlen=KEPT)
        self._fault = ""  # what was wrong with the last message; empty after a good one
        self._lost = False  # whether the robot said since then that it does not know where a joint is
        self._gaps: deque[int] = deque(maxlen=KEPT)  # ns; when it said so

    def add(self, names: Sequence[str], positions: Sequence[float], stamp: int, now: int) -> JointEvent:
        """Take a message, or turn it away and keep what there was; ``stamp`` and ``now`` in ns of the node's clock."""
        event, sentence, found = self._read(names, positions, stamp, now)
        with self._condition:
            newest = self._states[-1][0] if self._states else 0
            if event is JointEvent.TAKEN and 0 <= newest - stamp < JUMP * NANOSECONDS:
                event = JointEvent.OUT_OF_ORDER  # a late message says nothing new, and clears nothing
            elif event is JointEvent.TAKEN and found is not None:
                if stamp < newest:
                    self._states.clear()
                    self._gaps.clear()
                self._states.append((stamp, found))
                self._condition.notify_all()
            self._events[event] += 1
            if event is not JointEvent.OUT_OF_ORDER:
                self._fault = sentence
            if event in (JointEvent.TAKEN, JointEvent.NOT_FINITE):
                self._lost = event is JointEvent.NOT_FINITE
            if event is JointEvent.NOT_FINITE:
                self._gaps.append(stamp)
        return event

    def _read(
        self, names: Sequence[str], positions: Sequence[float], stamp: int, now: int
    ) -> tuple[JointEvent, str, np.ndarray | None]:
        if stamp <= 0:  # a message can carry a negative one
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

        :raises ObservationError: nothing valid has come, or what has is older than ``max_age`` s (0 sets no limit), of
            a clock that went back, or was followed by a number that is not finite.
        """
        with self._lock:
            newest, fault, lost = self._states[-1] if self._states else None, self._fault, self._lost
        if newest is None or lost:
            raise ObservationError(fault or "No joint states have come yet; check the topic joint_states.")
        stamp, positions = newest
        age = (now - stamp) / NANOSECONDS
        if now and age < -FUTURE:
            raise ObservationError(
                f"The newest joint states are stamped {-age:.2f} s ahead of this node's clock, which went back; wait "
                "for new ones.",
                RefusalCode.STALE_OBSERVATION,
            )
        if max_age and age > max_age:
            raise ObservationError(
                fault or f"The newest joint states are {age:.2f} s old; safety.max_state_age allows {max_age:g} s.",
                RefusalCode.STALE_OBSERVATION,
            )
        return positions, stamp

    def at(self, moment: int, timeout: float) -> tuple[np.ndarray, int] | None:
        """The last positions up to ``moment``, once that is known: when a later message has come, or ``timeout`` s on.

        None where every message that is kept is later, where none came in time, or where the robot said behind it that
        it does not know where a joint is; so a replay finds the same ones at any speed.
        """
        with self._condition:
            self._condition.wait_for(lambda: bool(self._states) and self._states[-1][0] >= moment, timeout)
            known = [state for state in self._states if state[0] <= moment]
            if not known or self._states[-1][0] < moment or any(known[-1][0] < gap <= moment for gap in self._gaps):
                return None
            return known[-1][1], known[-1][0]

    def clear(self) -> None:
        """Forget the positions: a clock jumped, or the node stopped."""
        with self._lock:
            self._states.clear()
            self._gaps.clear()
            self._fault, self._lost = "", False

    def events(self) -> dict[str, int]:
        """Messages by what became of them."""
        with self._lock:
            return {event.value: self._events[event] for event in JointEvent if self._events[event]}
