"""What a fake engine says: a script that is found from the token history alone, so the same history always gives
the same answer, whatever the row, the batch or the way it was cut into chunks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from ..errors import EngineDirectoryError

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, START_OF_TURN, END_OF_TURN = 256, 257, 258
FIRST_PIECE = 259  # ids 0..255 are the bytes themselves

_LETTERS = b"aaeeeiiooutnnrrssldcmpbgfvhk" + b" " * 6
_SEEDED_LONGEST = 96


class FakeMode(str, Enum):
    """Where the answers come from."""

    SCRIPTED = "scripted"  # ``answers`` in turn: the n-th assistant turn of a conversation gives the n-th, cyclically
    ECHO = "echo"  # the user's last text, byte by byte
    SEEDED = "seeded"  # text from a hash of the history, with likely alternatives, for sampling


class Fault(str, Enum):
    """What goes wrong, when a row has ``fault_step`` tokens of its answer behind it."""

    NONE = "none"
    HANG = "hang"  # the run does not return until released, ``hang_timeout`` passed, or the engine closes
    NAN = "nan"  # the logits of that row are NaN
    OUT_OF_MEMORY = "out_of_memory"  # BackendError
    RAISE = "raise"  # BackendError
    CRASH = "crash"  # an exception that no backend should let out: RuntimeError


def _pieces(answer: object) -> tuple[bytes, ...]:
    """One bytes object per token: text and bytes are cut into single bytes, a sequence is taken as cut already."""
    if isinstance(answer, str):
        answer = answer.encode("utf-8")
    if isinstance(answer, bytes):
        return tuple(bytes([byte]) for byte in answer)
    if isinstance(answer, Sequence):
        pieces = tuple(piece.encode("utf-8") if isinstance(piece, str) else piece for piece in answer)
        if all(isinstance(piece, bytes) and piece for piece in pieces):
            return pieces
    raise EngineDirectoryError(f"a fake answer is {answer!r}; want text, bytes, or a list of non-empty pieces of them.")


@dataclass(frozen=True)
class FakeScript:
    """Answers, pace and faults of a fake engine.

    ``answers`` are texts, bytes or sequences of pieces (text or bytes, one token each, cut anywhere: inside a
    character too); they are kept as tuples of bytes. Every answer is followed by ``<|im_end|>``; whoever goes on
    past it hears the answer again. Seconds: ``step_latency`` for each run of one position per row,
    ``prefill_latency`` for each position of a longer one. ``fault_times`` 0 means every time. ``peak`` is how far
    the scripted token's logit stands above the others'; None: 30 (nothing else is ever drawn at temperature 1), or
    6 in seeded mode (about seven draws of ten take it).
    """

    answers: Sequence[object] = ("Hello from the fake engine.",)
    mode: FakeMode = FakeMode.SCRIPTED
    step_latency: float = 0.0
    prefill_latency: float = 0.0
    fault: Fault = Fault.NONE
    fault_step: int = 0
    fault_times: int = 1
    hang_timeout: float = 30.0
    peak: float | None = None

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "mode", FakeMode(self.mode))
            object.__setattr__(self, "fault", Fault(self.fault))
        except ValueError as error:
            raise EngineDirectoryError(f"fake script: {error}; want one of the documented names.") from None
        if isinstance(self.answers, (str, bytes)) or not self.answers:
            raise EngineDirectoryError(
                f"fake script: answers is {self.answers!r}; want a list with at least one answer."
            )
        object.__setattr__(self, "answers", tuple(_pieces(answer) for answer in self.answers))
        for name, kinds in (
            ("step_latency", (int, float)),
            ("prefill_latency", (int, float)),
            ("hang_timeout", (int, float)),
            ("fault_step", (int,)),
            ("fault_times", (int,)),
            ("peak", (int, float)),
        ):
            value = getattr(self, name)
            if name == "peak" and value is None:
                continue
            if not isinstance(value, kinds) or isinstance(value, bool) or not 0 <= value <= 1e6:
                raise EngineDirectoryError(f"fake script: {name} is {value!r}; want a number from 0 to 1000000.")

    def to_json(self) -> dict[str, Any]:
        """The content of ``fake.json``; pieces as hexadecimal."""
        return {
            "answers": [[piece.hex() for piece in answer] for answer in self.pieces],
            "mode": self.mode.value,
            "step_latency": self.step_latency,
            "prefill_latency": self.prefill_latency,
            "fault": self.fault.value,
            "fault_step": self.fault_step,
            "fault_times": self.fault_times,
            "hang_timeout": self.hang_timeout,
            "peak": self.peak,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> FakeScript:
        """:raises EngineDirectoryError: an unknown key or a value of the wrong kind."""
        values = dict(content)
        try:
            values["answers"] = [[bytes.fromhex(piece) for piece in answer] for answer in values["answers"]]
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, EngineDirectoryError):
                raise
            raise EngineDirectoryError(f"fake script: {error}; write the directory again.") from None

    @property
    def pieces(self) -> tuple[tuple[bytes, ...], ...]:
        """The answers, cut into tokens."""
        return self.answers  # type: ignore[return-value]  # what __post_init__ made of them


class FakeVocabulary:
    """256 bytes, the special tokens, then every piece of several bytes in the order of its first use."""

    def __init__(self, script: FakeScript) -> None:
        self._ids: dict[bytes, int] = {bytes([byte]): byte for byte in range(256)}
        self.pieces: list[bytes] = []
        for answer in script.pieces:
            for piece in answer:
                if piece not in self._ids:
                    self._ids[piece] = FIRST_PIECE + len(self.pieces)
                    self.pieces.append(piece)

    @property
    def size(self) -> int:
        """Number of ids."""
        return FIRST_PIECE + len(self.pieces)

    def id_of(self, piece: bytes) -> int:
        """The id of one piece."""
        return self._ids[piece]


class ScriptReader:
    """Finds the next token of a history."""

    _ANSWER_START = (START_OF_TURN, *b"assistant\n")
    _USER_START = (START_OF_TURN, *b"user\n")

    def __init__(self, script: FakeScript) -> None:
        self._mode = script.mode
        self.vocabulary = FakeVocabulary(script)
        self._answers = [[self.vocabulary.id_of(piece) for piece in answer] for answer in script.pieces]

    def next_token(self, history: Sequence[int]) -> tuple[int, int]:
        """(id, how many tokens of this answer the history holds already)."""
        history = list(history)
        starts = _find(history, self._ANSWER_START)
        if starts:
            answer_start = starts[-1] + len(self._ANSWER_START)
            done = len(history) - answer_start
            if self._mode is FakeMode.SEEDED:
                return self._seeded(history, done), done
            answer = self._answers[(len(starts) - 1) % len(self._answers)]
            if self._mode is FakeMode.ECHO:
                answer = self._user_text(history[: starts[-1]])
        else:
            # Ids without a chat template do not say where the answer begins: take the longest one that fits.
            if self._mode is FakeMode.SEEDED:
                return self._seeded(history, 0), 0
            if self._mode is FakeMode.ECHO:
                done = next(n for n in range(len(history) // 2, -1, -1) if history[:n] == history[len(history) - n :])
                answer = history[: len(history) - done]
            else:
                answer = self._answers[0]
                longest = min(len(answer), len(history))
                done = next(n for n in range(longest, -1, -1) if answer[:n] == history[len(history) - n :])
        place = done % (len(answer) + 1)
        return (answer[place] if place < len(answer) else END_OF_TURN), done

    def _user_text(self, history: list[int]) -> list[int]:
        starts = _find(history, self._USER_START)
        if not starts:
            return []
        text = history[starts[-1] + len(self._USER_START) :]
        return text[: text.index(END_OF_TURN)] if END_OF_TURN in text else text

    @staticmethod
    def _seeded(history: list[int], done: int) -> int:
        digest = history_digest(history)
        ends = digest[1] < 8 and done % (_SEEDED_LONGEST + 1) >= 4
        if ends or done % (_SEEDED_LONGEST + 1) == _SEEDED_LONGEST:
            return END_OF_TURN
        return _LETTERS[digest[0] % len(_LETTERS)]


def history_digest(history: Sequence[int]) -> bytes:
    """16 bytes that stand for a history."""
    return hashlib.blake2b(np.asarray(history, dtype="<i4").tobytes(), digest_size=16).digest()


def _find(history: list[int], pattern: tuple[int, ...]) -> list[int]:
    """Every place where ``pattern`` begins."""
    found: list[int] = []
    start = 0
    while True:
        try:
            start = history.index(pattern[0], start)
        except ValueError:
            return found
        if tuple(history[start : start + len(pattern)]) == pattern:
            found.append(start)
        start += 1
