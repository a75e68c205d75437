"""Penalties and the choice of candidates equal those of transformers' logits processors, on every backend's sampler."""

from __future__ import annotations

import numpy as np
import pytest
from reference_files import read

from edgellm_ros.backends.base import DataType, SamplingRow
from edgellm_ros.backends.registry import open_backend

REFERENCE = read("sampling.json")
CASES = REFERENCE["cases"]
PROMPT, GENERATED = REFERENCE["prompt_ids"], REFERENCE["generated_ids"]
LOGITS = np.array(REFERENCE["logits"], dtype=np.float32)
DRAWS = 1000


class Rig:
    """One sampler with the reference's history in its row."""

    def __init__(self, backend_name: str, **parameters: float) -> None:
        self.backend = open_backend(backend_name, threads=1)
        self.logits = self.backend.allocate((1, LOGITS.size), DataType.FLOAT32)
        self.ids = self.backend.allocate((1,), DataType.INT32)
        self.sampler = self.backend.allocate_sampler(1, LOGITS.size)
        self.parameters = parameters

    def draw(self, values: np.ndarray) -> int:
        self.logits.write(values[None])
        self.sampler.sample(self.logits, [0], self.ids)
        return int(self.ids.numpy()[0])

    def start(self, seed: int, num_logprobs: int = 0) -> None:
        row = SamplingRow(**{"temperature": 1.0, **self.parameters}, seed=seed, num_logprobs=num_logprobs)
        self.sampler.set_row(0, row, PROMPT, len(PROMPT))
        for token in GENERATED:
            forced = np.full(LOGITS.size, -1000.0, dtype=np.float32)
            forced[token] = 1000.0
            assert self.draw(forced) == token


def named(case: dict) -> str:
    return ",".join(f"{key}={value}" for key, value in case["parameters"].items()) or "plain"


@pytest.mark.parametrize("backend_name", ["onnxruntime", "fake"])
@pytest.mark.parametrize("case", CASES, ids=named)
def test_log_probabilities_after_penalties(case, backend_name):
    rig = Rig(backend_name, **case["parameters"])
    rig.start(seed=1, num_logprobs=LOGITS.size)
    rig.draw(LOGITS)
    found = dict(rig.sampler.logprobs(0, LOGITS.size)[1:])
    wanted = case["logprobs"]
    np.testing.assert_allclose([found[index] for index in range(LOGITS.size)], wanted, atol=2e-5, rtol=0)


@pytest.mark.parametrize("case", CASES, ids=named)
def test_draws_follow_the_narrowed_distribution(case):
    rig = Rig("onnxruntime", **case["parameters"])
    counts = np.zeros(LOGITS.size)
    for seed in range(DRAWS):
        if seed == 0 or any("penalty" in key for key in case["parameters"]):
            rig.start(seed)
        else:
            row = SamplingRow(**{"temperature": 1.0, **case["parameters"]}, seed=seed)
            rig.sampler.set_row(0, row, PROMPT, len(PROMPT))
        counts[rig.draw(LOGITS)] += 1
    kept, probabilities = case["kept_ids"], np.array(case["kept_probabilities"])
    assert set(np.flatnonzero(counts)) <= set(kept)
    # Seeds are fixed, so this is no chance: five standard deviations keep it true for any sound generator.
    deviation = np.sqrt(probabilities * (1 - probabilities) * DRAWS)
    assert np.all(np.abs(counts[kept] - probabilities * DRAWS) <= 5 * deviation + 1)
