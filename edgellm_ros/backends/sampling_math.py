"""The numbers of sampling, with no state: a counter-based generator, candidate filters and the draw.

This is the definition that every device kernel follows.

* ``uniform(seed, position)`` is Philox4x32-10 with the seed as key (low word first) and the counter
  ``(position, purpose, lane, 0)``; the top 24 bits of the first output word give a float in [0, 1).
  It depends on nothing else, so a draw never depends on the row, the batch or what ran before.
* Candidates stand in descending order of logit, equal logits by ascending id.
* Weights are ``exp((logit - max) / temperature)`` in float32; sums are float64 (a kernel may sum in float32: a draw
  then differs only where the uniform number falls within rounding of a boundary).
* top-k keeps the first k candidates. top-p keeps a candidate while the weight before it is below
  ``top_p * total``, so the one that crosses is kept. min-p keeps weights of at least ``min_p`` (the largest is 1).
* Weights below ``exp(-30)`` may be left out: all of them together are less than one step of the uniform number.
* The draw is the first candidate whose running sum exceeds ``uniform * sum of what was kept``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

PURPOSE_TOKEN = 0  # the draw of a sequence's next token
PURPOSE_NOISE = 1  # starting noise of an action chunk
PURPOSE_ACCEPT = 2  # acceptance test of a drafted token
PURPOSE_RESIDUAL = 3  # replacement of a rejected draft

_WORD = 0xFFFFFFFF
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_FIRST_CANDIDATES = 128  # sorted at first; most draws end among them
_GROUP = 64  # logits that share a maximum in a search for the largest
_NEGLIGIBLE = 30.0  # exp(-30) of 2**17 tokens together is less than one step of the uniform number


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four 32-bit words of Philox4x32 with 10 rounds (Salmon et al., "Parallel random numbers", 2011)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c1, c2, c3 = (product1 >> 32) ^ c1 ^ k0, product1 & _WORD, (product0 >> 32) ^ c3 ^ k1, product0 & _WORD
        k0, k1 = (k0 + _WEYL_0) & _WORD, (k1 + _WEYL_1) & _WORD
    return c0, c1, c2, c3


def uniform(seed: int, position: int, purpose: int = PURPOSE_TOKEN, lane: int = 0) -> float:
    """A multiple of 2**-24 in [0, 1) for a 64-bit seed and a position."""
    words = philox4x32((position & _WORD, purpose, lane, 0), (seed & _WORD, (seed >> 32) & _WORD))
    return (words[0] >> 8) * 2.0**-24


def penalise(
    logits: np.ndarray,
    seen: np.ndarray,
    generated: Mapping[int, int],
    repetition: float,
    presence: float,
    frequency: float,
) -> None:
    """Apply the three penalties to float32 logits [V] in place, in float32 and in this order.

    ``seen`` holds each id of prompt and answer once: a positive logit is divided by ``repetition``, another
    multiplied. ``generated`` maps an id of the answer to its count: ``presence`` and ``frequency * count`` are
    subtracted one after the other.
    """
    if repetition != 1.0 and seen.size:
        values = logits[seen]
        factor = np.float32(repetition)
        logits[seen] = np.where(values > 0, values / factor, values * factor)
    if generated and (presence != 0.0 or frequency != 0.0):
        ids = np.fromiter(generated.keys(), dtype=np.int64, count=len(generated))
        counts = np.fromiter(generated.values(), dtype=np.float32, count=len(generated))
        logits[ids] = logits[ids] - np.float32(presence) - np.float32(frequency) * counts


def mask_bits(allowed: np.ndarray, vocab_size: int) -> np.ndarray:
    """Unpack to bool [V] an int32 bit mask [ceil(V/32)]: id i is bit ``i % 32`` of word ``i // 32``."""
    words = np.ascontiguousarray(allowed, dtype="<i4").view(np.uint8)
    return np.unpackbits(words, count=vocab_size, bitorder="little").view(np.bool_)


def is_finite(logits: np.ndarray) -> bool:
    """True when no element of float32 [V] is NaN or infinite (its extremes tell: both searches stop at a NaN)."""
    return bool(np.isfinite(logits[logits.argmax()]) and np.isfinite(logits[logits.argmin()]))


def top_ids(logits: np.ndarray, count: int) -> np.ndarray:
    """int64 [min(count, V)]: ids of the largest logits, in candidate order, without sorting the rest."""
    size = logits.size
    groups = size // _GROUP
    if count <= 0:
        return np.empty(0, dtype=np.int64)
    if count >= size:
        ids = np.arange(size)
    else:
        largest = logits
        if 2 * count <= groups:
            # The count-th largest of the groups' maxima bounds the count-th largest logit from below; six times faster.
            largest = logits[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
        threshold = np.partition(largest, largest.size - count)[largest.size - count]
        ids = np.flatnonzero(logits >= threshold)
    order: np.ndarray = ids[np.argsort(-logits[ids], kind="stable")]
    return order[:count]


def draw(
    logits: np.ndarray,
    uniform_number: float,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> int:
    """One id from float32 logits [V] (-inf for what is forbidden, at least one finite) at ``temperature`` > 0."""
    largest = logits.max()
    ids: np.ndarray | None = None  # None: all of them
    if 0 < top_k < logits.size:
        ids = top_ids(logits, top_k)
    else:
        matters = logits >= largest - np.float32(_NEGLIGIBLE * temperature)
        if 4 * np.count_nonzero(matters) < logits.size:
            ids = np.flatnonzero(matters)
    values = logits if ids is None else logits[ids]
    weights = values - largest
    weights /= np.float32(temperature)
    np.exp(weights, out=weights)
    total = float(weights.sum(dtype=np.float64))
    kept = total
    if min_p > 0.0:
        likely = np.flatnonzero(weights >= np.float32(min_p))
        ids = likely if ids is None else ids[likely]
        values, weights = values[likely], weights[likely]
        kept = float(weights.sum(dtype=np.float64))
    count = min(_FIRST_CANDIDATES, values.size)
    while True:
        order = top_ids(values, count)
        sums = weights[order].cumsum(dtype=np.float64)
        if top_p < 1.0:
            # A candidate stays while the weight before it is below the share, so the crossing one stays too.
            stay = int(np.searchsorted(sums, top_p * total, side="left")) + 1
            complete = stay <= count
            stay = min(stay, count)
            kept = float(sums[stay - 1])
        else:
            stay = count
            complete = bool(sums[-1] > uniform_number * kept)
        if complete or count == values.size:
            break
        count = min(count * 8, values.size)
    picked = int(np.searchsorted(sums[:stay], uniform_number * kept, side="right"))
    place = order[min(picked, stay - 1)]
    return int(place if ids is None else ids[place])


def log_normaliser(logits: np.ndarray) -> float:
    """log(sum(exp(logits))) of float32 [V] with at least one finite value."""
    largest = float(logits.max())
    return largest + float(np.log(np.exp(logits - np.float32(largest)).sum(dtype=np.float64)))
