"""Between robot units and a network's numbers: every published convention, and statistics that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm_ros.action.normalization import EpsilonRule, Normalization, NormalizationKind
from edgellm_ros.errors import PolicyError

MEAN_STD, RANGE = NormalizationKind.MEAN_STD, NormalizationKind.RANGE
LOW, HIGH = (0.5, -1.0, 2.0), (2.0, 3.0, 2.0)  # the last one never varies as a range
VALUES = np.array([[0.0, 1.5, 2.5], [4.0, -2.0, 2.0]], np.float32)


@pytest.mark.parametrize(
    ("normalization", "forward", "inverse"),
    [
        pytest.param(
            Normalization(MEAN_STD, LOW, HIGH, 1e-8, EpsilonRule.FORWARD),
            lambda x: (x - np.array(LOW)) / (np.array(HIGH) + 1e-8),
            lambda y: y * np.array(HIGH) + np.array(LOW),
            id="lerobot mean and deviation",
        ),
        pytest.param(
            Normalization(MEAN_STD, LOW, HIGH, 1e-6),
            lambda x: (x - np.array(LOW)) / (np.array(HIGH) + 1e-6),
            lambda y: y * (np.array(HIGH) + 1e-6) + np.array(LOW),
            id="openpi mean and deviation",
        ),
        pytest.param(
            Normalization(RANGE, LOW, HIGH, 1e-6),
            lambda x: (x - np.array(LOW)) / (np.array(HIGH) - LOW + 1e-6) * 2 - 1,
            lambda y: (y + 1) / 2 * (np.array(HIGH) - LOW + 1e-6) + LOW,
            id="openpi quantiles",
        ),
        pytest.param(
            Normalization(RANGE, LOW, HIGH, 1e-8, EpsilonRule.WHERE_ZERO),
            lambda x: 2 * (x - np.array(LOW)) / np.array([1.5, 4.0, 1e-8]) - 1,
            lambda y: (y + 1) * np.array([1.5, 4.0, 1e-8]) / 2 + LOW,
            id="lerobot quantiles",
        ),
    ],
)
def test_each_convention_puts_its_small_number_where_it_does(normalization, forward, inverse):
    normalised = normalization.normalize(VALUES)
    assert normalised.dtype == (np.float64 if normalization.rule is EpsilonRule.ALWAYS else np.float32)
    assert np.allclose(normalised, forward(VALUES.astype(np.float64)), rtol=1e-5, atol=1e-6)
    assert np.allclose(
        normalization.unnormalize(normalised), inverse(normalised.astype(np.float64)), rtol=1e-5, atol=1e-6
    )


def test_a_dimension_that_hardly_varies_shows_which_rule_is_in_force():
    near = (1.0,), (1.0 + 1e-6,)
    always = Normalization(RANGE, *near, 1e-6).normalize(np.array([1.0 + 1e-6]))
    never = Normalization(RANGE, *near, 1e-8, EpsilonRule.WHERE_ZERO).normalize(np.array([1.0 + 1e-6]))
    assert abs(always[0] - 0.0) < 0.1 and abs(never[0] - 1.0) < 0.1


def test_outliers_are_clipped_only_where_the_convention_does():
    assert Normalization(RANGE, LOW[:2], HIGH[:2], clip=True).normalize(np.array([99.0, -99.0])).tolist() == [1.0, -1.0]
    assert abs(Normalization(RANGE, LOW[:2], HIGH[:2]).normalize(np.array([99.0, -99.0]))).min() > 1


@given(
    low=st.lists(st.floats(-10, 10), min_size=1, max_size=6),
    spans=st.lists(st.floats(0.01, 10), min_size=6, max_size=6),
    kind=st.sampled_from([MEAN_STD, RANGE]),
    rule=st.sampled_from(list(EpsilonRule)),
)
def test_there_and_back_gives_the_same_values(low, spans, kind, rule):
    high = [span if kind is MEAN_STD else start + span for start, span in zip(low, spans, strict=False)]
    normalization = Normalization(kind, tuple(low), tuple(high), 1e-8, rule)
    values = np.linspace(-3, 3, len(low)).astype(np.float32)
    assert np.allclose(normalization.unnormalize(normalization.normalize(values)), values, atol=1e-4)
    assert Normalization.from_json(normalization.to_json()) == normalization


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"low": (1.0,), "high": (1.0, 2.0)}, "1 and 2 entries"),
        ({"low": (), "high": ()}, "0 and 0 entries"),
        ({"low": (1.0,), "high": (0.5,)}, "range whose end lies below its start"),
        ({"low": (float("nan"),), "high": (0.5,)}, "is nan; want a finite number"),
        ({"low": (0.0,), "high": (float("inf"),)}, "is inf; want a finite number"),
        ({"low": (0.0,), "high": ("1",)}, "want a finite number"),
        ({"low": (0.0,), "high": (1.0,), "epsilon": -1.0}, "negative deviation"),
        ({"low": (0.0,), "high": (1e39,)}, "beyond 32-bit numbers"),
        ({"low": (-3e38,), "high": (3e38,)}, "beyond 32-bit numbers"),
    ],
)
def test_statistics_that_make_no_sense_are_refused(fields, sentence):
    with pytest.raises(PolicyError, match=sentence):
        Normalization(RANGE, **fields)


@pytest.mark.parametrize("method", ["normalize", "unnormalize"])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_another_width_is_refused_never_trimmed_or_padded(method, width):
    with pytest.raises(PolicyError, match=rf"shape \(5, {width}\) where statistics are for 3"):
        getattr(Normalization(RANGE, LOW, HIGH, 1e-6), method)(np.zeros((5, width)))


def test_a_range_of_nothing_is_the_middle_and_numbers_are_held_in_both_directions():
    held = Normalization(RANGE, (0.0, 3.0), (2.0, 3.0), rule=EpsilonRule.MIDDLE, clip=True)
    assert held.normalize(np.array([[9.0, 3.0], [1.0, -5.0]])).tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert held.unnormalize(np.array([[7.0, 7.0], [-7.0, 0.0]])).tolist() == [[2.0, 3.0], [0.0, 3.0]]
