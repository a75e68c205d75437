"""What fewer bits cost: SmolLM2's perplexity on a text that no calibration has seen, against float32."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.calibration_text import CALIBRATION_TEXT
from edgellm_ros.engine_format import BuilderLimits
from edgellm_ros.runtime.perplexity import measure_perplexity

TEXT = (Path(__file__).parent / "perplexity_text.txt").read_text(encoding="utf-8")
LIMITS = BuilderLimits(1, 1024, 1024)


def measure(folder, precision, **settings):
    engine = build_engine("smollm2", folder / precision, precision=precision, limits=LIMITS, **settings)
    found = measure_perplexity(engine, TEXT)
    assert found.tokens > 4000
    return found.perplexity


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    return measure(tmp_path_factory.mktemp("smollm2"), "fp32")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("precision, most", [("int8", 0.005), ("int4", 0.05)])
def test_fewer_bits_cost_little(exact, tmp_path, precision, most):
    assert measure(tmp_path, precision) < exact * (1 + most)


def test_the_measured_text_is_no_part_of_the_calibration():
    lines = {line.strip() for line in CALIBRATION_TEXT.splitlines() if len(line.strip()) > 20}
    assert not lines & {line.strip() for line in TEXT.splitlines()}
