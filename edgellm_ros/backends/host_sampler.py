"""Sampling on the CPU: per-row state around the numbers of ``sampling_math``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import MisuseError
from . import sampling_math
from .base import SamplingRow, Tensor
from .host_tensor import host_array

_Ranked = tuple[int, list[tuple[int, float]]]  # num_logprobs of the row, then what ``logprobs`` gives


class _RowState:
    """What one sequence carries from draw to draw."""

    __slots__ = ("bias_ids", "bias_values", "generated", "greedy", "mask", "parameters", "plain", "position", "seen")

    def __init__(self, parameters: SamplingRow, prompt_ids: Sequence[int], position: int, vocab_size: int) -> None:
        self.parameters = parameters
        self.position = position
        self.greedy = parameters.temperature == 0 or parameters.top_k == 1
        self.generated: dict[int, int] = {}
        self.mask: np.ndarray | None = None
        self.seen = np.empty(0, dtype=np.int64)
        if parameters.repetition_penalty != 1.0:
            ids = np.unique(np.asarray(prompt_ids, dtype=np.int64))
            self.seen = ids[(ids >= 0) & (ids < vocab_size)]  # placeholders of images lie outside
        self.bias_ids = np.fromiter(parameters.logit_bias.keys(), dtype=np.int64, count=len(parameters.logit_bias))
        self.bias_values = np.fromiter(
            parameters.logit_bias.values(), dtype=np.float32, count=len(parameters.logit_bias)
        )
        if self.bias_ids.size and not (self.bias_ids.min() >= 0 and self.bias_ids.max() < vocab_size):
            raise ValueError(f"logit_bias names an id outside 0..{vocab_size - 1}; want ids of the vocabulary.")
        self.plain = not (
            parameters.repetition_penalty != 1.0
            or parameters.presence_penalty
            or parameters.frequency_penalty
            or self.bias_ids.size
            or parameters.num_logprobs
        )

    def count(self, token_id: int) -> None:
        """Record a token that was drawn."""
        if self.plain:
            return
        times = self.generated.get(token_id, 0)
        self.generated[token_id] = times + 1
        if times == 0 and self.parameters.repetition_penalty != 1.0 and token_id not in self.seen:
            self.seen = np.append(self.seen, token_id)


class HostSampler:
    """A ``Sampler`` for up to ``rows`` sequences; owned by the thread that owns its backend."""

    def __init__(self, rows: int, vocab_size: int) -> None:
        self._states: list[_RowState | None] = [None] * rows
        self._vocab_size = vocab_size
        self._logprobs: list[_Ranked] = []  # of the last call, in its order

    def _check_row(self, row: int) -> None:
        if not 0 <= row < len(self._states):
            raise MisuseError(f"sampler row {row} was asked; want one of 0..{len(self._states) - 1}.")

    def _state(self, row: int) -> _RowState:
        self._check_row(row)
        state = self._states[row]
        if state is None:
            raise MisuseError(f"sampler row {row} holds no sequence; call set_row first.")
        return state

    def set_row(self, row: int, parameters: SamplingRow, prompt_ids: Sequence[int], position: int) -> None:
        """Start a sequence in ``row``; its first draw is at ``position``. Forgets a mask.

        :raises ValueError: ``logit_bias`` names an id outside the vocabulary.
        :raises MisuseError: no such row.
        """
        self._check_row(row)
        self._states[row] = _RowState(parameters, prompt_ids, position, self._vocab_size)

    def move_row(self, source: int, destination: int) -> None:
        """Give ``destination`` the whole state of ``source``, which then holds no sequence."""
        state = self._state(source)
        self._check_row(destination)
        if source != destination:
            self._states[destination] = state
            self._states[source] = None

    def set_mask(self, row: int, allowed: np.ndarray | None) -> None:
        """Restrict the draws of ``row`` to a bit mask, int32 [ceil(V/32)], until another one or None is given.

        :raises ValueError: another shape or element type.
        """
        state = self._state(row)
        if allowed is None:
            state.mask = None
            return
        words = (self._vocab_size + 31) // 32
        if allowed.shape != (words,) or allowed.dtype != np.int32:
            raise ValueError(f"a mask is {allowed.dtype} {allowed.shape}; want int32 ({words},).")
        state.mask = sampling_math.mask_bits(allowed, self._vocab_size)

    def sample(self, logits: Tensor, rows: Sequence[int], token_ids: Tensor) -> None:
        """Pick one token for each of ``rows``: logits float32 [N,V] in their order, token_ids int32 [N].

        Counts the token and advances the row's position. A row of logits that is not finite, or whose mask allows
        nothing, gives id -1 and counts nothing. Logits may be changed in place.

        :raises ValueError: the shapes do not fit ``rows``.
        """
        values, ids = host_array(logits), host_array(token_ids)
        if values.shape != (len(rows), self._vocab_size) or ids.shape != (len(rows),):
            raise ValueError(
                f"logits {values.shape} and token ids {ids.shape} were given for {len(rows)} rows; "
                f"want ({len(rows)}, {self._vocab_size}) and ({len(rows)},)."
            )
        states = [self._state(row) for row in rows]
        self._logprobs = []
        for index, state in enumerate(states):
            token_id = self._pick(values[index], state)
            ids[index] = token_id
            asked = state.parameters.num_logprobs
            pairs = self._rank(values[index], token_id, asked) if asked and token_id >= 0 else []
            self._logprobs.append((asked, pairs))
            if token_id >= 0:
                state.count(token_id)
                state.position += 1

    def _pick(self, logits: np.ndarray, state: _RowState) -> int:
        """The next id of one row; leaves its adjusted logits behind."""
        best = int(logits.argmax())
        if not (np.isfinite(logits[best]) and np.isfinite(logits[logits.argmin()])):
            return -1
        parameters = state.parameters
        if not state.plain:
            sampling_math.penalise(
                logits,
                state.seen,
                state.generated,
                parameters.repetition_penalty,
                parameters.presence_penalty,
                parameters.frequency_penalty,
            )
            if state.bias_ids.size:
                logits[state.bias_ids] += state.bias_values
        if state.mask is not None:
            np.copyto(logits, -np.inf, where=~state.mask)
        if not state.plain or state.mask is not None:
            best = int(logits.argmax())
            if not np.isfinite(logits[best]):
                return -1
        if state.greedy:
            return best
        number = sampling_math.uniform(parameters.seed, state.position)
        return sampling_math.draw(
            logits, number, parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p
        )

    @staticmethod
    def _rank(logits: np.ndarray, token_id: int, count: int) -> list[tuple[int, float]]:
        normaliser = sampling_math.log_normaliser(logits)
        ids = [token_id, *sampling_math.top_ids(logits, count).tolist()]
        return [(number, float(logits[number]) - normaliser) for number in ids if np.isfinite(logits[number])]

    def logprobs(self, index: int, count: int) -> list[tuple[int, float]]:
        """The last draw's chosen token first, then its ``count`` most likely, as (id, natural log) pairs.

        Tokens that a mask forbids are left out. Empty where the draw gave id -1.

        :raises MisuseError: no such draw, its row asked for none, or for fewer.
        """
        if not 0 <= index < len(self._logprobs):
            raise MisuseError(f"log probabilities of draw {index} were asked; the last call had {len(self._logprobs)}.")
        asked, pairs = self._logprobs[index]
        if asked == 0 or count > asked:
            raise MisuseError(f"{count} log probabilities of a draw were asked; its row's num_logprobs is {asked}.")
        return pairs[: count + 1]
