"""Rotary frequencies: what each kind of scaling does to the short and the long waves."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from edgellm_ros.builder.families.rope_kinds import rope_settings, single_rope
from edgellm_ros.builder.rope import resolve_rope
from edgellm_ros.errors import CheckpointError

PLAIN = 10000.0 ** (-np.arange(0, 64, 2) / 64)


def frequencies(scaling, maximum=4096):
    rope = resolve_rope(10000.0, 64, maximum, scaling)
    return np.array(rope.inverse_frequency), rope.scale


@pytest.mark.parametrize("scaling", [None, {}, {"rope_type": "default"}, {"type": "default"}], ids=str)
def test_without_scaling(scaling):
    found, scale = frequencies(scaling)
    np.testing.assert_allclose(found, PLAIN, rtol=2e-7)
    assert scale == 1.0


def test_linear_stretches_every_wave():
    np.testing.assert_allclose(frequencies({"type": "linear", "factor": 2.5})[0], PLAIN / 2.5, rtol=2e-7)


def test_llama3_keeps_short_waves_and_stretches_long_ones():
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 1024}  # fmt: skip
    ratio = PLAIN / frequencies(scaling)[0]
    turns = 1024 * PLAIN / (2 * math.pi)
    np.testing.assert_allclose(ratio[turns > 4], 1, rtol=1e-6)
    np.testing.assert_allclose(ratio[turns < 1], 32, rtol=1e-6)
    middle = (turns > 1) & (turns < 4)
    assert middle.any()
    assert ((ratio[middle] > 1) & (ratio[middle] < 32)).all()


def test_yarn_keeps_short_waves_stretches_long_ones_and_scales_the_tables():
    found, scale = frequencies({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096})
    ratio = PLAIN / found
    turns = 4096 * PLAIN / (2 * math.pi)
    np.testing.assert_allclose(ratio[turns > 40], 1, rtol=1e-6)
    np.testing.assert_allclose(ratio[turns < 0.7], 8, rtol=1e-6)
    assert (np.diff(ratio) >= -1e-5).all()
    assert scale == pytest.approx(0.1 * math.log(8) + 1)


def test_yarn_blends_between_the_whole_dimensions_around_both_numbers_of_turns():
    """Of 32 pairs, those of 32 turns and of one turn in 4096 positions are pairs 10.48 and 22.52."""
    found, _ = frequencies({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096})
    share = np.clip((np.arange(32) - 10) / (23 - 10), 0, 1)
    np.testing.assert_allclose(found, PLAIN * (1 - share) + PLAIN / 8 * share, rtol=1e-6)


def test_yarn_takes_an_explicit_factor_for_the_tables():
    assert frequencies({"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.5})[1] == 1.5


def test_both_places_of_the_settings_are_read():
    assert rope_settings({"rope_theta": 5.0, "rope_scaling": None}) == (5.0, None)
    newer = {"rope_type": "default", "rope_theta": 7.0}
    assert rope_settings({"rope_parameters": newer}) == (7.0, newer)
    assert rope_settings({}) == (10000.0, None)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "mrope"])
def test_other_kinds_are_named(kind):
    with pytest.raises(CheckpointError, match=kind):
        frequencies({"rope_type": kind, "factor": 2.0})


EXTREMES = (5e-324, 1e-300, 1e-40, 1.0, 1e9, 1e39, 1e300, 10**30, 10**308)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["default", "linear", "yarn", "llama3"])
def test_numbers_beyond_float32_are_refused_and_nothing_overflows(kind):
    keys = ("factor", "original_max_position_embeddings", "beta_fast", "low_freq_factor", "attention_factor")
    plain = {"factor": 2.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    for base in EXTREMES:
        for key, value in itertools.product(keys, EXTREMES):
            config = {"rope_theta": base, "rope_scaling": {"rope_type": kind, **plain, key: value}}
            try:
                rope = single_rope(config, 16, 128)
            except CheckpointError as error:
                assert str(error).endswith(".")
            else:
                assert np.isfinite([*rope.inverse_frequency, rope.scale]).all()


@pytest.mark.parametrize("factor", [0, -1, "2", None, float("inf"), True], ids=str)
def test_a_bad_factor_is_named(factor):
    with pytest.raises(CheckpointError, match="factor"):
        frequencies({"rope_type": "linear", "factor": factor})
