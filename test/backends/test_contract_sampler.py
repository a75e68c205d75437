"""What every backend promises about picking tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgellm_ros.backends.base import Backend, DataType, Sampler, SamplingRow
from edgellm_ros.errors import MisuseError

VOCABULARY = 1000
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)

CHOICES = st.builds(
    SamplingRow,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 5, 300, 5000]),
    top_p=st.sampled_from([0.05, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 1.0, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, (1 << 64) - 1),
)


def some_logits(seed: int, rows: int = 1, size: int = VOCABULARY) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 2.0, (rows, size)).astype(np.float32)


def sample(backend: Backend, sampler: Sampler, logits: np.ndarray, rows: Sequence[int]) -> list[int]:
    tensor = backend.allocate(logits.shape, DataType.FLOAT32)
    tensor.write(logits)
    ids = backend.allocate((len(rows),), DataType.INT32)
    sampler.sample(tensor, rows, ids)
    return [int(token) for token in backend.read_async(ids).wait()]


def one(
    backend: Backend,
    parameters: SamplingRow,
    logits: np.ndarray,
    prompt: Sequence[int] = (1, 2, 3),
    allowed: np.ndarray | None = None,
) -> int:
    """The first draw of a fresh row."""
    sampler = backend.allocate_sampler(1, logits.shape[1])
    sampler.set_row(0, parameters, prompt, len(prompt))
    if allowed is not None:
        sampler.set_mask(0, allowed)
    return sample(backend, sampler, logits, [0])[0]


def bits(ids: Sequence[int], size: int = VOCABULARY) -> np.ndarray:
    mask = np.zeros((size + 31) // 32, dtype=np.uint32)
    for token in ids:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask.view(np.int32)


# ---- the most likely token


@pytest.mark.parametrize(
    "parameters", [SamplingRow(), SamplingRow(temperature=0.7, top_k=1, seed=5)], ids=["temperature 0", "top-k 1"]
)
def test_greedy_takes_the_largest_and_of_equals_the_lowest_id(backend: Backend, parameters: SamplingRow) -> None:
    logits = some_logits(1)
    logits[0, [700, 40, 41]] = 50.0
    assert one(backend, parameters, logits) == 40


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_gives_minus_one_and_spares_the_others(
    backend: Backend, bad: float, temperature: float
) -> None:
    sampler = backend.allocate_sampler(3, VOCABULARY)
    for row in range(3):
        sampler.set_row(row, SamplingRow(temperature=temperature, seed=1), [1], 1)
    logits = some_logits(2, 3)
    clean = sample(backend, sampler, logits, [0, 1, 2])
    for row in range(3):
        sampler.set_row(row, SamplingRow(temperature=temperature, seed=1), [1], 1)
    broken = logits.copy()
    broken[1, 613] = bad
    assert sample(backend, sampler, broken, [0, 1, 2]) == [clean[0], -1, clean[2]]
    # A failed draw counts nothing: the row's next one is its first.
    assert sample(backend, sampler, logits[1:2], [1]) == [clean[1]]


# ---- penalties, bias, mask


def test_the_repetition_penalty_counts_prompt_and_answer(backend: Backend) -> None:
    logits = np.full((1, VOCABULARY), -5.0, dtype=np.float32)
    logits[0, [10, 20, 30]] = [4.0, 3.0, 2.5]
    sampler = backend.allocate_sampler(1, VOCABULARY)
    sampler.set_row(0, SamplingRow(repetition_penalty=2.0), [10, 999999, -1], 3)
    # 10 stands in the prompt: 4 / 2 falls below 3; then 20 was said: 1.5 falls below 2.5; then 10 leads with 2.
    assert [sample(backend, sampler, logits, [0])[0] for _ in range(4)] == [20, 30, 10, 10]


def test_the_repetition_penalty_multiplies_negative_logits(backend: Backend) -> None:
    logits = np.full((1, VOCABULARY), -9.0, dtype=np.float32)
    logits[0, [10, 20]] = [-1.0, -1.5]
    assert one(backend, SamplingRow(repetition_penalty=2.0), logits, [10]) == 20


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        (SamplingRow(presence_penalty=1.5), [10, 20, 10, 10, 10]),
        (SamplingRow(frequency_penalty=0.6), [10, 10, 20, 10, 20]),
        (SamplingRow(presence_penalty=-1.0, frequency_penalty=0.4), [10, 10, 10, 10, 10]),
    ],
    ids=["presence", "frequency", "reward"],
)
def test_presence_and_frequency_count_only_the_answer(
    backend: Backend, parameters: SamplingRow, wanted: list[int]
) -> None:
    logits = np.full((1, VOCABULARY), -9.0, dtype=np.float32)
    logits[0, [10, 20]] = [4.0, 3.1]
    sampler = backend.allocate_sampler(1, VOCABULARY)
    sampler.set_row(0, parameters, [10, 10, 10], 3)
    assert [sample(backend, sampler, logits, [0])[0] for _ in wanted] == wanted


def test_bias_moves_the_choice_and_ids_outside_are_refused(backend: Backend) -> None:
    logits = some_logits(3)
    assert one(backend, SamplingRow(logit_bias={321: 100.0}), logits) == 321
    best = one(backend, SamplingRow(), logits)
    assert one(backend, SamplingRow(logit_bias={best: -100.0}), logits) != best
    with pytest.raises(ValueError, match="logit_bias"):
        one(backend, SamplingRow(logit_bias={VOCABULARY: 1.0}), logits)


@SHARED
@given(
    allowed=st.sets(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40),
    parameters=CHOICES,
    seed=st.integers(0, 1000),
)
def test_only_allowed_tokens_are_ever_picked(
    backend: Backend, allowed: set[int], parameters: SamplingRow, seed: int
) -> None:
    assert one(backend, parameters, some_logits(seed), allowed=bits(sorted(allowed))) in allowed


def test_a_mask_holds_until_it_is_lifted_or_the_row_starts_anew(backend: Backend) -> None:
    logits = some_logits(4)
    free = one(backend, SamplingRow(), logits)
    sampler = backend.allocate_sampler(1, VOCABULARY)
    sampler.set_row(0, SamplingRow(), [1], 1)
    sampler.set_mask(0, bits([999]))
    assert [sample(backend, sampler, logits, [0])[0] for _ in range(2)] == [999, 999]
    sampler.set_mask(0, None)
    assert sample(backend, sampler, logits, [0]) == [free]
    sampler.set_mask(0, bits([999]))
    sampler.set_row(0, SamplingRow(), [1], 1)
    assert sample(backend, sampler, logits, [0]) == [free]


def test_a_mask_that_allows_nothing_gives_minus_one(backend: Backend) -> None:
    for temperature in (0.0, 1.0):
        assert one(backend, SamplingRow(temperature=temperature), some_logits(5), allowed=bits([])) == -1


@pytest.mark.parametrize(
    "mask", [np.zeros(31, np.int32), np.zeros(32, np.int64), np.zeros((1, 32), np.int32)], ids=["short", "int64", "2-d"]
)
def test_a_mask_of_another_shape_or_type_is_refused(backend: Backend, mask: np.ndarray) -> None:
    sampler = backend.allocate_sampler(1, VOCABULARY)
    sampler.set_row(0, SamplingRow(), [1], 1)
    with pytest.raises(ValueError, match="mask"):
        sampler.set_mask(0, mask)


# ---- draws


@SHARED
@given(parameters=CHOICES, top_k=st.integers(1, 20), seed=st.integers(0, 1000))
def test_top_k_never_leaves_the_k_largest(backend: Backend, parameters: SamplingRow, top_k: int, seed: int) -> None:
    logits = some_logits(seed)
    row = SamplingRow(temperature=parameters.temperature, top_k=top_k, seed=parameters.seed)
    assert one(backend, row, logits) in np.argsort(-logits[0])[:top_k]


@SHARED
@given(top_p=st.floats(0.01, 0.99), seed=st.integers(0, 1 << 63), shape=st.integers(0, 20))
def test_top_p_keeps_the_candidates_that_reach_the_share(backend: Backend, top_p: float, seed: int, shape: int) -> None:
    logits = some_logits(shape)
    order = np.argsort(-logits[0], kind="stable")
    weights = np.exp(logits[0, order].astype(np.float64) - logits.max())
    before = np.concatenate([[0.0], np.cumsum(weights / weights.sum())[:-1]])
    picked = one(backend, SamplingRow(temperature=1.0, top_p=top_p, seed=seed), logits)
    assert before[np.flatnonzero(order == picked)[0]] < top_p + 1e-6


@SHARED
@given(min_p=st.floats(0.01, 1.0), seed=st.integers(0, 1 << 63), shape=st.integers(0, 20))
def test_min_p_keeps_what_is_likely_enough_beside_the_best(
    backend: Backend, min_p: float, seed: int, shape: int
) -> None:
    logits = some_logits(shape)
    picked = one(backend, SamplingRow(temperature=1.0, min_p=min_p, seed=seed), logits)
    assert math.exp(float(logits[0, picked]) - float(logits.max())) >= min_p * (1 - 1e-6)


@SHARED
@given(parameters=CHOICES, data=st.data())
def test_a_draw_depends_on_seed_and_position_alone(
    backend: Backend, parameters: SamplingRow, data: st.DataObject
) -> None:
    steps = [some_logits(seed, 4) for seed in range(3)]
    alone = backend.allocate_sampler(1, VOCABULARY)
    alone.set_row(0, parameters, [5, 6], 2)
    wanted = [sample(backend, alone, logits[:1], [0])[0] for logits in steps]
    crowd = backend.allocate_sampler(6, VOCABULARY)
    rows = data.draw(st.permutations(range(6)).map(lambda order: order[:4]))
    for row in rows:
        crowd.set_row(row, data.draw(CHOICES), [9], 1)
    crowd.set_row(rows[2], parameters, [5, 6], 2)
    spare = next(row for row in range(6) if row not in rows)
    found = []
    for index, logits in enumerate(steps):
        order = [logits[1], logits[2], logits[0], logits[3]]
        found.append(sample(backend, crowd, np.stack(order), rows)[2])
        if index == 0:
            crowd.move_row(rows[2], spare)
            rows = [rows[0], rows[1], spare, rows[3]]
    assert found == wanted


def test_other_seeds_and_positions_give_other_draws(backend: Backend) -> None:
    logits = np.zeros((1, VOCABULARY), dtype=np.float32)
    seeds = {one(backend, SamplingRow(temperature=1.0, seed=seed << 40), logits) for seed in range(50)}
    assert len(seeds) > 40
    places = {one(backend, SamplingRow(temperature=1.0, seed=7), logits, [1] * length) for length in range(1, 51)}
    assert len(places) > 40
    sampler = backend.allocate_sampler(1, VOCABULARY)
    sampler.set_row(0, SamplingRow(temperature=1.0, seed=7), [1], 1)
    assert len({sample(backend, sampler, logits, [0])[0] for _ in range(50)}) > 40


DISTRIBUTIONS = {
    "plain": SamplingRow(temperature=1.0),
    "cool": SamplingRow(temperature=0.6),
    "top-k": SamplingRow(temperature=1.0, top_k=7),
    "top-p": SamplingRow(temperature=1.0, top_p=0.8),
    "min-p": SamplingRow(temperature=1.0, min_p=0.1),
    "all": SamplingRow(temperature=1.3, top_k=12, top_p=0.9, min_p=0.05),
}


def exact_probabilities(logits: np.ndarray, row: SamplingRow) -> np.ndarray:
    """The definition, in float64 and by a full sort."""
    order = np.argsort(-logits, kind="stable")
    weights = np.exp((logits[order].astype(np.float64) - float(logits.max())) / row.temperature)
    if row.top_k:
        weights[row.top_k :] = 0.0
    before = np.concatenate([[0.0], np.cumsum(weights)[:-1]])
    weights[before >= row.top_p * weights.sum()] = 0.0
    weights[weights < row.min_p] = 0.0
    out = np.zeros(logits.size)
    out[order] = weights / weights.sum()
    return out


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_draws_follow_the_exact_probabilities(backend: Backend, name: str) -> None:
    size, count = 40, 4000
    row = DISTRIBUTIONS[name]
    logits = np.random.default_rng(11).normal(0.0, 1.5, size).astype(np.float32)
    wanted = exact_probabilities(logits, row) * count
    sampler = backend.allocate_sampler(8, size)
    found = np.zeros(size)
    for seed in range(8):
        sampler.set_row(seed, SamplingRow(**{**row.__dict__, "seed": seed}), [1], 1)
    for _ in range(count // 8):
        for token in sample(backend, sampler, np.stack([logits] * 8), range(8)):
            found[token] += 1
    assert not found[wanted == 0].any()
    # Cells of few expected draws go together; then chi-square against a bound that chance passes once in 100,000.
    large = wanted >= 5
    cells = [*zip(found[large], wanted[large], strict=True)]
    if wanted[~large].sum() > 0:
        cells.append((found[~large].sum(), wanted[~large].sum()))
    statistic = sum((have - want) ** 2 / want for have, want in cells)
    degrees = max(1, len(cells) - 1)
    bound = degrees * (1 - 2 / (9 * degrees) + 4.265 * math.sqrt(2 / (9 * degrees))) ** 3
    assert statistic < bound


# ---- log probabilities


def test_log_probabilities_come_after_penalties_and_before_temperature(backend: Backend) -> None:
    logits = some_logits(6)
    row = SamplingRow(temperature=3.0, top_k=2, seed=3, num_logprobs=4, logit_bias={77: 2.0}, repetition_penalty=1.5)
    sampler = backend.allocate_sampler(2, VOCABULARY)
    sampler.set_row(1, row, [5, 6], 2)
    sampler.set_row(0, SamplingRow(), [5], 1)
    picked = sample(backend, sampler, np.concatenate([logits, logits]), [1, 0])[0]
    adjusted = logits[0].astype(np.float64)
    for token in (5, 6):
        adjusted[token] = adjusted[token] / 1.5 if adjusted[token] > 0 else adjusted[token] * 1.5
    adjusted[77] += 2.0
    exact = adjusted - adjusted.max() - math.log(np.exp(adjusted - adjusted.max()).sum())
    pairs = sampler.logprobs(0, 4)
    assert [token for token, _ in pairs] == [picked, *np.argsort(-adjusted)[:4]]
    assert [value for _, value in pairs] == pytest.approx([exact[token] for token, _ in pairs], abs=1e-5)
    assert sampler.logprobs(0, 1) == pairs[:2]
    with pytest.raises(MisuseError):
        sampler.logprobs(2, 1)
    with pytest.raises(MisuseError, match="num_logprobs"):
        sampler.logprobs(1, 1)


# ---- misuse


def test_rows_that_do_not_exist_or_hold_nothing_are_refused(backend: Backend) -> None:
    sampler = backend.allocate_sampler(2, VOCABULARY)
    with pytest.raises(MisuseError, match=r"0\.\.1"):
        sampler.set_row(2, SamplingRow(), [1], 1)
    with pytest.raises(MisuseError, match="set_row"):
        sample(backend, sampler, some_logits(1), [1])
    sampler.set_row(0, SamplingRow(), [1], 1)
    sampler.move_row(0, 1)
    with pytest.raises(MisuseError, match="set_row"):
        sample(backend, sampler, some_logits(1), [0])
    with pytest.raises(MisuseError, match=r"0\.\.1"):
        sampler.move_row(1, 2)
    with pytest.raises(ValueError, match="want"):
        sample(backend, sampler, some_logits(1, size=VOCABULARY + 1), [1])
