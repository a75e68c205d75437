"""What a request says about prefix reuse: whether to look, what to keep, and what its blocks may be mistaken for."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

DERIVE_REPLAY_TAIL = -1  # as a replay tail length: found out from the chat template


class CacheLookupPolicy(str, Enum):
    """Whether a sequence takes part in prefix reuse."""

    USE_CACHE = "use_cache"
    BYPASS = "bypass"  # neither looked up nor kept


class CacheCommitPolicy(str, Enum):
    """What of a sequence is kept for later ones."""

    INCLUDING_GENERATED_TOKENS = "including_generated_tokens"
    PREFILL_STATE_ONLY = "prefill_state_only"


@dataclass(frozen=True)
class CacheScope:
    """What beside its ids makes a prefix what it is; equal ids under different scopes never share a block.

    ``adapter_generation`` tells adapters apart that were loaded under one name one after the other, ``variant`` is a
    digest of whatever else changes keys and values, such as a pruner and its settings.
    """

    adapter: str = ""
    adapter_generation: int = 0
    variant: bytes = b""

    def content(self) -> bytes:
        """Bytes that differ where the scopes do."""
        name = self.adapter.encode("utf-8", "surrogatepass")
        return b"".join(
            (len(name).to_bytes(4, "little"), name, self.adapter_generation.to_bytes(8, "little"), self.variant)
        )


@dataclass(frozen=True)
class MediaSpan:
    """Positions ``start`` to before ``stop`` hold an item with this digest; the ids there say nothing."""

    start: int
    stop: int
    digest: bytes


@dataclass(frozen=True)
class CachePolicy:
    """The part of a seed that concerns prefix reuse.

    ``replay_tail_length``: how many of the prompt's last tokens will read differently once the answer is part of the
    history; 0 and 1 say none.
    """

    lookup: CacheLookupPolicy = CacheLookupPolicy.USE_CACHE
    commit: CacheCommitPolicy = CacheCommitPolicy.INCLUDING_GENERATED_TOKENS
    replay_tail_length: int = 0
    scope: CacheScope = field(default_factory=CacheScope)
    media: tuple[MediaSpan, ...] = ()

    def prompt_limit(self, prompt_length: int) -> int:
        """Positions of a prompt that may be kept."""
        return max(0, prompt_length - self.replay_tail_length)

    def committed_limit(self, prompt_length: int, committed_length: int) -> int:
        """Positions of an ended sequence that may be kept.

        Nothing after a tail that the next turn writes differently could ever be found again.
        """
        if self.commit is CacheCommitPolicy.PREFILL_STATE_ONLY or self.replay_tail_length > 1:
            return min(committed_length, self.prompt_limit(prompt_length))
        return committed_length
