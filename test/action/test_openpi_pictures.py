"""Pictures of policies of openpi: antialiased and of 8 bits, as Pillow makes them for openpi's client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgellm_ros.vision.processors.letterbox import LetterboxProcessor

PICTURES = np.load(Path(__file__).parent / "reference" / "openpi_pictures.npz")


@pytest.mark.parametrize("name", [name for name in PICTURES if name.startswith("given")])
def test_pictures_are_fitted_as_pillow_fits_them(name):
    process = LetterboxProcessor(32, 32, True, 1, smooth=True)
    found = process.process([PICTURES[name]]).inputs["pixel_values"][0].transpose(1, 2, 0)
    levels = np.rint((found + 1) * 127.5)
    assert np.abs(found - (levels / 127.5 - 1)).max() < 1e-6  # rounded to 8 bits
    wanted = PICTURES[name.replace("given", "fitted")].astype(float)
    assert np.abs(levels - wanted).max() <= 1 and (levels != wanted).mean() < 0.01
