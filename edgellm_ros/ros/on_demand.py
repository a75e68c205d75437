"""Subscriptions whose messages wait in the middleware until somebody wants them.

An executor takes every message as it comes, and each take copies it twice; of a camera at 30 Hz a prompt uses one frame
in a hundred. The middleware keeps the newest by itself, so they are taken when a prompt is answered, and now and then
in between for diagnostics. Events of a subscription (a policy that does not fit) are looked for at those moments: while
messages wait, an executor that waits for events is woken all the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.subscription import Subscription

EVENT_TIME = 0.005  # s behind a look, for an executor to find events


class OnDemandGroup(MutuallyExclusiveCallbackGroup):  # type: ignore[misc]
    """A callback group whose subscriptions an executor leaves alone, and whose events it handles behind ``look``."""

    def __init__(self) -> None:
        super().__init__()
        self._until = 0.0

    def look(self) -> None:
        """Let events be handled now. To be called by the executor's thread."""
        self._until = time.monotonic() + EVENT_TIME

    def can_execute(self, entity: Any) -> bool:
        """Whether the executor may wait for it."""
        if isinstance(entity, Subscription) or time.monotonic() > self._until:
            return False
        return bool(super().can_execute(entity))


def take_waiting(subscription: Any, most: int) -> Iterator[Any]:
    """Up to ``most`` messages that wait, oldest first. One thread at a time."""
    for _ in range(most):
        with subscription.handle:
            taken = subscription.handle.take_message(subscription.msg_type, subscription.raw)
        if taken is None:
            return
        yield taken[0]
