"""Starting noise of an action chunk: which seed a request uses, and the numbers that a seed stands for.

Two streams. ``LIBSTDCXX`` is what ``std::mt19937(seed)`` and ``std::normal_distribution<float>`` of GNU's C++ library
give, the stream of the official runtime, to the last bit of a logarithm (1.2e-7 at most). ``COUNTER`` draws every
number on its own from Philox4x32-10, so that a device computes any of them without the others.
"""

from __future__ import annotations

import hashlib
import secrets
from enum import Enum
from typing import Any

import numpy as np

from ..backends.sampling_math import PURPOSE_NOISE, philox4x32
from ..errors import RefusalCode, RequestError
from ..json_values import shown

DEFAULT_NOISE_SEED = 5
SMALLEST_SEED, LARGEST_SEED = -(1 << 31), (1 << 31) - 1
_WORD = 0xFFFFFFFF


class NoiseStream(str, Enum):
    """How a seed becomes numbers."""

    LIBSTDCXX = "libstdcxx"
    COUNTER = "counter"


class NoiseMode(str, Enum):
    """Which seed each request uses."""

    FIXED = "fixed"  # the base seed, every time
    SEQUENCE = "sequence"  # the base seed plus the number of requests since the last reset
    STAMP = "stamp"  # the base seed mixed with the observation's stamp: a dropped frame shifts nothing
    RANDOM = "random"  # drawn from the system's generator, and reported


def check_noise_seed(seed: object) -> int:
    """``seed`` if it is an int32; -1 is a seed like any other.

    :raises RequestError: it is not; nothing is wrapped around.
    """
    if isinstance(seed, int) and not isinstance(seed, bool) and SMALLEST_SEED <= seed <= LARGEST_SEED:
        return seed
    raise RequestError(
        f"the noise seed is {shown(seed)}; want a whole number from {SMALLEST_SEED} to {LARGEST_SEED}.",
        RefusalCode.BAD_PARAMETER,
    )


class NoiseSeeds:
    """Hands each request its seed. Owned by the thread that starts requests."""

    def __init__(self, base: int = DEFAULT_NOISE_SEED, mode: NoiseMode = NoiseMode.FIXED) -> None:
        self.base = check_noise_seed(base)
        self.mode = mode
        self._count = 0

    def next(self, stamp_nanoseconds: int = 0) -> int:
        """The int32 seed of a request whose observation has this stamp."""
        if self.mode is NoiseMode.RANDOM:
            return _as_int32(secrets.randbits(32))
        if self.mode is NoiseMode.STAMP:
            stamp = stamp_nanoseconds & (1 << 64) - 1
            return _as_int32(philox4x32((stamp & _WORD, stamp >> 32, PURPOSE_NOISE, 1), (self.base & _WORD, 0))[0])
        if self.mode is NoiseMode.SEQUENCE:
            seed = _as_int32(self.base + self._count)
            self._count += 1
            return seed
        return self.base

    def reset(self) -> None:
        """Start counting again."""
        self._count = 0


def standard_normal(seed: int, shape: tuple[int, ...], stream: NoiseStream = NoiseStream.LIBSTDCXX) -> np.ndarray:
    """float32 array of ``shape``, mean 0 and variance 1, filled in row-major order.

    :raises RequestError: the seed is no int32.
    """
    count = int(np.prod(shape, dtype=np.int64))
    draw = _libstdcxx if stream is NoiseStream.LIBSTDCXX else _counter
    return draw(check_noise_seed(seed), count).reshape(shape)


def noise_digest(noise: np.ndarray) -> str:
    """32 hexadecimal digits that name starting noise: BLAKE2b of its little-endian float32 bytes."""
    return hashlib.blake2b(np.ascontiguousarray(noise, dtype="<f4").tobytes(), digest_size=16).hexdigest()


def _as_int32(value: int) -> int:
    value &= _WORD
    return value - (1 << 32) if value > LARGEST_SEED else value


def _libstdcxx(seed: int, count: int) -> np.ndarray:
    """Marsaglia's polar method on pairs of words; of an accepted pair the second number comes first."""
    words = np.random.MT19937()
    seeded: Any = np.random.RandomState(seed & _WORD).get_state(legacy=False)  # as std::mt19937 is
    words.state = seeded
    pieces: list[np.ndarray] = []
    missing = (count + 1) // 2
    while missing > 0:
        raw = words.random_raw(2 * (missing + missing // 2 + 8)).astype(np.float32) * np.float32(2.0**-32)
        pairs = np.minimum(raw, np.nextafter(np.float32(1), np.float32(0))).reshape(-1, 2)
        pairs = np.float32(2) * pairs - np.float32(1)
        square = pairs[:, 0] * pairs[:, 0] + pairs[:, 1] * pairs[:, 1]
        accepted = (square <= 1) & (square > 0)
        square = square[accepted]
        logarithm = np.log(square.astype(np.float64)).astype(np.float32)  # rounded once, as a good logf
        scale = np.sqrt(np.float32(-2) * logarithm / square)
        pieces.append((pairs[accepted] * scale[:, None])[:missing, ::-1])
        missing -= len(pieces[-1])
    return np.ascontiguousarray(np.concatenate(pieces).reshape(-1)[:count]) if pieces else np.empty(0, np.float32)


def _counter(seed: int, count: int) -> np.ndarray:
    """Number i: Box and Muller's cosine of the first two words at counter (i, PURPOSE_NOISE, 0, 0)."""
    index: Any = np.arange(count, dtype=np.uint64)  # the generator works on whole arrays of counters as well
    first, second, _, _ = (
        np.asarray(word, dtype=np.uint64) for word in philox4x32((index, PURPOSE_NOISE, 0, 0), (seed & _WORD, 0))
    )
    radius = np.sqrt(-2.0 * np.log(((first >> np.uint64(8)) + np.uint64(1)) * 2.0**-24))
    angle = (2.0 * np.pi) * ((second >> np.uint64(8)) * 2.0**-24)
    normal: np.ndarray = (radius * np.cos(angle)).astype(np.float32)
    return normal
