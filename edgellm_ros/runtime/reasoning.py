"""Reasoning before an answer: where it begins and ends, told by the tokens alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from .tokenizer import Tokenizer

MARKERS = (
    ("<think>", "</think>"),  # Qwen3, SmolLM3, DeepSeek-R1 and most others
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
)


class ReasoningState(Enum):
    """What the next token of a sequence belongs to."""

    UNDECIDED = "undecided"  # the first token tells
    REASONING = "reasoning"
    ANSWER = "answer"


class ReasoningRules:
    """The marker tokens of one tokenizer; ``turn_ends`` are the ids that end a turn (those of end-of-sequence)."""

    def __init__(self, tokenizer: Tokenizer, turn_ends: Iterable[int] = ()) -> None:
        known = [(tokenizer.token_id(start), tokenizer.token_id(end)) for start, end in MARKERS]
        pairs = [(start, end) for start, end in known if start is not None and end is not None]
        self.starts = frozenset(start for start, _ in pairs)
        self.ends = frozenset(end for _, end in pairs)
        self._turn_ends = frozenset(turn_ends)

    def at_start(self, prompt_ids: Sequence[int]) -> ReasoningState:
        """The state after a prompt: that of the last marker in its last turn, UNDECIDED where there is none."""
        if not self.starts:
            return ReasoningState.ANSWER
        for token_id in reversed(prompt_ids):
            if token_id in self.ends:
                return ReasoningState.ANSWER
            if token_id in self.starts:
                return ReasoningState.REASONING
            if token_id in self._turn_ends:
                break
        return ReasoningState.UNDECIDED

    def follow(self, state: ReasoningState, token_id: int) -> ReasoningState:
        """The state after one generated token. A model whose first token opens no reasoning has skipped it."""
        if state is ReasoningState.UNDECIDED:
            return ReasoningState.REASONING if token_id in self.starts else ReasoningState.ANSWER
        if state is ReasoningState.REASONING and token_id in self.ends:
            return ReasoningState.ANSWER
        return state
