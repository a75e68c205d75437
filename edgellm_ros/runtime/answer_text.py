"""The tokens of one sequence as its reader sees them: reasoning, answer and tool calls, apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .reasoning import ReasoningRules, ReasoningState
from .request import AnswerPart, ToolCall
from .streaming import TextStream
from .tokenizer import Tokenizer
from .tool_calls import FORMATS, ToolCallParser


@dataclass(frozen=True)
class AnswerRules:
    """How the tokens of one sequence are to be read; ``state`` is the one after its prompt."""

    reasoning: ReasoningRules
    state: ReasoningState
    tool_format: str = ""  # a name in ``FORMATS``; empty: its text holds no calls
    guided: bool = False


@dataclass(frozen=True)
class Piece:
    """A piece of text, or one call, and where it belongs."""

    part: AnswerPart
    text: str = ""
    tool_call: ToolCall | None = None


class AnswerReader:
    """Reads tokens one by one. Markers of reasoning are in neither text, nor are blanks on either side of them.

    Stop strings end the answer, never the reasoning before it. Special tokens are left out of the text where that is
    asked for, but for those that mark tool calls.
    """

    def __init__(
        self, rules: AnswerRules, tokenizer: Tokenizer, skip_special_tokens: bool, stop_strings: Sequence[str] = ()
    ) -> None:
        self._rules = rules
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._stops = tuple(stop_strings)
        self._state = rules.state
        self._part = AnswerPart.REASONING if rules.state is ReasoningState.REASONING else AnswerPart.ANSWER
        form = FORMATS.get(rules.tool_format)
        self._calls = ToolCallParser(form) if form is not None else None
        self._visible = {tokenizer.token_id(form.opening), tokenizer.token_id(form.closing)} if form else set()
        stops = self._stops if self._part is AnswerPart.ANSWER else ()
        # A text that a guide shapes keeps its first space: the guide asked for it.
        self._stream = TextStream(stops, tokenizer.strips_leading_space and not rules.guided)
        self._leading = self._part is AnswerPart.REASONING  # blanks that come next belong to a marker
        self._blanks = ""  # at the end of the reasoning so far

    @property
    def stopped(self) -> bool:
        """True once a stop string ended the answer."""
        return self._part is AnswerPart.ANSWER and self._stream.stopped

    def feed(self, token_id: int) -> list[Piece]:
        """What is certain now that this token has come."""
        before, self._state = self._state, self._rules.reasoning.follow(self._state, token_id)
        if self._state is ReasoningState.REASONING and before is not ReasoningState.REASONING:
            return self._turn(AnswerPart.REASONING)
        if before is ReasoningState.REASONING and self._state is ReasoningState.ANSWER:
            return self._turn(AnswerPart.ANSWER)
        skip = self._skip and token_id not in self._visible
        return self._pieces(self._stream.feed(self._tokenizer.token_bytes(token_id, skip)))

    def finish(self) -> list[Piece]:
        """The rest."""
        pieces = self._pieces(self._stream.finish())
        if self._part is AnswerPart.ANSWER and self._calls is not None:
            pieces += _of_answer(self._calls.finish())
        return pieces

    def _turn(self, part: AnswerPart) -> list[Piece]:
        pieces = self._pieces(self._stream.finish())
        self._part = part
        self._blanks = ""
        self._leading = part is AnswerPart.REASONING or not self._rules.guided
        self._stream = TextStream(self._stops if part is AnswerPart.ANSWER else ())
        return pieces

    def _pieces(self, text: str) -> list[Piece]:
        if self._leading:
            text = text.lstrip()
            self._leading = not text
        if not text:
            return []
        if self._part is AnswerPart.REASONING:
            text = self._blanks + text
            kept = text.rstrip()
            self._blanks = text[len(kept) :]
            return [Piece(AnswerPart.REASONING, kept)] if kept else []
        if self._calls is not None:
            return _of_answer(self._calls.feed(text))
        return [Piece(AnswerPart.ANSWER, text)]


def _of_answer(found: list[str | ToolCall]) -> list[Piece]:
    return [
        Piece(AnswerPart.ANSWER, entry) if isinstance(entry, str) else Piece(AnswerPart.TOOL_CALL, "", entry)
        for entry in found
    ]


def split_pieces(pieces: Sequence[Piece]) -> tuple[str, str, tuple[ToolCall, ...]]:
    """Answer, reasoning and calls of a whole sequence."""
    answer = "".join(piece.text for piece in pieces if piece.part is AnswerPart.ANSWER)
    reasoning = "".join(piece.text for piece in pieces if piece.part is AnswerPart.REASONING)
    return answer, reasoning, tuple(piece.tool_call for piece in pieces if piece.tool_call is not None)
