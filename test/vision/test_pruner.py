"""Selection of visual tokens against a slow direct version, with ties; quotas, refusals and settings."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from edgellm_ros.backends.base import TokenSpan
from edgellm_ros.backends.token_selection import select_tokens
from edgellm_ros.errors import RefusalCode, RequestError
from edgellm_ros.vision.pruner import PruningOutcome, VisualPrunerConfig, plan_spans, prune_prompt, quota


def slow_selection(rows: np.ndarray, spans: list[TokenSpan], text_pivots: int, image_pivots: int) -> list[int]:
    """One token at a time, as the rule is written down; whole-number rows keep every sum exact."""
    visual = {index for span in spans for index in range(span.start, span.stop)}
    text = [index for index in range(len(rows)) if index not in visual]

    def magnitude(index: int) -> float:
        return float(sum(abs(value) for value in rows[index]))

    def likeness(one: int, other: int) -> np.float32:
        product = np.float32(sum(a * b for a, b in zip(rows[one], rows[other], strict=True)))
        norms = [np.sqrt(np.float32(sum(a * a for a in rows[index]))) for index in (one, other)]
        return product / max(norms[0] * norms[1], np.float32(1e-8))

    shared = sorted(text, key=lambda index: (-magnitude(index), index))[:text_pivots]
    keep = set(text)
    for span in spans:
        pool = list(range(span.start, span.stop))
        own = sorted(pool, key=lambda index: (-magnitude(index), index))[: min(image_pivots, span.quota)]
        keep |= set(own)
        pool = [index for index in pool if index not in own]
        left = span.quota - len(own)
        pivots = own + shared
        for place, pivot in enumerate(pivots):
            for _ in range(math.ceil(left / (len(pivots) - place))):
                best = min(pool, key=lambda index: (likeness(index, pivot), index))
                pool.remove(best)
                keep.add(best)
                left -= 1
    return sorted(keep)


@some.composite
def prompts(draw):
    """Small whole-number rows, so that equal sums and equal rows are common."""
    lengths = draw(some.lists(some.tuples(some.integers(1, 3), some.integers(1, 14)), min_size=1, max_size=3))
    ratio = draw(some.floats(0.05, 0.95))
    spans, place = [], 0
    for text, image in lengths:
        spans.append((place + text, place + text + image))
        place += text + image
    width = draw(some.sampled_from([1, 3, 4]))
    values = draw(some.lists(some.integers(-2, 2), min_size=place * width, max_size=place * width))
    rows = np.array(values, np.float32).reshape(place, width)
    wanted = [TokenSpan(start, stop, quota(stop - start, ratio)) for start, stop in spans]
    image_pivots = draw(some.integers(0, 5))
    return rows, wanted, draw(some.integers(0 if image_pivots else 1, 5)), image_pivots


@given(prompts())
def test_selection_equals_the_slow_one(prompt):
    rows, spans, text_pivots, image_pivots = prompt
    found = select_tokens(rows, spans, text_pivots, image_pivots)
    assert found.dtype == np.int32
    assert found.tolist() == slow_selection(rows, spans, text_pivots, image_pivots)


@given(prompts())
def test_all_text_stays_and_every_image_keeps_its_quota(prompt):
    rows, spans, text_pivots, image_pivots = prompt
    keep = select_tokens(rows, spans, text_pivots, image_pivots)
    assert (np.diff(keep) > 0).all()
    kept = set(keep.tolist())
    for span in spans:
        assert len(kept & set(range(span.start, span.stop))) == span.quota
    visual = {index for span in spans for index in range(span.start, span.stop)}
    assert set(range(len(rows))) - visual <= kept


def test_equal_rows_of_any_width_tie_to_the_lower_place():
    generator = np.random.default_rng(3)
    row = generator.normal(size=(1, 321)).astype(np.float32)
    rows = np.concatenate([generator.normal(size=(5, 321)).astype(np.float32), np.repeat(row, 301, axis=0)])
    keep = select_tokens(rows, [TokenSpan(5, 306, 40)], 4, 4)
    assert keep.tolist() == [*range(5), *range(5, 45)]


def test_duplicates_of_a_pivot_go_first():
    rows = np.eye(12, dtype=np.float32)
    rows[1] *= 3  # the pivot
    rows[4:8] = rows[1] / 3
    keep = select_tokens(rows, [TokenSpan(1, 12, 7)], 0, 1)
    assert keep.tolist() == [0, 1, 2, 3, 8, 9, 10, 11]


def test_pivots_of_the_text_are_rows_of_the_text_however_large_those_of_an_image_are():
    rows = np.array([[1, 0], [0, 9], [1, 0], [0, 1]], np.float32)
    assert select_tokens(rows, [TokenSpan(1, 4, 2)], 1, 0).tolist() == [0, 1, 3]


def test_only_rows_near_nothing_count_as_less_like_a_pivot_than_their_direction_says():
    """The product of two norms counts as 1e-8 at least: 0.35, 0.4 where the direction says 1, then 1 and 0.6."""
    rows = np.array([[1, 0], [0.35, 0.936], [4e-9, 0], [0.05, 0], [0.6, 0.8]], np.float32)
    assert select_tokens(rows, [TokenSpan(1, 5, 3)], 1, 0).tolist() == [0, 1, 2, 4]
    assert select_tokens(rows, [TokenSpan(1, 5, 2)], 1, 0).tolist() == [0, 1, 2]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("broken", [(2, 3), (1, 2, 3, 4, 5), (0,)], ids=str)
@pytest.mark.parametrize("pivots", [(0, 4), (0, 1), (1, 1), (1, 0)], ids=str)
def test_rows_that_are_not_finite_are_taken_last_and_quotas_are_met(value, broken, pivots):
    rows = np.eye(6, dtype=np.float32)
    rows[list(broken)] = value
    with np.errstate(all="ignore"):
        keep = {quota: select_tokens(rows, [TokenSpan(1, 6, quota)], *pivots).tolist() for quota in (3, 4, 5)}
    assert all(found[0] == 0 and len(found) == 1 + quota for quota, found in keep.items())
    if np.isnan(value) and broken == (2, 3):
        assert keep[3] == [0, 1, 4, 5]


def test_shares_of_the_pivots_are_those_of_the_worked_example():
    """256 tokens at a quarter: 192 stay, 4 of them pivots; 188 over 8 pivots are 24 four times, then 23."""
    left, shares = 188, []
    for index in range(8):
        shares.append(-(-left // (8 - index)))
        left -= shares[-1]
    assert shares == [24] * 4 + [23] * 4
    generator = np.random.default_rng(0)
    keep = select_tokens(generator.normal(size=(266, 32)), [TokenSpan(5, 261, 192)], 4, 4)
    assert len(keep) == 10 + 192


@pytest.mark.parametrize(("count", "ratio", "wanted"), [
    (5, 1 - 1e-12, 1),
    (256, 0.25, 192), (10, 0.7, 3), (10, 0.75, 3), (1, 0.99, 1), (3, 0.99, 1), (100, 0.999, 1), (5, 0.01, 5),
])  # fmt: skip
def test_quota_rounds_up_what_stays_and_leaves_at_least_one(count, ratio, wanted):
    assert quota(count, ratio) == wanted


@pytest.mark.parametrize(("spans", "length", "changes", "outcome"), [
    ([(2, 40)], 50, {"enabled": False}, PruningOutcome.OFF),
    ([], 50, {}, PruningOutcome.NO_IMAGES),
    ([(2, 10)], 50, {}, PruningOutcome.FEW_TOKENS),
    ([(2, 10), (20, 28)], 50, {}, PruningOutcome.APPLIED),
    ([(2, 40)], 50, {"reduction_ratio": 0.01}, PruningOutcome.NOTHING_TO_DROP),
    ([(0, 40)], 40, {"pivot_image_tokens": 0}, PruningOutcome.NO_PIVOTS),
    ([(0, 40)], 40, {}, PruningOutcome.APPLIED),
])  # fmt: skip
def test_a_plan_says_applied_or_why_not(spans, length, changes, outcome):
    config = VisualPrunerConfig(**{"enabled": True, **changes})
    assert plan_spans(spans, length, config)[0] is outcome


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"reduction_ratio": 0.0}, "reduction_ratio is 0.0; want a number above 0 and below 1"),
    ({"reduction_ratio": 1.0}, "reduction_ratio is 1.0"),
    ({"reduction_ratio": float("nan")}, "reduction_ratio is nan"),
    ({"algorithm": "fast"}, "algorithm is 'fast'; want one of dart"),
    ({"algorithm": np.array(["dart", "dart"])}, "algorithm is array(['dart', 'dart']"),
    ({"algorithm": None}, "algorithm is None"),
    ({"reduction_ratio": float("inf")}, "reduction_ratio is inf"),
    ({"reduction_ratio": np.array([0.5])}, "reduction_ratio is array([0.5])"),
    ({"reduction_ratio": True}, "reduction_ratio is True"),
    ({"reduction_ratio": 10**400}, "reduction_ratio is 1000"),
    ({"enabled": 1}, "enabled is 1; want true or false"),
    ({"pivot_text_tokens": 1.0}, "pivot_text_tokens is 1.0; want a whole number"),
    ({"min_visual_tokens": True}, "min_visual_tokens is True"),
    ({"min_visual_tokens": 0}, "min_visual_tokens is 0; want a whole number from 1 to 4096"),
    ({"pivot_image_tokens": 65}, "pivot_image_tokens is 65"),
    ({"pivot_text_tokens": -1}, "pivot_text_tokens is -1"),
    ({"pivot_image_tokens": 0, "pivot_text_tokens": 0}, "want at least one pivot"),
])  # fmt: skip
def test_settings_out_of_range_are_refused_by_name(changes, sentence):
    with pytest.raises(RequestError) as refusal:
        VisualPrunerConfig(**changes)
    assert refusal.value.code is RefusalCode.BAD_PARAMETER
    assert sentence in str(refusal.value)


def test_a_backend_chooses_and_the_report_counts_visual_tokens():
    from edgellm_ros.backends.base import DataType
    from edgellm_ros.backends.host_backend import HostBackend

    backend = HostBackend()
    rows = np.random.default_rng(1).normal(size=(60, 8)).astype(np.float32)
    tensor = backend.allocate((60, 8), DataType.FLOAT32)
    tensor.write(rows)
    config = VisualPrunerConfig(enabled=True, reduction_ratio=0.5)
    pruned = prune_prompt(backend, tensor, [(3, 23), (30, 50)], config)
    assert (pruned.report.outcome, pruned.report.before, pruned.report.after) == (PruningOutcome.APPLIED, 40, 20)
    assert list(pruned.keep) == select_tokens(rows, [TokenSpan(3, 23, 10), TokenSpan(30, 50, 10)], 4, 4).tolist()
    untouched = prune_prompt(backend, tensor, [(3, 23)], VisualPrunerConfig())
    assert untouched.keep is None
    assert (untouched.report.before, untouched.report.after) == (20, 20)
