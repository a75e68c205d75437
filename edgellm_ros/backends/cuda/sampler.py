"""Sampling on the GPU: parameters, penalties' counts, biases and masks stay there from draw to draw.

``sample`` enqueues three kernels and nothing else, so it may stand in a recorded step: which penalties a row has is
state on the device too, and a replay follows it. What the kernels compute is defined in ``sampling_math``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from ...errors import BackendError, MisuseError
from ..base import SamplingRow, Tensor
from .device import Device
from .graphs import Recorder
from .kernels import Kernels
from .tensor import CUDAMemory, cuda_tensor

MOST_ROWS = 64  # of one call; the kernels take the row numbers by value
MOST_LOGPROBS = 50
LARGEST_VOCABULARY = 1 << 19  # sums of more weights could overflow the kernels' whole numbers
_CHUNK = 1024  # logits a block of the first kernel
_THREADS = 256
_DRAW_THREADS = 1024
_BINS = 4096  # also logits a block of the other two kernels, and candidates of a list
_PICK_BYTES = 3 * 128 * 32 * 4
_EXCHANGE_BYTES = _BINS * (8 + 4) + 8 + 2 * 4
_STATE = struct.Struct("=d5fiI2Iii4x")
_PENALISED, _BIASED, _MASKED, _GREEDY, _COUNTED = 1, 2, 4, 8, 16
_LOW = 0xFFFFFFFF


class _HostRow:
    """What the host remembers of a row: enough to know which device memory is in use."""

    __slots__ = ("flags", "num_logprobs")

    def __init__(self, flags: int, num_logprobs: int) -> None:
        self.flags = flags
        self.num_logprobs = num_logprobs


class CUDASampler:
    """A ``Sampler`` for up to ``rows`` sequences.

    :raises BackendError: more rows or a larger vocabulary than the kernels serve, or out of memory.
    """

    def __init__(self, device: Device, kernels: Kernels, recorder: Recorder, rows: int, vocab_size: int) -> None:
        if rows > MOST_ROWS or not 0 < vocab_size <= LARGEST_VOCABULARY:
            raise BackendError(
                f"a GPU sampler of {rows} rows and {vocab_size} ids was asked; want at most {MOST_ROWS} rows and "
                f"{LARGEST_VOCABULARY} ids."
            )
        self._device, self._kernels, self._recorder = device, kernels, recorder
        self._vocab_size = vocab_size
        self._words = (vocab_size + 31) // 32
        self._blocks = -(-vocab_size // _CHUNK)
        self._rows: list[_HostRow | None] = [None] * rows
        self._states = CUDAMemory(device, rows * _STATE.size)
        self._counts = CUDAMemory(device, rows * vocab_size * 4)
        self._bias = CUDAMemory(device, rows * vocab_size * 4)
        self._mask = CUDAMemory(device, rows * self._words * 4)
        self._best = CUDAMemory(device, rows * self._blocks * 8)
        self._broken = CUDAMemory(device, rows * self._blocks * 4)
        self._exchange = CUDAMemory(device, rows * _EXCHANGE_BYTES)
        self._list = CUDAMemory(device, rows * _BINS * 8)
        self._ranked_ids = CUDAMemory(device, rows * (MOST_LOGPROBS + 1) * 4)
        self._ranked_logs = CUDAMemory(device, rows * (MOST_LOGPROBS + 1) * 4)
        self._scratch = CUDAMemory(device, 16)
        self._tables = struct.pack(
            "=4Q2i", self._states.address, self._counts.address, self._bias.address, self._mask.address,
            vocab_size, self._words,
        )  # fmt: skip
        self._places = struct.pack(
            "=4Q", self._best.address, self._broken.address, self._exchange.address, self._list.address
        )
        self._asked: list[int] = []
        kernels["pick"].allow_shared(_PICK_BYTES)

    def _row(self, row: int) -> _HostRow:
        if not 0 <= row < len(self._rows):
            raise MisuseError(f"sampler row {row} was asked; want one of 0..{len(self._rows) - 1}.")
        state = self._rows[row]
        if state is None:
            raise MisuseError(f"sampler row {row} holds no sequence; call set_row first.")
        return state

    def set_row(self, row: int, parameters: SamplingRow, prompt_ids: Sequence[int], position: int) -> None:
        """Start a sequence in ``row``; its first draw is at ``position``. Forgets a mask.

        :raises ValueError: ``logit_bias`` names an id outside the vocabulary, or more log probabilities are asked
            than are kept.
        :raises MisuseError: no such row.
        """
        if not 0 <= row < len(self._rows):
            raise MisuseError(f"sampler row {row} was asked; want one of 0..{len(self._rows) - 1}.")
        bias = parameters.logit_bias
        if bias and not (min(bias) >= 0 and max(bias) < self._vocab_size):
            raise ValueError(f"logit_bias names an id outside 0..{self._vocab_size - 1}; want ids of the vocabulary.")
        if parameters.num_logprobs > MOST_LOGPROBS:
            raise ValueError(f"num_logprobs is {parameters.num_logprobs}; want at most {MOST_LOGPROBS}.")
        penalised = bool(
            parameters.repetition_penalty != 1.0 or parameters.presence_penalty or parameters.frequency_penalty
        )
        flags = _BIASED if bias else 0
        if penalised:
            flags |= _PENALISED | _COUNTED
            self._mark_prompt(row, prompt_ids if parameters.repetition_penalty != 1.0 else ())
        if parameters.temperature == 0 or parameters.top_k == 1:
            flags |= _GREEDY
        if bias:
            self._set_bias(row, bias)
        state = _STATE.pack(
            parameters.top_p, parameters.temperature, parameters.min_p, parameters.repetition_penalty,
            parameters.presence_penalty, parameters.frequency_penalty, min(parameters.top_k, self._vocab_size), flags,
            parameters.seed & _LOW, parameters.seed >> 32 & _LOW, parameters.num_logprobs, position,
        )  # fmt: skip
        self._device.write(self._states.address + row * _STATE.size, np.frombuffer(state, dtype=np.uint8))
        self._rows[row] = _HostRow(flags, parameters.num_logprobs)

    def _mark_prompt(self, row: int, prompt_ids: Sequence[int]) -> None:
        place = self._counts.address + row * self._vocab_size * 4
        self._device.clear(place, self._vocab_size * 4)
        ids = np.unique(np.asarray(prompt_ids, dtype=np.int64))
        ids = ids[(ids >= 0) & (ids < self._vocab_size)].astype(np.int32)  # placeholders of images lie outside
        if ids.size:
            self._reserve(ids.nbytes)
            self._device.write(self._scratch.address, ids)
            grid = (-(-ids.size // _THREADS), 1, 1)
            self._kernels["mark_prompt"].launch(
                grid, _THREADS, place, self._scratch.address, ids.size, self._vocab_size
            )

    def _set_bias(self, row: int, bias: Mapping[int, float]) -> None:
        place = self._bias.address + row * self._vocab_size * 4
        self._device.clear(place, self._vocab_size * 4)
        ids = np.fromiter(bias.keys(), dtype=np.int32, count=len(bias))
        values = np.fromiter(bias.values(), dtype=np.float32, count=len(bias))
        self._reserve(2 * ids.nbytes)
        self._device.write(self._scratch.address, ids)
        self._device.write(self._scratch.address + ids.nbytes, values)
        grid = (-(-ids.size // _THREADS), 1, 1)
        self._kernels["set_bias"].launch(
            grid, _THREADS, place, self._scratch.address, self._scratch.address + ids.nbytes, ids.size
        )

    def _reserve(self, size: int) -> None:
        if self._scratch.size < size:
            self._scratch = CUDAMemory(self._device, size, zero=False)

    def move_row(self, source: int, destination: int) -> None:
        """Give ``destination`` the whole state of ``source``, which then holds no sequence."""
        state = self._row(source)
        if source == destination:
            return
        if not 0 <= destination < len(self._rows):
            raise MisuseError(f"sampler row {destination} was asked; want one of 0..{len(self._rows) - 1}.")
        for memory, size, used in (
            (self._states, _STATE.size, True),
            (self._counts, self._vocab_size * 4, state.flags & _COUNTED),
            (self._bias, self._vocab_size * 4, state.flags & _BIASED),
            (self._mask, self._words * 4, state.flags & _MASKED),
        ):
            if used:
                self._device.copy(memory.address + source * size, memory.address + destination * size, size)
        self._rows[destination], self._rows[source] = state, None

    def set_mask(self, row: int, allowed: np.ndarray | None) -> None:
        """Restrict the draws of ``row`` to a bit mask, int32 [ceil(V/32)], until another one or None is given.

        :raises ValueError: another shape or element type.
        """
        state = self._row(row)
        if allowed is not None:
            if allowed.shape != (self._words,) or allowed.dtype != np.int32:
                raise ValueError(f"a mask is {allowed.dtype} {allowed.shape}; want int32 ({self._words},).")
            self._device.write(self._mask.address + row * self._words * 4, allowed)
        flags = state.flags & ~_MASKED if allowed is None else state.flags | _MASKED
        if flags != state.flags:
            state.flags = flags
            place = self._states.address + row * _STATE.size + struct.calcsize("=d5fi")
            self._device.write(place, np.array([flags], dtype=np.uint32))

    def sample(self, logits: Tensor, rows: Sequence[int], token_ids: Tensor) -> None:
        """Pick one token for each of ``rows``: logits float32 [N,V] in their order, token_ids int32 [N].

        Counts the token and advances the row's position. A row of logits that is not finite, or whose mask allows
        nothing, gives id -1 and counts nothing. Logits may be changed in place.

        :raises ValueError: the shapes do not fit ``rows``.
        """
        values, ids = cuda_tensor(logits, self._device), cuda_tensor(token_ids, self._device)
        count = len(rows)
        if values.shape != (count, self._vocab_size) or ids.shape != (count,):
            raise ValueError(
                f"logits {values.shape} and token ids {ids.shape} were given for {count} rows; "
                f"want ({count}, {self._vocab_size}) and ({count},)."
            )
        for row in rows:
            self._row(row)
        numbers = bytes(rows).ljust(MOST_ROWS, b"\0")
        common = (values.address, self._tables, numbers, self._places)
        self._kernels["adjust_logits"].launch((self._blocks, count, 1), _THREADS, *common, _CHUNK)
        grid = (-(-self._vocab_size // _BINS), count, 1)
        self._kernels["weigh"].launch(grid, _DRAW_THREADS, *common, self._blocks)
        self._kernels["pick"].launch(
            grid, _DRAW_THREADS, *common, self._blocks, ids.address, self._ranked_ids.address,
            self._ranked_logs.address, MOST_LOGPROBS, shared_bytes=_PICK_BYTES,
        )  # fmt: skip
        drawn = tuple(rows)
        self._remember(drawn)
        self._recorder.after_replay(lambda: self._remember(drawn))

    def _remember(self, rows: tuple[int, ...]) -> None:
        """How many log probabilities each row of the last call asked for."""
        states = [self._rows[row] for row in rows]
        self._asked = [0 if state is None else state.num_logprobs for state in states]

    def logprobs(self, index: int, count: int) -> list[tuple[int, float]]:
        """The last draw's chosen token first, then its ``count`` most likely, as (id, natural log) pairs.

        Tokens that a mask forbids are left out. Empty where the draw gave id -1.

        :raises MisuseError: no such draw, its row asked for none, or for fewer.
        """
        if not 0 <= index < len(self._asked):
            raise MisuseError(f"log probabilities of draw {index} were asked; the last call had {len(self._asked)}.")
        asked = self._asked[index]
        if asked == 0 or count > asked:
            raise MisuseError(f"{count} log probabilities of a draw were asked; its row's num_logprobs is {asked}.")
        wanted, offset = 1 + count, index * (MOST_LOGPROBS + 1) * 4
        ids = self._device.read(self._ranked_ids.address + offset, (wanted,), np.dtype(np.int32)).wait()
        logs = self._device.read(self._ranked_logs.address + offset, (wanted,), np.dtype(np.float32)).wait()
        pairs = [(int(number), float(log)) for number, log in zip(ids, logs, strict=True) if number >= 0]
        return pairs if ids[0] >= 0 else []
