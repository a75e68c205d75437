"""What is made of a calibration: smoothed inputs, errors made good for, eight bits where they matter."""

from __future__ import annotations

import json

import numpy as np
import pytest
from family_engines import LIMITS, ROWS, checkpoint
from reference_decoder import ReferenceDecoder
from reference_llama import read_folder
from seam_runner import SeamRunner
from tiny_families import TINY_FAMILIES

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.build_plan import plan_build
from edgellm_ros.builder.checkpoint import open_checkpoint
from edgellm_ros.builder.families import read_config
from edgellm_ros.builder.families.decoder import HEAD, decoder_tensors
from edgellm_ros.builder.input_moments import InputMoments, tile_of
from edgellm_ros.builder.quantize_int4 import round_to_int4
from edgellm_ros.builder.random_weights import RandomCheckpoint, write_random_llama_checkpoint, write_safetensors
from edgellm_ros.builder.smoothing import smoothing, smoothing_factors
from edgellm_ros.builder.weights import Weight, checkpoint_weight
from edgellm_ros.errors import CheckpointError

DOWN = "model.layers.0.mlp.down_proj.weight"


def random_squares(weights, seed=0):
    """Mean squares of the inputs of every matrix, of very different sizes."""
    generator = np.random.default_rng(seed)
    return {
        name: (10 ** generator.uniform(-4, 4, weight.shape[1])).astype(np.float32)
        for name, weight in weights.items()
        if len(weight.shape) == 2
    }


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_smoothing_leaves_the_model_as_it_was(family):
    config, tensors = read_folder(checkpoint(family))
    source = open_checkpoint(checkpoint(family))
    found = read_config(source.config)
    weights = {name: checkpoint_weight(source, name) for name in decoder_tensors(found)}
    smoothed = smoothing(found, weights)
    smoothed.find(random_squares(smoothed.weights))
    changed = {name: weight.read(0, weight.rows) for name, weight in smoothed.weights.items()}
    source.close()
    assert sum(not np.array_equal(changed[name], tensors[name]) for name in tensors) > found.num_hidden_layers * 7
    wanted = ReferenceDecoder(config, tensors).logits(ROWS[0])
    logits = ReferenceDecoder({**config, "tie_word_embeddings": False}, changed).logits(ROWS[0])
    assert np.abs(logits - wanted).max() < 2e-4


def test_smoothed_weights_before_a_calibration_are_the_checkpoints():
    source = open_checkpoint(checkpoint("llama"))
    config = read_config(source.config)
    weights = {name: checkpoint_weight(source, name) for name in decoder_tensors(config)}
    smoothed = smoothing(config, weights).weights
    for name, weight in weights.items():
        np.testing.assert_array_equal(smoothed[name].read(0, weight.rows), weight.read(0, weight.rows))
    np.testing.assert_array_equal(smoothed[HEAD].read(0, 9), weights["model.embed_tokens.weight"].read(0, 9))
    source.close()


@pytest.mark.parametrize("squares", [np.zeros(8), np.full(8, np.nan), np.full(8, np.inf)], ids=["zero", "nan", "inf"])
def test_inputs_that_say_nothing_are_left_alone(squares):
    np.testing.assert_array_equal(smoothing_factors(squares.astype(np.float32)), np.ones(8, dtype=np.float32))


def test_stored_integers_stay_where_rows_alone_are_divided():
    generator = np.random.default_rng(0)
    integers = generator.integers(-127, 128, (56, 2, 32)).astype(np.int8)
    scales = generator.uniform(0.1, 1, (56, 2)).astype(np.float32)
    values = (integers * scales[..., None]).reshape(56, 64)
    config = read_config({**TINY_FAMILIES["llama"], "hidden_size": 64, "intermediate_size": 56})
    up = "model.layers.0.mlp.up_proj.weight"
    source = RandomCheckpoint({**TINY_FAMILIES["llama"], "hidden_size": 64, "intermediate_size": 56})
    weights = {name: checkpoint_weight(source, name) for name in decoder_tensors(config)}
    weights[up] = Weight(up, values.shape, lambda a, b: values[a:b], lambda a, b: (integers[a:b], scales[a:b]))
    smoothed = smoothing(config, weights)
    smoothed.find({DOWN: random_squares({DOWN: weights[DOWN]})[DOWN]})
    found = smoothed.weights[up].read_int8(3, 20)
    assert found is not None
    np.testing.assert_array_equal(found[0], integers[3:20])
    read = smoothed.weights[up].read(3, 20)
    np.testing.assert_allclose((found[0] * found[1][..., None]).reshape(17, 64), read, rtol=1e-5)


