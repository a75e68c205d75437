"""How a scheduler is set up and stopped."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ..errors import EdgeLLMError, RefusalCode
from ..json_values import shown
from .compatibility import BatchCompatibility


@dataclass(frozen=True)
class RequestEngineConfig:
    """Limits of a scheduler.

    ``command_queue_capacity``: requests that may arrive during one step; ``max_pending_requests``: that may wait;
    ``max_batch_size``: that may run together; ``idle_wait``: seconds between looks at an empty queue;
    ``step_timeout``: seconds that one engine call may take, 0 for no limit; ``compatibility``: who may join whom.
    """

    command_queue_capacity: int = 64
    max_pending_requests: int = 256
    max_batch_size: int = 1
    idle_wait: float = 0.05
    step_timeout: float = 0.0
    compatibility: BatchCompatibility = field(default_factory=BatchCompatibility)

    def __post_init__(self) -> None:
        if not isinstance(self.compatibility, BatchCompatibility):
            raise EdgeLLMError(
                f"compatibility is {shown(self.compatibility)}; want a BatchCompatibility.", RefusalCode.BAD_PARAMETER
            )
        for name, low, high, kinds in (
            ("command_queue_capacity", 1, 1 << 20, (int,)),
            ("max_pending_requests", 1, 1 << 20, (int,)),
            ("max_batch_size", 1, 64, (int,)),
            ("idle_wait", 0.001, 60, (int, float)),
            ("step_timeout", 0, 86400, (int, float)),
        ):
            value = getattr(self, name)
            if not isinstance(value, kinds) or isinstance(value, bool) or not low <= value <= high:
                raise EdgeLLMError(
                    f"{name} is {shown(value)}; want a number from {low} to {high}.", RefusalCode.BAD_PARAMETER
                )


class ShutdownMode(Enum):
    """What becomes of requests that have not ended."""

    DRAIN = "drain"  # they run to their end
    CANCEL = "cancel"
