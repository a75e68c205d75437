"""One token per step and row."""

from __future__ import annotations

from collections.abc import Sequence as Items

from ..executor import NOT_FINITE, ModelExecutor
from ..guided import apply_guides
from ..request import TokenLogprob
from ..sequence import Sequence
from ..tokenizer import Tokenizer
from .strategy import Accepted


class VanillaDecoding:
    """The model alone."""

    name = "vanilla"
    base_headroom = 1
    max_accepted_tokens = 1
    supports_live_admission = True

    def __init__(self, executor: ModelExecutor, tokenizer: Tokenizer) -> None:
        self._executor = executor
        self._tokenizer = tokenizer

    def prefill_chunk(self, sequence: Sequence, row: int, *, joining: bool = False) -> Accepted | None:
        """See ``DecodingStrategy``."""
        apply_guides(self._executor.sampler, (sequence,), row)
        done, token_id = self._executor.prefill(row, sequence.token_ids, sequence.committed_length, joining=joining)
        sequence.committed_length = done
        return None if token_id is None else self._accepted(sequence, token_id, 0)

    def decode_step(self, sequences: Items[Sequence]) -> list[Accepted]:
        """See ``DecodingStrategy``."""
        apply_guides(self._executor.sampler, sequences)
        return self._advance(sequences, self._executor.decode(*_last_tokens(sequences)))

    def mixes(self, decoding: Items[Sequence], joiner: Sequence) -> bool:
        """See ``DecodingStrategy``."""
        return self._executor.mixes(len(decoding), joiner.token_ids, joiner.committed_length)

    def mixed_step(self, decoding: Items[Sequence], joiner: Sequence) -> tuple[list[Accepted], Accepted | None]:
        """See ``DecodingStrategy``."""
        apply_guides(self._executor.sampler, (*decoding, joiner))
        token_ids, done, first = self._executor.decode_and_prefill(
            *_last_tokens(decoding), joiner.token_ids, joiner.committed_length
        )
        accepted = self._advance(decoding, token_ids)
        joiner.committed_length = done
        return accepted, None if first is None else self._accepted(joiner, first, len(decoding))

    def _advance(self, sequences: Items[Sequence], token_ids: list[int]) -> list[Accepted]:
        accepted = []
        for index, (sequence, token_id) in enumerate(zip(sequences, token_ids, strict=True)):
            sequence.committed_length += 1
            accepted.append(self._accepted(sequence, token_id, index))
        return accepted

    def _accepted(self, sequence: Sequence, token_id: int, index: int) -> Accepted:
        if token_id == NOT_FINITE:
            return Accepted((), not_finite=True)
        count = sequence.seed.num_logprobs
        if not count:
            return Accepted((token_id,))
        token_bytes = self._tokenizer.token_bytes
        candidates = tuple(
            TokenLogprob(candidate, logprob, token_bytes(candidate, False))
            for candidate, logprob in self._executor.logprobs(index, count)
        )
        return Accepted((token_id,), (candidates,))


def _last_tokens(sequences: Items[Sequence]) -> tuple[list[int], list[int]]:
    """The tokens that the cache does not hold yet, and the lengths that it holds."""
    return [sequence.token_ids[-1] for sequence in sequences], [sequence.committed_length for sequence in sequences]
