"""Starting noise: the stream of GNU's C++ library, the counter-based one, and which seed a request uses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgellm_ros.action.noise import NoiseMode, NoiseSeeds, NoiseStream, noise_digest, standard_normal
from edgellm_ros.backends.sampling_math import PURPOSE_NOISE, philox4x32
from edgellm_ros.errors import RequestError

STORED = json.loads((Path(__file__).parent / "fixtures" / "libstdcxx_normal.json").read_text())
NOW = 1_700_000_000_000_000_000
COUNTER_OF_FIVE = [-0.072073258, -1.497135639, 0.323855489, -2.383732795]
STAMPS_OF_FIVE = [794570742, 1811203177]


@pytest.mark.parametrize("seed", sorted(STORED, key=int))
def test_the_stream_is_that_of_the_c_plus_plus_library(seed):
    stored = np.array([float.fromhex(value) for value in STORED[seed]], dtype=np.float32)
    drawn = standard_normal(int(seed), stored.shape)
    assert np.abs(drawn - stored).max() <= 5e-7
    assert np.mean(drawn == stored) > 0.97  # the rest differ in the last bit of a logarithm


@pytest.mark.parametrize("stream", NoiseStream)
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (64, 2), (2, 50, 32)])
def test_a_seed_gives_the_same_numbers_in_row_major_order(stream, shape):
    drawn = standard_normal(-1, shape, stream)
    assert drawn.shape == shape and drawn.dtype == np.float32
    assert drawn.tobytes() == standard_normal(-1, (drawn.size,), stream).tobytes()


@pytest.mark.parametrize("stream", NoiseStream)
def test_noise_is_standard_normal(stream):
    drawn = standard_normal(3, (20000,), stream)
    assert abs(drawn.mean()) < 0.03 and abs(drawn.std() - 1) < 0.03
    assert abs(np.mean(drawn**4) - 3) < 0.25
    assert not np.array_equal(drawn, standard_normal(4, (20000,), stream))


def test_a_number_of_the_counter_stream_needs_no_other():
    drawn = standard_normal(9, (300,), NoiseStream.COUNTER)
    for index in (0, 1, 299):
        first, second, _, _ = philox4x32((index, PURPOSE_NOISE, 0, 0), (9, 0))
        radius = np.sqrt(-2.0 * np.log(((first >> 8) + 1) * 2.0**-24))
        assert drawn[index] == np.float32(radius * np.cos(2.0 * np.pi * ((second >> 8) * 2.0**-24)))


def test_the_counter_stream_and_the_seeds_of_stamps_are_the_same_for_ever():
    """Recordings name their seeds: what these stand for may never change."""
    drawn = standard_normal(5, (4,), NoiseStream.COUNTER).tolist()
    assert drawn == pytest.approx(COUNTER_OF_FIVE, abs=1e-6)
    assert [NoiseSeeds(5, NoiseMode.STAMP).next(stamp) for stamp in (0, NOW)] == STAMPS_OF_FIVE


@pytest.mark.parametrize("seed", [2**31, -(2**31) - 1, 2**63 - 1, 1.0, "5", None, True])
def test_a_seed_outside_int32_is_refused_and_never_wrapped(seed):
    with pytest.raises(RequestError, match=r"noise seed is .*; want a whole number from -2147483648 to 2147483647"):
        standard_normal(seed, (2,))
    with pytest.raises(RequestError, match="noise seed"):
        NoiseSeeds(seed)


@pytest.mark.parametrize("seed", [0, -1, 2**31 - 1, -(2**31)])
def test_every_int32_is_a_seed(seed):
    assert np.isfinite(standard_normal(seed, (4,))).all()


def test_fixed_is_the_same_seed_each_time():
    seeds = NoiseSeeds(5, NoiseMode.FIXED)
    assert [seeds.next(stamp) for stamp in (0, NOW, NOW)] == [5, 5, 5]


def test_sequence_counts_requests_wraps_at_the_end_and_starts_anew_after_a_reset():
    seeds = NoiseSeeds(2**31 - 2, NoiseMode.SEQUENCE)
    assert [seeds.next(NOW) for _ in range(3)] == [2**31 - 2, 2**31 - 1, -(2**31)]
    seeds.reset()
    assert seeds.next(NOW) == 2**31 - 2


def test_stamp_depends_on_the_observation_alone():
    stamps = [NOW + k * 33_333_333 for k in range(50)]
    every = [NoiseSeeds(5, NoiseMode.STAMP).next(stamp) for stamp in stamps]
    seeds = NoiseSeeds(5, NoiseMode.STAMP)
    assert [seeds.next(stamp) for stamp in stamps[::3]] == every[::3]  # frames dropped: nothing shifts
    assert len(set(every)) == len(every)
    assert every[0] != NoiseSeeds(6, NoiseMode.STAMP).next(NOW)
    assert all(-(2**31) <= seed < 2**31 for seed in every)


def test_random_differs_and_its_seed_gives_the_bytes_again():
    seeds = NoiseSeeds(5, NoiseMode.RANDOM)
    drawn = [seeds.next(NOW) for _ in range(8)]
    assert len(set(drawn)) > 1
    assert noise_digest(standard_normal(drawn[0], (3, 2))) == noise_digest(standard_normal(drawn[0], (3, 2)))


def test_the_digest_names_every_bit():
    noise = standard_normal(5, (64, 2))
    changed = noise.copy()
    changed[-1, -1] = np.nextafter(changed[-1, -1], np.float32(9))
    assert noise_digest(noise) != noise_digest(changed)
    assert noise_digest(noise) == noise_digest(np.asfortranarray(noise)) and len(noise_digest(noise)) == 32
