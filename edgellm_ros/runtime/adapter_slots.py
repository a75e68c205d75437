"""Which adapter lies in which place of the engine, and who uses it."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import RefusalCode, RequestError


class AdapterSlots:
    """Places 1 to ``count``; a place is given to another adapter only while nobody uses it, least recently used first.

    Whoever uses it from several threads holds a lock. ``load(name, slot)`` fills a place.
    """

    def __init__(self, count: int, load: Callable[[str, int], None]) -> None:
        self._load = load
        self._names: dict[int, str] = {}
        self._users: dict[str, int] = {}
        self._recent: list[int] = list(range(1, count + 1))  # least recently used first

    def acquire(self, name: str) -> int:
        """The place of an adapter, filled; 0 for none. Everyone who got a place gives it back with ``release``.

        :raises RequestError: all places are in use.
        """
        if not name:
            return 0
        slot = self.slot_of(name)
        if slot == 0:
            slot = next((slot for slot in self._recent if not self._users.get(self._names.get(slot, ""))), 0)
            if slot == 0:
                raise RequestError(
                    f"all {len(self._recent)} places for adapters are in use; try again when a sequence has ended, or "
                    "build the engine with more --lora-slots.",
                    RefusalCode.NO_CAPACITY,
                )
            self._names.pop(slot, None)
            self._load(name, slot)
            self._names[slot] = name
        self._recent.remove(slot)
        self._recent.append(slot)
        self._users[name] = self._users.get(name, 0) + 1
        return slot

    def available(self, name: str) -> bool:
        """Whether ``acquire`` would find a place."""
        return (
            not name
            or self.slot_of(name) > 0
            or any(not self._users.get(self._names.get(slot, "")) for slot in self._recent)
        )

    def slot_of(self, name: str) -> int:
        """Where an adapter lies; 0: nowhere."""
        return next((slot for slot, held in self._names.items() if held == name), 0)

    def release(self, name: str) -> None:
        """One user less."""
        if name and self._users.get(name, 0):
            self._users[name] -= 1

    def release_all(self) -> None:
        """Nobody uses anything: the batch is closed."""
        self._users.clear()

    def users(self, name: str) -> int:
        """Sequences that use an adapter."""
        return self._users.get(name, 0)

    def forget(self, name: str) -> None:
        """The place of an adapter that is no longer loaded, or is loaded anew, is empty."""
        slot = self.slot_of(name)
        if slot:
            del self._names[slot]
            self._recent.remove(slot)
            self._recent.insert(0, slot)
