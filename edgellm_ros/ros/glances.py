"""Events of the middleware (quality of service that does not fit): looked for now and then, not at every message.

An executor of rclpy makes its wait anew each time it is woken, of everything that its nodes have. Two events of each
publisher and subscription are more than half of what a policy's node has, and cost it as much time as all the rest.
"""

from __future__ import annotations

import time
from typing import Any

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup

try:
    from rclpy.event_handler import EventHandler
except ImportError:  # Humble
    from rclpy.qos_event import QoSEventHandler as EventHandler

GLANCE = 0.5  # s between looks of a node
EVENT_TIME = 0.005  # s behind a look, for an executor to find events


class GlancingGroup(MutuallyExclusiveCallbackGroup):  # type: ignore[misc]
    """A callback group whose events an executor handles behind ``look`` alone; the rest as any other."""

    def __init__(self) -> None:
        super().__init__()
        self._until = 0.0

    def look(self) -> None:
        """Let events be handled now. To be called by the executor's thread."""
        self._until = time.monotonic() + EVENT_TIME

    def can_execute(self, entity: Any) -> bool:
        """Whether the executor may wait for it."""
        if isinstance(entity, EventHandler) and time.monotonic() > self._until:
            return False
        return bool(super().can_execute(entity))
