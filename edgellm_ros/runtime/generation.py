"""What a request owns between begin and finish, and the order in which it lets go of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from ..errors import BackendError, MisuseError, Refusal, RefusalCode
from .boundary import BatchResult
from .decoding.strategy import Accepted, DecodingStrategy
from .executor import NOT_FINITE
from .sequence import Sequence

LONGEST_STEP = 5.0  # s that closing waits for a step of another thread
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


def ends_the_program(error: BaseException) -> bool:
    """Whether what a callback raised was meant for the program: an interrupt or an exit, on its main thread."""
    return not isinstance(error, Exception) and threading.current_thread() is threading.main_thread()


class DrivingLock:
    """Held during every call that works on the batch. A second one meanwhile, from a callback or another thread, is
    misuse: it would find rows in the middle of a step.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise MisuseError("the runtime is in the middle of a step; call it between steps, from one thread.")
        self._owner = threading.get_ident()

    def __exit__(self, *exception: object) -> None:
        self._owner = 0
        self._lock.release()

    def settle(self, seconds: float) -> bool:
        """Wait until nobody is inside but perhaps this thread itself; False where that takes too long."""
        if self._owner == threading.get_ident():
            return True
        if not self._lock.acquire(timeout=seconds):
            return False
        self._lock.release()
        return True


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
    the next request may start while anything of this one is left. From another thread than the one that drives it, it
    waits for the end of the step.
    """

    def __init__(
        self,
        guard: InProgressGuard,
        strategy: DecodingStrategy,
        context: GenerationContext,
        parallel_rank: int,
        driving: DrivingLock,
        on_close: Callable[[SteppedGeneration], None],
    ) -> None:
        self._guard = guard
        self.driving = driving
        self.strategy = strategy
        self.context = context
        self.parallel_rank = parallel_rank
        self._on_close = on_close
        self._closed = False
        self._released = False

    @property
    def closed(self) -> bool:
        """True once it was closed."""
        return self._closed

    def close(self, why: Refusal | None = None) -> None:
        """Let go of everything, in order; ``why`` goes to the sequences that had not ended.

        Where a step of another thread does not end, its consumers are told all the same, and the rest stays taken until
        that thread closes it, too.
        """
        if self._released:
            return
        self._closed = True
        why = why or Refusal(RefusalCode.CANCELLED, "the request was dropped before it ended.")
        sequences = list(self.context.sequences)
        for sequence in sequences:
            sequence.fail(why)
        at_rest = self.driving.settle(LONGEST_STEP)
        try:
            for sequence in sequences if not at_rest else self.context.sequences:
                sequence.emit()
        finally:
            if at_rest:
                self._let_go()

    def _let_go(self) -> None:
        self._released = True
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
