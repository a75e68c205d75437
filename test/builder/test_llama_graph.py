"""The graph of an engine directory against an independent forward pass, on ONNX Runtime."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
from engine_runner import EngineRunner
from reference_llama import ReferenceLlama, read_folder

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.random_weights import write_random_llama_checkpoint, write_safetensors
from edgellm_ros.engine_format import BuilderLimits

TOLERANCE = 1e-4
LIMITS = BuilderLimits(max_batch_size=4, max_input_len=32, max_kv_cache_capacity=64)
SHAPES = {
    "tied-grouped": {},
    "untied": {"tie_word_embeddings": False},
    "one-kv-head": {"num_attention_heads": 6, "num_key_value_heads": 1},
    "no-grouping": {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 40},
    "wide-heads": {"head_dim": 64, "hidden_size": 36, "num_hidden_layers": 3},
    "narrow-heads": {"head_dim": 8, "hidden_size": 72, "intermediate_size": 33},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "another-base": {"rope_theta": 500000.0, "vocab_size": 401},
    "bfloat16-shards": {"dtype": "BF16", "shards": 3},
    "float16": {"dtype": "F16"},
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """Builds an engine of random weights; returns its directory and the checkpoint's folder."""

    def make(seed=3, precision="fp32", **shape):
        folder = tmp_path_factory.mktemp("llama")
        checkpoint = write_random_llama_checkpoint(folder / "checkpoint", seed=seed, **shape)
        return build_engine(checkpoint, folder / "engine", precision=precision, limits=LIMITS), checkpoint

    return make


def tokens(count, seed=0):
    return np.random.default_rng(seed).integers(3, 300, count).tolist()


def ragged_logits(path):
    """Three rows of different lengths: prompts in two ragged chunks, then four steps of one token each."""
    rows = [tokens(count, seed) for seed, count in enumerate((13, 20, 9))]
    runner = EngineRunner(path, rows=3, capacity=40)
    found = [[], [], []]
    past = [0, 0, 0]

    def step(lengths):
        chunks = [row[start : start + length] for row, start, length in zip(rows, past, lengths, strict=True)]
        logits = runner.run(chunks, past)
        for row, length in enumerate(lengths):
            found[row].append(logits[row, :length])
            past[row] += length

    step((4, 7, 2))
    step((5, 9, 3))
    for _ in range(4):
        step((1, 1, 1))
    return [(row[:length], np.concatenate(parts)) for row, length, parts in zip(rows, past, found, strict=True)]


def worst_difference(path, reference):
    return max(np.abs(logits - reference.logits(ids)).max() for ids, logits in ragged_logits(path))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_ragged_chunks_and_decode_equal_the_reference(engine, shape):
    path, checkpoint = engine(**shape)
    assert worst_difference(path, ReferenceLlama(*read_folder(checkpoint))) < TOLERANCE


def test_positions_with_gaps_are_honoured_on_a_first_prompt(engine):
    path, checkpoint = engine()
    ids = tokens(6)
    positions = [0, 1, 5, 6, 20, 21]
    found = EngineRunner(path, rows=1, capacity=16).run([ids], [0], [positions])[0]
    reference = ReferenceLlama(*read_folder(checkpoint))
    assert np.abs(found - reference.logits(ids)).max() > 100 * TOLERANCE
    rotated = _WithPositions(*read_folder(checkpoint), extra={"positions": positions})
    assert np.abs(found - rotated.logits(ids)).max() < TOLERANCE


class _WithPositions(ReferenceLlama):
    def _rotate(self, x):
        offsets = np.array(self.extra["positions"]) - np.arange(len(x))
        return np.concatenate(
            [
                dataclasses.replace(self, position_offset=int(offset))._plain_rotation(x)[index : index + 1]
                for index, offset in enumerate(offsets)
            ]
        )

    def _plain_rotation(self, x):
        return ReferenceLlama._rotate(self, x)


