"""Four-bit weights: what is stored means what it should, and costs less than rounding to the nearest step."""

from __future__ import annotations

import numpy as np
import pytest
from family_engines import LIMITS, ROWS
from seam_runner import SeamRunner

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.quantize import precision
from edgellm_ros.builder.quantize_int4 import pack, round_to_int4
from edgellm_ros.builder.random_weights import write_random_llama_checkpoint
from edgellm_ros.errors import CheckpointError


def weights(rows=24, columns=192, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


def restored(values, block, symmetric, moments=None):
    rows, columns = values.shape
    integers, scales, zeros = round_to_int4(values, block, moments, symmetric=symmetric)
    steps = integers.astype(np.float32) - zeros.astype(np.float32)[..., None]
    return (steps * scales[..., None]).reshape(rows, -1)[:, :columns]


def nearest(values, block, symmetric):
    x = values.reshape(len(values), -1, block)
    if symmetric:
        scale = np.abs(x).max(axis=2, keepdims=True) / 7
        return (np.clip(np.rint(x / scale), -8, 7) * scale).reshape(values.shape)
    low, high = np.minimum(x.min(axis=2, keepdims=True), 0), np.maximum(x.max(axis=2, keepdims=True), 0)
    scale = (high - low) / 15
    zero = np.rint(-low / scale)
    return ((np.clip(np.rint(x / scale) + zero, 0, 15) - zero) * scale).reshape(values.shape)


def squared_error(found, values):
    return float(np.square(found - values).sum())


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("block", [32, 64])
def test_the_search_beats_rounding_to_the_nearest_step(block, symmetric):
    values = weights()
    found = squared_error(restored(values, block, symmetric), values)
    assert found < (0.85 if symmetric else 0.95) * squared_error(nearest(values, block, symmetric), values)


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize(
    "values",
    [
        np.zeros((2, 64), np.float32),
        np.full((2, 64), 0.25, np.float32),
        np.full((2, 64), -3e-30, np.float32),
        weights(3, 40),
        np.concatenate((weights(2, 32), np.full((2, 32), 100, np.float32)), axis=1),
    ],
    ids=["zeros", "constant", "tiny", "columns that fill no block", "an outlying block"],
)
def test_odd_blocks_stay_close(values, symmetric):
    found = restored(values, 32, symmetric)
    assert np.isfinite(found).all()
    assert np.abs(found - values).max() <= max(0.1 * np.abs(values).max(), 1e-30)


def test_the_first_of_two_lies_in_the_low_half():
    assert pack(np.array([[1, 2, 15]], dtype=np.uint8)).tolist() == [[0x21, 0x0F]]
    assert pack(np.array([[-1, -8]], dtype=np.int8)).tolist() == [[0x8F]]


@pytest.mark.parametrize("name, block", [("int4", 48), ("int8", 64), ("fp32", 64)])
def test_a_block_that_a_precision_does_not_have_is_refused(name, block):
    with pytest.raises(CheckpointError, match=f"block_size is {block}"):
        precision(name, block)


@pytest.mark.parametrize("block", [32, 64])
@pytest.mark.parametrize("lowering", ["onnxruntime", "tensorrt"])
def test_an_engine_answers_much_as_in_full_precision(tmp_path, lowering, block):
    checkpoint = write_random_llama_checkpoint(tmp_path / "checkpoint", hidden_size=128, seed=3)
    logits = {}
    for name in ("fp32", "int4"):
        size = {"block_size": block} if name == "int4" else {}
        made = build_engine(checkpoint, tmp_path / name, precision=name, limits=LIMITS, lowering=lowering, **size)
        runner = SeamRunner(made)
        logits[name] = np.concatenate([row.ravel() for row in runner.run([ROWS[0]])])
        runner.close()
    distance = np.linalg.norm(logits["int4"] - logits["fp32"]) / np.linalg.norm(logits["fp32"])
    assert 1e-4 < distance < 0.25
