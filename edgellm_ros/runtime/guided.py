"""Guided decoding: at every step of a guided sequence, the tokens that its guide allows.

Grammars are compiled by llguidance over the exact bytes of the tokens, so what is allowed is judged by the text that
comes out. Control tokens never count as text. An end-of-sequence token is allowed only where the answer is complete.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends.base import Sampler
from ..errors import Refusal, RequestError
from .guide_grammar import (
    Guide,
    bad_guide,
    cannot_go_on,
    compiled,
    complaint,
    grammar_of,
    guidance_library,
    why_stopped,
)
from .reasoning import ReasoningRules, ReasoningState
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .sequence import Sequence

_KEPT_GRAMMARS = 32


class GuideCompiler:
    """Compiles guides for one engine; safe from any thread, the lock covers what was compiled.

    The table of tokens is made for the first guide: about 0.2 s for 50,000 tokens.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: Items[int], rules: ReasoningRules) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_ids = tuple(end_ids)
        self._rules = rules
        self._lock = threading.Lock()
        self._table: Any = None
        self._compiled: OrderedDict[Guide, Any] = OrderedDict()

    def check(self, guide: Guide) -> None:
        """:raises RequestError: the guide does not compile (``MissingPackageError``: there is no compiler)."""
        self._matcher(guide)

    def start(self, guide: Guide, prompt_ids: Items[int], enable_thinking: bool) -> SequenceGuide:
        """The guide of a new sequence.

        :raises RequestError: as ``check``.
        """
        return SequenceGuide(
            self._matcher(guide).deep_copy(),
            self._rules,
            self._end_ids,
            self._vocab_size,
            self._rules.at_start(prompt_ids),
            enable_thinking,
        )

    def _matcher(self, guide: Guide) -> Any:
        library = guidance_library()
        with self._lock:
            known = self._compiled.get(guide)
            if known is not None:
                self._compiled.move_to_end(guide)
                return known
            if self._table is None:
                self._table = self._token_table(library)
        # Without the lock: a guide that takes long keeps nobody else waiting, least of all the thread of the batch.
        matcher = compiled(guide, lambda: self._compile(library, guide))
        with self._lock:
            self._compiled[guide] = matcher
            if len(self._compiled) > _KEPT_GRAMMARS:
                self._compiled.popitem(last=False)
            return matcher

    def _compile(self, library: Any, guide: Guide) -> Any:
        matcher = library.LLMatcher(self._table, grammar_of(guide, self._control_id), log_level=0)
        if matcher.is_error():
            raise complaint(guide, matcher.get_error())
        trial = matcher.deep_copy()
        trial.compute_bitmask()
        if trial.is_error():
            raise bad_guide(f"the {guide.kind.value} guide is wrong: {why_stopped(trial.get_error())}; correct it.")
        return matcher

    def _control_id(self, text: str) -> int | None:
        token_id = self._tokenizer.token_id(text)
        return token_id if token_id is not None and self._tokenizer.is_control(token_id) else None

    def _token_table(self, library: Any) -> Any:
        ends = list(self._end_ids) or [self._vocab_size]  # an engine without an end id gets one that cannot be drawn
        count = max(self._vocab_size, ends[0] + 1)
        return library.LLTokenizer(library.TokenizerWrapper(_Tokens(self._tokenizer, count, ends[0])), eos_token=ends)


