"""The cameras of a policy: which of them it needs, can do without, or accepts and does not look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ObservationError


@dataclass(frozen=True)
class CameraSlot:
    """One camera: ``key`` is its full name in the checkpoint, ``name`` the last component of it.

    A picture for an ``ignored`` slot is accepted, since the robot has that camera, and dropped.
    """

    key: str
    required: bool = True
    ignored: bool = False

    @property
    def name(self) -> str:
        """As topics and files call it."""
        return self.key.rsplit(".", 1)[-1]


def filled_slots(slots: Sequence[CameraSlot], given: Sequence[str], empty: int) -> tuple[CameraSlot, ...]:
    """The slots that the policy looks at and ``given`` fills, in the policy's order; ``empty`` required ones may lack.

    :raises ObservationError: a required camera is missing or a name is unknown; the sentence lists both sides.
    """
    wanted = ", ".join(slot.name for slot in slots)
    for name in given:
        if not any(name in (slot.key, slot.name) for slot in slots):
            raise ObservationError(f"the policy has no camera {name!r}; its cameras are {wanted}: rename it.")
    for slot in slots:
        if slot.name != slot.key and {slot.name, slot.key} <= set(given):
            raise ObservationError(f"camera {slot.name!r} is given twice, as {slot.key!r} too; give one picture of it.")
    seen = [slot for slot in slots if not slot.ignored]
    filled = tuple(slot for slot in seen if slot.name in given or slot.key in given)
    missing = [slot.name for slot in seen if slot.required and slot not in filled]
    if len(missing) > empty or not filled:
        raise ObservationError(
            f"camera {(missing or [wanted])[0]!r} is missing (given: {', '.join(given) or 'none'}); the policy "
            "needs it."
        )
    return filled