def test_moments_after_smoothing_are_those_of_the_smoothed_inputs():
    x = np.random.default_rng(1).normal(size=(300, 56)).astype(np.float32) * np.linspace(0.1, 9, 56, dtype=np.float32)
    source = open_checkpoint(checkpoint("llama"))
    config = read_config(source.config)
    smoothed = smoothing(config, {name: checkpoint_weight(source, name) for name in decoder_tensors(config)})
    smoothed.find({DOWN: np.square(x).mean(axis=0)})
    y = x / smoothed.factors[DOWN]
    moments = [(values.T @ values / len(x)).reshape(1, 56, 56) for values in (x, y)]
    found = smoothed.moments(DOWN + "*2.0", InputMoments(moments[0]))
    np.testing.assert_allclose(found.values, moments[1], rtol=1e-4, atol=1e-5)
    source.close()


@pytest.mark.parametrize("columns", [64, 96, 576, 1536, 2048, 6912])
def test_tiles_are_whole_blocks_and_cover_the_columns(columns):
    assert tile_of(columns) % 32 == 0
    assert columns % tile_of(columns) == 0


def test_columns_that_are_no_whole_blocks_have_no_tiles():
    assert tile_of(40) == 0


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("block", [32, 64])
def test_later_columns_make_good_for_errors_of_earlier_ones(block, symmetric):
    generator = np.random.default_rng(2)
    values = generator.normal(size=(64, 128)).astype(np.float32)
    hidden = generator.normal(size=(2000, 24)) @ generator.normal(size=(24, 128))
    inputs = (hidden + 0.3 * generator.normal(size=(2000, 128))).astype(np.float32)
    moments = InputMoments((inputs.T @ inputs / len(inputs)).reshape(1, 128, 128))
    errors = []
    for known in (None, moments):
        integers, scales, zeros = round_to_int4(values.copy(), block, known, symmetric=symmetric)
        low, high = (-8, 7) if symmetric else (0, 15)
        assert integers.min() >= low
        assert integers.max() <= high
        rounded = ((integers - zeros.astype(np.float32)[..., None]) * scales[..., None]).reshape(values.shape)
        errors.append(float(np.square(inputs @ (rounded - values).T).mean()))
    assert errors[1] < 0.6 * errors[0]


def outlying_checkpoint(path):
    """A Llama whose inputs of matrices have a few entries that are forty times as large as the rest."""
    folder = write_random_llama_checkpoint(path, hidden_size=128, intermediate_size=192, seed=3)
    source = RandomCheckpoint(json.loads((folder / "config.json").read_text()), 3)

    def read(name, start, stop):
        values = source.read_rows(name, start, stop)
        if "layernorm" in name:
            values = values.copy()
            values[[5, 70]] *= 40
        elif values.shape[-1] == 128 and "layers" in name:
            values[:, [5, 70]] /= 40
        return values

    write_safetensors(folder / "model.safetensors", source.shapes, read)
    return folder


@pytest.mark.parametrize("precision, gain", [("int8", 0.5), ("int4", 0.8)])
def test_calibrated_engines_are_nearer_to_full_precision(tmp_path, precision, gain):
    folder = outlying_checkpoint(tmp_path / "checkpoint")
    logits = {}
    for name, calibrate in (("fp32", False), (precision, False), (precision, True)):
        path = build_engine(
            folder, tmp_path / f"{name}-{calibrate}", precision=name, limits=LIMITS, calibrate=calibrate
        )
        runner = SeamRunner(path)
        logits[name, calibrate] = runner.run([ROWS[0]])[0]
        runner.close()
        assert {file.name for file in path.iterdir() if file.is_dir()} == set()
    wanted = logits["fp32", False]
    plain, calibrated = (np.linalg.norm(logits[precision, way] - wanted) for way in (False, True))
    assert calibrated < gain * plain


@pytest.mark.parametrize(
    "tokenizer, said",
    [
        ({"version": "1.0", "model": {"type": "Nothing"}}, "tokenizer.json is no tokenizer.*fetch it again"),
        ({"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}, "gives no tokens.*--no-calibration"),
    ],
    ids=["of an unknown kind", "without tokens"],
)
def test_a_tokenizer_that_cannot_calibrate_is_one_sentence(tmp_path, tokenizer, said):
    folder = write_random_llama_checkpoint(tmp_path / "checkpoint")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(CheckpointError, match=said):
        build_engine(folder, tmp_path / "engine", precision="int8", limits=LIMITS)
    assert not (tmp_path / "engine").exists()


def test_four_bits_keep_eight_where_inputs_are_largest():
    source = open_checkpoint(checkpoint("llama"))
    plan = plan_build(source, precision="int4", limits=LIMITS, lowering="onnxruntime")
    stored = plan.graph.precision
    layers = plan.config.num_hidden_layers
    assert stored.stored_bits(f"model.layers.{layers - 1}.mlp.down_proj.weight") == 8
    assert stored.stored_bits("model.layers.0.mlp.down_proj.weight") == 4
    assert stored.stored_bits("model.layers.0.self_attn.v_proj.weight") == 8
    assert stored.stored_bits("model.embed_tokens.weight") == 8
    source.close()
