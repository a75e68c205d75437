"""What a request owns between begin and finish, and the order in which it lets go of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from ..errors import BackendError, Refusal, RefusalCode
from .boundary import BatchResult
from .decoding.strategy import Accepted, DecodingStrategy
from .executor import NOT_FINITE
from .sequence import Sequence

TokenBroadcastFn = Callable[[list[int]], bool]
"""Rank 0 sends the list, peers receive into it; False when a peer is gone."""


class RankLostError(BackendError):
    """Another rank is gone; nothing of this request can go on."""

    def __init__(self) -> None:
        super().__init__("another rank is gone; start all ranks again.")


class InProgressGuard:
    """The latch that lets one request at a time into a runtime; whoever holds a guard is that request."""

    def __init__(self, latch: threading.Lock) -> None:
        self._latch: threading.Lock | None = latch

    @classmethod
    def acquire(cls, latch: threading.Lock) -> InProgressGuard | None:
        """A guard, or None while another one is held."""
        return cls(latch) if latch.acquire(blocking=False) else None

    def release(self) -> None:
        """Let the next request in; a second call does nothing."""
        latch, self._latch = self._latch, None
        if latch is not None:
            latch.release()


@dataclass
class GenerationContext:
    """State of the running batch. Row r holds ``sequences[r]``; those in ``prefilling`` are the last rows, in order."""

    sequences: list[Sequence] = field(default_factory=list)
    prefilling: list[Sequence] = field(default_factory=list)
    completed: dict[int, BatchResult] = field(default_factory=dict)
    generation_round: int = 0
    token_broadcast: TokenBroadcastFn | None = None

    @property
    def decoding_count(self) -> int:
        """Rows whose prompt is in the cache."""
        return len(self.sequences) - len(self.prefilling)

    def agree(self, accepted: list[Accepted]) -> list[Accepted]:
        """What the first rank sampled, on every rank.

        :raises RankLostError: a rank is gone.
        """
        if self.token_broadcast is None:
            return accepted
        ids = [NOT_FINITE if gained.not_finite else gained.token_ids[-1] for gained in accepted]
        if not self.token_broadcast(ids):
            raise RankLostError
        return [
            Accepted((), not_finite=True) if token == NOT_FINITE else Accepted((token,), gained.logprobs)
            for token, gained in zip(ids, accepted, strict=True)
        ]


class SteppedGeneration:
    """An open request. Closing it, at any time and any number of times, is also the way to abort it.

    ``close`` sends the terminal chunks that are still owed, lets go of the rows, and opens the latch last: nothing of
    the next request may start while anything of this one is left.
    """

    def __init__(
        self,
        guard: InProgressGuard,
        strategy: DecodingStrategy,
        context: GenerationContext,
        parallel_rank: int,
        on_close: Callable[[SteppedGeneration], None],
    ) -> None:
        self._guard = guard
        self.strategy = strategy
        self.context = context
        self.parallel_rank = parallel_rank
        self._on_close = on_close
        self._closed = False

    @property
    def closed(self) -> bool:
        """True once it was closed."""
        return self._closed

    def close(self, why: Refusal | None = None) -> None:
        """Let go of everything, in order; ``why`` goes to the sequences that had not ended."""
        if self._closed:
            return
        self._closed = True
        why = why or Refusal(RefusalCode.CANCELLED, "the request was dropped before it ended.")
        try:
            for sequence in self.context.sequences:
                sequence.fail(why)
                sequence.emit()
        finally:
            try:
                self._on_close(self)
            finally:
                self.context.sequences.clear()
                self.context.prefilling.clear()
                self._guard.release()

    def __enter__(self) -> SteppedGeneration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
