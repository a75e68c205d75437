"""How tokens come out of the model: one at a time, or several that a draft proposed and the model verified."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

from ..request import TokenLogprob
from ..sequence import Sequence


@dataclass(frozen=True)
class Accepted:
    """What one row gained in a step: ids in order, their log probabilities where asked, and whether logits were bad."""

    token_ids: tuple[int, ...]
    logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()
    not_finite: bool = False


class DecodingStrategy(Protocol):
    """One way to decode. After a step the last token of a history is sampled but not yet in the cache."""

    @property
    def name(self) -> str:
        """As reports name it."""
        ...

    @property
    def base_headroom(self) -> int:
        """Cache positions that a step may need beyond what is committed."""
        ...

    @property
    def max_accepted_tokens(self) -> int:
        """Most tokens that a row can gain in a step."""
        ...

    @property
    def supports_live_admission(self) -> bool:
        """True when sequences may join a running batch."""
        ...

    def prefill_chunk(self, sequence: Sequence, row: int, *, joining: bool = False) -> Accepted | None:
        """Run one chunk of the prompt; the first token after the last chunk, None before.

        ``joining``: other rows wait meanwhile.

        :raises BackendError: the engine failed.
        """
        ...

    def decode_step(self, sequences: Items[Sequence]) -> list[Accepted]:
        """One step of rows 0..B-1, in their order.

        :raises BackendError: the engine failed.
        """
        ...

    def mixes(self, decoding: Items[Sequence], joiner: Sequence) -> bool:
        """Whether ``mixed_step`` is possible, and pays."""
        ...

    def mixed_step(self, decoding: Items[Sequence], joiner: Sequence) -> tuple[list[Accepted], Accepted | None]:
        """``decode_step`` of rows 0..B-1 and ``prefill_chunk`` of row B in one engine call.

        :raises BackendError: the engine failed; nothing was gained, and either may be tried by itself.
        """
        ...
