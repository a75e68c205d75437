"""Copies of cached positions by what they are of: a forest of prefixes under one budget of bytes.

A block holds 16 positions and hangs below the block of the 16 before them. Its name is a keyed 128-bit hash of its
parent's name and of its own content, and its content is compared whenever it is found, so that not even equal names
make one prefix pass for another.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import MisuseError

BLOCK_TOKENS = 16
BLOCK_OVERHEAD = 1024  # bytes that a block takes beside its keys and values: names, content, Python objects

Digest = Callable[[bytes, bytes], bytes]


def keyed_digest() -> Digest:
    """A hash of (parent's name, content) under a key of its own that nobody knows."""
    key = secrets.token_bytes(32)

    def digest(parent: bytes, content: bytes) -> bytes:
        return hashlib.blake2b(parent + content, digest_size=16, key=key).digest()

    return digest


class Block:
    """One block. ``pins`` counts who copies to or from it now; ``children`` the blocks below it."""

    __slots__ = ("children", "content", "data", "name", "parent", "pins")

    def __init__(self, parent: Block | None, name: bytes, content: bytes, data: Any) -> None:
        self.parent = parent
        self.name = name
        self.content = content
        self.data = data
        self.children = 0
        self.pins = 0


class PinnedChain:
    """Blocks, each below the one before it, that nothing drops for now."""

    def __init__(self, pin: Callable[[Block], None]) -> None:
        self.blocks: list[Block] = []
        self._pin = pin

    @property
    def last(self) -> Block | None:
        """The deepest block."""
        return self.blocks[-1] if self.blocks else None

    def append(self, block: Block) -> None:
        """Keep one more."""
        self._pin(block)
        self.blocks.append(block)


class BlockStore:
    """Belongs to the thread that drives the runtime.

    Blocks lie in order of their last use, and every use of a chain counts its first block as used last; so a block is
    never older than one below it, and the oldest block that is not pinned has nothing below it.

    ``block_bytes`` is what the data of one block takes.
    """

    def __init__(self, budget_bytes: int, block_bytes: int, digest: Digest | None = None) -> None:
        self.budget_bytes = budget_bytes
        self.bytes_per_block = block_bytes + BLOCK_OVERHEAD
        self.capacity = budget_bytes // self.bytes_per_block
        self.evicted = 0
        self.collisions = 0
        self._digest = digest or keyed_digest()
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()  # least recently used first
        self._pinned = 0  # blocks with at least one pin

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks.values())

    @property
    def nbytes(self) -> int:
        """Bytes in use, as the budget counts them."""
        return len(self._blocks) * self.bytes_per_block

    @property
    def pins(self) -> int:
        """Pins in all; 0 between calls."""
        return sum(block.pins for block in self._blocks.values())

    def find(self, contents: Sequence[bytes]) -> list[Block]:
        """The longest chain from the first content on, used now."""
        chain: list[Block] = []
        parent: Block | None = None
        for content in contents:
            block = self._blocks.get(self._name(parent, content))
            if block is None:
                break
            if block.content != content or block.parent is not parent:
                self.collisions += 1
                break
            chain.append(block)
            parent = block
        self._touch(chain)
        return chain

    def plan(self, wanted: int) -> int:
        """How many of ``wanted`` new blocks there can be room for; nothing changes."""
        return max(0, min(wanted, self.capacity - self._pinned))

    def make_room(self, count: int) -> bool:
        """Drop the blocks used longest ago until ``count`` more fit; where that cannot be, change nothing: False."""
        if self.plan(count) < count:
            return False
        surplus = len(self._blocks) + count - self.capacity
        if surplus > 0:
            victims = []
            for block in self._blocks.values():
                if not block.pins:
                    victims.append(block)
                    if len(victims) == surplus:
                        break
            for block in victims:
                self._drop(block)
                self.evicted += 1
        return True

    def insert(self, parent: Block | None, content: bytes, data: Any) -> Block | None:
        """A new block below ``parent``, which must be pinned; None where another block has its name.

        :raises MisuseError: there is no room; call ``make_room``.
        """
        name = self._name(parent, content)
        if name in self._blocks:
            self.collisions += 1
            return None
        if len(self._blocks) >= self.capacity:
            raise MisuseError(f"the store is full with {len(self._blocks)} blocks; make room first.")
        block = Block(parent, name, content, data)
        self._blocks[name] = block
        if parent is not None:
            parent.children += 1
        return block

    def remove(self, block: Block) -> int:
        """Drop a block and all below it, whether used or not; returns how many that were.

        :raises MisuseError: one of them is pinned; nothing changed.
        """
        if self._blocks.get(block.name) is not block:
            return 0
        doomed = {block}
        for other in reversed(self._blocks.values()):  # parents come before what is below them
            if other.parent in doomed:
                doomed.add(other)
        if any(other.pins for other in doomed):
            raise MisuseError("a block in use was to be dropped; wait until its copy is done.")
        for other in [other for other in self._blocks.values() if other in doomed]:
            self._drop(other)
        return len(doomed)

    @contextmanager
    def pinned(self, chain: list[Block]) -> Iterator[PinnedChain]:
        """Keep these blocks meanwhile, and those that are added to the chain; at the end all count as just used."""
        held = PinnedChain(self._pin)
        try:
            for block in chain:
                held.append(block)
            yield held
        finally:
            for block in held.blocks:
                block.pins -= 1
                self._pinned -= not block.pins
            self._touch(held.blocks)

    def _pin(self, block: Block) -> None:
        self._pinned += not block.pins
        block.pins += 1

    def _name(self, parent: Block | None, content: bytes) -> bytes:
        return self._digest(parent.name if parent is not None else b"", content)

    def _touch(self, chain: list[Block]) -> None:
        for block in reversed(chain):
            self._blocks.move_to_end(block.name)

    def _drop(self, block: Block) -> None:
        del self._blocks[block.name]
        if block.parent is not None:
            block.parent.children -= 1
        block.data = None
