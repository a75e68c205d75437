"""GGUF blocks as eight-bit integers: exact where they can be, and nearer than rounding the weights where not."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from edgellm_ros.builder.gguf_int8 import affine_to_int8
from edgellm_ros.builder.gguf_types import TYPES
from edgellm_ros.builder.quantize import quantize_int8

WITH_INTEGERS = {kind.name: number for number, kind in TYPES.items() if kind.to_int8 is not None}
EXACT = ("Q4_0", "Q5_0", "Q8_0")


def random_blocks(name: str, count: int = 400) -> np.ndarray:
    """Blocks of any content, whose levels lie around zero where there is a minimum."""
    kind = TYPES[WITH_INTEGERS[name]]
    generator = np.random.default_rng(kind.bytes)
    blocks = generator.integers(0, 256, (count, kind.bytes), dtype=np.uint8)
    scales = generator.uniform(1e-3, 2e-2, count).astype("<f2")
    middle = generator.uniform(6, 9, count) * (2 if "5" in name else 1)
    minima = (scales * middle * (1 if name.endswith("K") else -1)).astype("<f2")
    blocks[:, :2] = scales.view(np.uint8).reshape(-1, 2)
    if name not in EXACT:
        blocks[:, 2:4] = minima.view(np.uint8).reshape(-1, 2)
    if name.endswith("K"):  # scales and minima of sub-blocks that are alike
        blocks[:, 4:16] = blocks[:, 4:16] & 0x0F | 0x50
    return blocks


def restored(name: str, blocks: np.ndarray) -> np.ndarray:
    integers, scales = TYPES[WITH_INTEGERS[name]].to_int8(blocks)
    assert integers.dtype == np.int8
    assert scales.dtype == np.float32
    assert integers.shape == (len(scales), 32)
    return (integers * scales[:, None]).reshape(len(blocks), -1)


@pytest.mark.parametrize("name", sorted(WITH_INTEGERS))
def test_integers_say_what_the_block_says(name):
    blocks = random_blocks(name)
    wanted = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
    found = restored(name, blocks)
    if name in EXACT:
        np.testing.assert_array_equal(found, wanted)
        return
    integers, scales = quantize_int8(wanted)
    rounded = (integers * scales[:, :, None]).reshape(wanted.shape)
    share = 0.7 if "5" in name else 0.3
    assert np.square(found - wanted).mean() < share * np.square(rounded - wanted).mean()
    assert np.abs(found - wanted).max() <= np.abs(wanted).max() / 120


@pytest.mark.parametrize("name", sorted(WITH_INTEGERS))
@pytest.mark.parametrize("kind", ["zeros", "ones"])
def test_blocks_without_a_spread_stay_what_they_are(name, kind):
    size = TYPES[WITH_INTEGERS[name]].bytes
    blocks = np.zeros((3, size), dtype=np.uint8)
    if kind == "ones":
        blocks[:, :2] = np.array([1.0], dtype="<f2").view(np.uint8)
    wanted = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
    np.testing.assert_allclose(restored(name, blocks), wanted, atol=1e-6)


@pytest.mark.parametrize(
    "scale, minimum",
    [(0.0, 0.0), (0.0, 3.0), (1e-8, 5.0), (-0.01, 0.1), (0.01, -0.075), (1e-20, 1e-20), (1e-42, 0.0)],
    ids=str,
)
def test_odd_scales_and_minima_keep_within_half_a_step(scale, minimum):
    levels = np.arange(32, dtype=np.uint8)[None] % 16
    given = np.array([scale], dtype=np.float32), np.array([minimum], dtype=np.float32)
    integers, scales = affine_to_int8(levels, *given)
    wanted = given[0] * levels + given[1]
    assert np.isfinite(scales).all()
    assert np.abs(integers * scales[:, None] - wanted).max() <= max(float(np.abs(wanted).max()) / 127, 1e-38)
