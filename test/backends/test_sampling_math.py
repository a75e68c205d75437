from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm_ros.backends.sampling_math import draw, is_finite, log_normaliser, mask_bits, philox4x32, top_ids, uniform

# Known answers of the generator's authors (Random123, kat_vectors, philox4x32 with 10 rounds).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "wanted"), KNOWN, ids=["zeros", "ones", "pi"])
def test_the_generator_gives_the_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], wanted: tuple[int, int, int, int]
) -> None:
    assert philox4x32(counter, key) == wanted


def test_uniform_numbers_take_the_seed_as_key_and_the_top_24_bits() -> None:
    seed = 0x299F31D0_A4093822
    words = philox4x32((17, 2, 3, 0), (0xA4093822, 0x299F31D0))
    assert uniform(seed, 17, purpose=2, lane=3) == (words[0] >> 8) / 2**24
    assert uniform(0, 0) == 0x6627E8 / 2**24


def test_uniform_numbers_are_even_over_positions() -> None:
    numbers = np.array([uniform(0xED6E5EED20260001, position) for position in range(20000)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 60  # 19 degrees of freedom; chance passes 60 less than once in 100,000
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60), st.integers(0, 70))
def test_top_ids_are_those_of_a_stable_full_sort(values: list[int], count: int) -> None:
    logits = np.array(values, dtype=np.float32)
    assert top_ids(logits, count).tolist() == np.argsort(-logits, kind="stable")[:count].tolist()


def reference_draw(
    logits: np.ndarray, number: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> int:
    """The written definition, by a full sort."""
    order = np.argsort(-logits, kind="stable")
    if top_k:
        order = order[:top_k]
    weights = np.exp((logits[order] - logits.max()) / np.float32(temperature), dtype=np.float32).astype(np.float64)
    before = np.concatenate([[0.0], np.cumsum(weights)[:-1]])
    keep = (weights >= np.float32(min_p)) & ((before < top_p * weights.sum()) if top_p < 1 else True)
    order, weights = order[keep], weights[keep]
    above = np.flatnonzero(np.cumsum(weights) > number * weights.sum())
    return int(order[above[0]] if above.size else order[-1])


@given(
    seed=st.integers(0, 10000),
    size=st.sampled_from([1, 2, 50, 1500, 6000]),
    spread=st.sampled_from([0.0, 0.01, 1.0, 10.0]),
    number=st.integers(0, (1 << 24) - 1).map(lambda value: value / 2**24),
    temperature=st.sampled_from([1e-3, 0.5, 1.0, 50.0]),
    top_k=st.sampled_from([0, 1, 40, 2000]),
    top_p=st.sampled_from([1e-6, 0.3, 0.95, 0.999999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-3, 0.3, 1.0]),
)
def test_a_draw_equals_its_definition_by_a_full_sort(
    seed: int, size: int, spread: float, number: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = np.round(np.random.default_rng(seed).normal(0.0, spread, size), 2).astype(np.float32)  # with equal ones
    found = draw(logits.copy(), number, temperature, top_k, top_p, min_p)
    wanted = reference_draw(logits, number, temperature, top_k, top_p, min_p)
    if found != wanted:  # sums in another order may differ in the last bit where the number falls on a boundary
        close = [reference_draw(logits, number + step, temperature, top_k, top_p, min_p) for step in (-1e-9, 1e-9)]
        assert found in close


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-24])
def test_forbidden_tokens_are_never_drawn_at_the_ends(number: float) -> None:
    logits = np.full(5000, -np.inf, dtype=np.float32)
    logits[[17, 4000]] = [1.0, -80.0]
    assert draw(logits.copy(), number, 1.0) in (17, 4000)
    assert draw(logits.copy(), number, 1.0, top_k=3) in (17, 4000)


@given(st.sets(st.integers(0, 99)), st.integers(60, 100))
def test_mask_bits_follow_their_words(ids: set[int], size: int) -> None:
    words = np.zeros(4, dtype=np.uint32)
    for token in ids:
        words[token // 32] |= np.uint32(1 << token % 32)
    found = np.flatnonzero(mask_bits(words.view(np.int32)[: (size + 31) // 32], size))
    assert found.tolist() == sorted(token for token in ids if token < size)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 77, 49151])
def test_one_bad_number_anywhere_is_found(bad: float, place: int) -> None:
    logits = np.random.default_rng(0).normal(0, 1, 49152).astype(np.float32)
    assert is_finite(logits)
    logits[place] = bad
    assert not is_finite(logits)


def test_the_normaliser_survives_large_logits() -> None:
    logits = np.array([1000.0, 999.0, -np.inf], dtype=np.float32)
    assert log_normaliser(logits) == pytest.approx(1000 + math.log1p(math.exp(-1)), abs=1e-4)