def test_capacity_of_the_cache_changes_nothing(engine):
    path, _ = engine()
    ids = tokens(11)
    small = EngineRunner(path, rows=1, capacity=11).run([ids], [0])
    large = EngineRunner(path, rows=1, capacity=64).run([ids], [0])
    assert np.abs(small - large).max() < TOLERANCE / 10


def test_a_row_does_not_depend_on_the_others(engine):
    path, _ = engine()
    ids = tokens(10)
    alone = EngineRunner(path, rows=1, capacity=32).run([ids], [0])[0]
    together = EngineRunner(path, rows=3, capacity=32).run([tokens(12, 5), ids, tokens(3, 6)], [0, 0, 0])[1, :10]
    assert np.abs(alone - together).max() < TOLERANCE / 10


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=lambda scaling: scaling["rope_type"],
)
def test_scaled_rotation_equals_the_reference(engine, scaling):
    path, checkpoint = engine(rope_scaling=scaling)
    config, tensors = read_folder(checkpoint)
    plain = ReferenceLlama(config, tensors)
    assert worst_difference(path, plain) > 10 * TOLERANCE
    frequencies = config["rope_theta"] ** (-np.arange(0, 16, 2) / 16)
    if scaling["rope_type"] == "linear":
        scaled = frequencies / 4
    else:
        wavelength = 2 * np.pi / frequencies
        smooth = (64 / wavelength - 1) / 3
        blended = (1 - smooth) * frequencies / 8 + smooth * frequencies
        scaled = np.where(wavelength > 64, frequencies / 8, np.where(wavelength < 16, frequencies, blended))
    assert worst_difference(path, dataclasses.replace(plain, frequencies=scaled)) < TOLERANCE


BREAKS = {
    "no-mask": {"causal": False},
    "no-rotation": {"rotate": False},
    "wrong-base": {"frequencies": 1000.0 ** (-np.arange(0, 16, 2) / 16)},
}


@pytest.mark.parametrize("change", BREAKS.values(), ids=BREAKS)
def test_the_comparison_notices_a_broken_mask_or_rotation(engine, change):
    path, checkpoint = engine()
    broken = dataclasses.replace(ReferenceLlama(*read_folder(checkpoint)), **change)
    assert worst_difference(path, broken) > 10 * TOLERANCE


@pytest.mark.parametrize("name", sorted({name.rsplit(".", 1)[0] for name in [
    "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight",
    "model.layers.0.self_attn.v_proj.weight", "model.layers.1.self_attn.o_proj.weight",
    "model.layers.0.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight",
    "model.layers.0.input_layernorm.weight", "model.layers.1.post_attention_layernorm.weight", "model.norm.weight",
]}))  # fmt: skip
def test_the_comparison_notices_one_broken_tensor(engine, tmp_path, name):
    _, checkpoint = engine()
    config, tensors = read_folder(checkpoint)
    broken = tmp_path / "broken"
    shutil.copytree(checkpoint, broken)
    changed = {key: values.astype(np.float32) for key, values in tensors.items()}
    changed[name + ".weight"] = changed[name + ".weight"][::-1]
    write_safetensors(
        broken / "model.safetensors",
        {key: values.shape for key, values in changed.items()},
        lambda key, start, stop: changed[key][start:stop],
    )
    path = build_engine(broken, tmp_path / "engine", limits=LIMITS)
    assert worst_difference(path, ReferenceLlama(config, tensors)) > 10 * TOLERANCE


@pytest.mark.parametrize("shape", [SHAPES["tied-grouped"], SHAPES["untied"], SHAPES["narrow-heads"]], ids=str)
def test_int8_stays_near_the_reference(engine, shape):
    """Activations are rounded too, so the bound is that of one part in about a hundred of the logits' spread."""
    path, checkpoint = engine(precision="int8", **shape)
    reference = ReferenceLlama(*read_folder(checkpoint))
    ids = tokens(16)
    found = EngineRunner(path, rows=1, capacity=16).run([ids], [0])[0]
    wanted = reference.logits(ids)
    assert np.sqrt(((found - wanted) ** 2).mean()) < 0.04 * wanted.std()
