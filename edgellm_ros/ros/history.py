"""What was said before: the last prompts with their answers, given to the model as context."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..runtime.request import Message

if TYPE_CHECKING:
    import numpy as np

MAX_KEPT_TURNS = 64


@dataclass(frozen=True)
class Turn:
    """A prompt and the answer it got."""

    prompt: str
    answer: str


class ConversationHistory:
    """The latest turns, oldest first.

    Any thread may call it; the lock covers the turns and the epoch. A request remembers the ``epoch`` it started in,
    so that an answer which ends after ``clear`` is not remembered.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: deque[Turn] = deque(maxlen=MAX_KEPT_TURNS)
        self._epoch = 0

    def snapshot(self, turns: int) -> tuple[int, tuple[Turn, ...]]:
        """The epoch and the last ``turns`` turns."""
        with self._lock:
            return self._epoch, tuple(self._turns)[max(0, len(self._turns) - turns) :]

    def append(self, epoch: int, turn: Turn) -> bool:
        """Remember a turn of that epoch; False when the history was cleared since."""
        with self._lock:
            if epoch != self._epoch:
                return False
            self._turns.append(turn)
            return True

    def clear(self) -> int:
        """Forget everything and start a new epoch; returns how many turns were forgotten."""
        with self._lock:
            forgotten = len(self._turns)
            self._turns.clear()
            self._epoch += 1
            return forgotten

    def __len__(self) -> int:
        with self._lock:
            return len(self._turns)


def conversation(
    system_prompt: str, turns: tuple[Turn, ...], prompt: str, images: Sequence[np.ndarray] = ()
) -> tuple[Message, ...]:
    """The messages of a request: system prompt where there is one, earlier turns, then images and the prompt.

    :raises RequestError: a text is longer than a message may be.
    """
    messages = [Message("system", system_prompt)] if system_prompt else []
    for turn in turns:
        messages += [Message("user", turn.prompt), Message("assistant", turn.answer)]
    return (*messages, Message.of("user", *images, prompt) if images else Message("user", prompt))
