"""Subscriptions whose messages wait in the middleware until somebody wants them.

An executor takes every message as it comes, and each take copies it twice; of a camera at 30 Hz a prompt uses one frame
in a hundred, and a policy those of its own rate. The middleware keeps the newest by itself, so they are taken when they
are used, and now and then in between for diagnostics. Events of a subscription (a policy that does not fit) are looked
for at those moments: while messages wait, an executor that waits for events is woken all the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rclpy.subscription import Subscription

from .glances import GlancingGroup

MOST_AT_ONCE = 1000  # messages; a publisher that is faster than the taking must not hold it for ever


class OnDemandGroup(GlancingGroup):
    """A callback group whose subscriptions an executor leaves alone, and whose events it handles behind ``look``."""

    def can_execute(self, entity: Any) -> bool:
        """Whether the executor may wait for it."""
        return not isinstance(entity, Subscription) and super().can_execute(entity)


def take_waiting(subscription: Any) -> Iterator[Any]:
    """Every message that waits, oldest first, however many ``qos_overrides`` let wait. One thread at a time."""
    for _ in range(max(MOST_AT_ONCE, subscription.qos_profile.depth)):
        with subscription.handle:
            taken = subscription.handle.take_message(subscription.msg_type, subscription.raw)
        if taken is None:
            return
        yield taken[0]