class _Tokens:
    """A tokenizer as llguidance asks for it.

    Where a guide leaves one continuation only, llguidance allows just the first token of that text as this encodes it.
    So the tokens must give exactly the text: an encoder that puts a space before it is not asked.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, count: int, end_id: int) -> None:
        self.eos_token_id = end_id
        self.tokens = [tokenizer.token_bytes(token_id, False) for token_id in range(count)]
        self.special_token_ids = [token_id for token_id in range(count) if tokenizer.is_control(token_id)]
        self._encode = tokenizer.encode
        special = {*self.special_token_ids, end_id}
        self._ids = {piece: token_id for token_id, piece in enumerate(self.tokens) if piece and token_id not in special}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode("utf-8") if isinstance(text, str) else text
        try:
            token_ids = self._encode(data.decode("utf-8"), allow_control=False)
        except UnicodeDecodeError:
            return self._longest_pieces(data)
        exact = b"".join(self.tokens[token_id] for token_id in token_ids) == data
        return token_ids if exact else self._longest_pieces(data)

    def _longest_pieces(self, data: bytes) -> list[int]:
        """The longest token that fits, again and again, up to bytes that no token has."""
        token_ids: list[int] = []
        start = 0
        while start < len(data):
            ends = range(min(len(data), start + self._longest), start, -1)
            end = next((end for end in ends if data[start:end] in self._ids), 0)
            if not end:
                break
            token_ids.append(self._ids[data[start:end]])
            start = end
        return token_ids


class SequenceGuide:
    """The guide of one live sequence; it belongs to the thread that drives the batch.

    While the model reasons everything but an end is allowed, and the guide begins with the first token after it.
    Where it is still open whether the model reasons, it may open its reasoning or begin with the answer.
    """

    def __init__(
        self,
        matcher: Any,
        rules: ReasoningRules,
        end_ids: Items[int],
        vocab_size: int,
        state: ReasoningState,
        enable_thinking: bool,
    ) -> None:
        self._matcher = matcher
        self._rules = rules
        self._end_ids = tuple(end_ids)
        self._vocab_size = vocab_size
        self._state = state
        if state is ReasoningState.UNDECIDED and not enable_thinking:
            self._state = ReasoningState.ANSWER
        self._stale = True  # the mask has changed since it was taken

    def take_mask(self) -> np.ndarray | None:
        """The bit mask of the next token, int32 [ceil(V/32)], or None where it is that of the last call.

        :raises RequestError: the grammar allows no token, or is too complex to go on with.
        """
        if not self._stale:
            return None
        self._stale = False
        words = (self._vocab_size + 31) // 32
        if self._state is ReasoningState.REASONING:
            mask = np.full(words, -1, dtype=np.int32)
            _set_bits(mask, self._end_ids, False)
            return mask
        mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)[:words].copy()
        if self._matcher.is_error():
            raise cannot_go_on(self._matcher.get_error())
        if self._state is ReasoningState.UNDECIDED:
            _set_bits(mask, sorted(self._rules.starts), True)
        if not mask.any():
            raise bad_guide("the guide allows no token that this model has; change the guide.")
        return mask

    def accept(self, token_id: int) -> bool:
        """Follow a token; False where the guide does not allow it (a mask was not obeyed)."""
        before, self._state = self._state, self._rules.follow(self._state, token_id)
        if self._state is ReasoningState.REASONING:
            self._stale = before is not ReasoningState.REASONING
            return True
        self._stale = True
        if before is ReasoningState.REASONING:
            return True
        return bool(self._matcher.consume_token(token_id))

    def refusal(self, token_id: int) -> Refusal:
        """Why a token was not accepted."""
        if self._matcher.is_error():
            error = self._matcher.get_error()
            if "satisfy the grammar" not in error:
                return cannot_go_on(error).refusal
        return bad_guide(f"token {token_id} is not one that the guide allows.").refusal

    @property
    def complete(self) -> bool:
        """True when nothing but an end may follow and the engine has no token for that."""
        return not self._end_ids and self._state is ReasoningState.ANSWER and bool(self._matcher.is_stopped())


def _set_bits(mask: np.ndarray, token_ids: Items[int], value: bool) -> None:
    words = mask.view(np.uint32)
    for token_id in token_ids:
        bit = np.uint32(1 << (token_id % 32))
        if value:
            words[token_id // 32] |= bit
        else:
            words[token_id // 32] &= ~bit


def apply_guides(sampler: Sampler, sequences: Iterable[Sequence], first_row: int = 0) -> None:
    """Before a step of ``sequences``, which sit in rows from ``first_row`` on: hand over the masks that changed.

    A sequence whose guide cannot go on ends in ERROR and keeps what it has; its row still takes part in the step.
    """
    for row, sequence in enumerate(sequences, first_row):
        if sequence.guide is None or sequence.finished:
            continue
        try:
            mask = sequence.guide.take_mask()
        except RequestError as error:
            sequence.fail(error.refusal)
            sequence.emit()
            continue
        if mask is not None:
            sampler.set_mask(row, mask)
