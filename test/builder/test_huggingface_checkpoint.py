"""Hugging Face folders: element types, shards, and one sentence for everything that can be wrong with them."""

from __future__ import annotations

import json
import shutil
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_llama import read_folder
from safetensors.numpy import load_file

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.huggingface_checkpoint import HuggingFaceCheckpoint
from edgellm_ros.builder.random_weights import RandomCheckpoint, write_random_llama_checkpoint, write_safetensors
from edgellm_ros.builder.safetensors_file import SafetensorsFile
from edgellm_ros.engine_format import BuilderLimits, EngineDirectoryError, open_engine_directory
from edgellm_ros.errors import CheckpointError

LIMITS = BuilderLimits(2, 16, 32)
MANY = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return write_random_llama_checkpoint(tmp_path_factory.mktemp("sound") / "checkpoint")


@pytest.fixture
def folder(sound, tmp_path):
    shutil.copytree(sound, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def refusal(folder, tmp_path, **options):
    """The sentence of a refused build, after which nothing may be left."""
    with pytest.raises((CheckpointError, EngineDirectoryError)) as caught:
        build_engine(folder, tmp_path / "out" / "engine", limits=options.pop("limits", LIMITS), **options)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rewrite(folder, change):
    """Apply ``change(header)`` to the header of the weights, their data untouched."""
    path = folder / "model.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header = change(header) or header
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def set_config(folder, **keys):
    config = json.loads((folder / "config.json").read_text())
    config.update(keys)
    (folder / "config.json").write_text(json.dumps({key: item for key, item in config.items() if item != "absent"}))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shards", [1, 4])
def test_every_element_type_and_sharding_reads_exactly(tmp_path, dtype, shards):
    folder = write_random_llama_checkpoint(tmp_path / "m", dtype=dtype, shards=shards)
    config, tensors = read_folder(folder)
    checkpoint = HuggingFaceCheckpoint(folder)
    wanted = RandomCheckpoint(config)
    assert set(checkpoint.shapes) == set(tensors) == set(wanted.shapes)
    for name, values in tensors.items():
        found = checkpoint.read_rows(name, 3, len(values))
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, values[3:], err_msg=name)
        np.testing.assert_allclose(found, wanted.read_rows(name, 3, len(values)), rtol=2**-7, atol=1e-6)
    checkpoint.close()


def test_written_files_are_those_of_the_public_package(sound):
    ours = SafetensorsFile(sound / "model.safetensors")
    theirs = load_file(sound / "model.safetensors")
    assert set(theirs) == set(ours.entries)
    for name, values in theirs.items():
        np.testing.assert_array_equal(ours.read_rows(name, 0, len(values)), values)
    ours.close()


def test_truncation_anywhere_is_refused(folder, tmp_path):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    for offset in {*range(0, 40), *np.linspace(40, len(content) - 1, 120, dtype=int).tolist()}:
        path.write_bytes(content[:offset])
        assert str(path) in refusal(folder, tmp_path), offset


def test_a_file_that_shrinks_during_the_build_is_refused(folder, tmp_path):
    path = folder / "model.safetensors"

    def shrink(state):
        if state.stage == "writing weights":
            with path.open("r+b") as file:
                file.truncate(path.stat().st_size // 2)

    assert str(path) in refusal(folder, tmp_path, progress=shrink)


HEADERS = {
    "empty": b"",
    "short": b"\x10\0\0",
    "huge": struct.pack("<Q", 2**63) + b"{}",
    "above-the-limit": struct.pack("<Q", 200 * 2**20) + b"{}",
    "longer-than-the-file": struct.pack("<Q", 1000) + b"{}",
    "not-json": struct.pack("<Q", 4) + b"{{{{",
    "not-text": struct.pack("<Q", 4) + b"\xff\xfe\xff\xfe",
    "not-an-object": struct.pack("<Q", 2) + b"[]",
    "deep": struct.pack("<Q", 200000) + b"[" * 200000,
    "twice": struct.pack("<Q", 14) + b'{"a":1, "a":2}',
    "big-number": struct.pack("<Q", 5004) + b'{"a":' + b"9" * 4998 + b"}",
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_hostile_headers_are_refused(folder, tmp_path, content):
    (folder / "model.safetensors").write_bytes(content)
    assert "model.safetensors" in refusal(folder, tmp_path)


NAME = "model.layers.0.mlp.up_proj.weight"
ENTRIES = {
    "no-dtype": {"shape": [80, 48], "data_offsets": [0, 15360]},
    "not-an-object": 7,
    "unknown-dtype": {"dtype": "F12", "shape": [80, 48], "data_offsets": [0, 15360]},
    "unhashable-dtype": {"dtype": ["F32"], "shape": [80, 48], "data_offsets": [0, 15360]},
    "negative-shape": {"dtype": "F32", "shape": [-80, -48], "data_offsets": [0, 15360]},
    "float-shape": {"dtype": "F32", "shape": [80.0, 48.0], "data_offsets": [0, 15360]},
    "true-shape": {"dtype": "F32", "shape": [True, 48], "data_offsets": [0, 192]},
    "huge-shape": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 15360]},
    "overflowing-shape": {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 0]},
    "many-dimensions": {"dtype": "F32", "shape": [1] * 100000, "data_offsets": [0, 4]},
    "offsets-backwards": {"dtype": "F32", "shape": [80, 48], "data_offsets": [15360, 0]},
    "offsets-beyond": {"dtype": "F32", "shape": [80, 48], "data_offsets": [10**9, 10**9 + 15360]},
    "offsets-negative": {"dtype": "F32", "shape": [80, 48], "data_offsets": [-15360, 0]},
    "three-offsets": {"dtype": "F32", "shape": [80, 48], "data_offsets": [0, 1, 2]},
    "bytes-of-another": {"dtype": "F32", "shape": [80, 48], "data_offsets": [0, 15360]},
    "size-and-shape-differ": {"dtype": "F32", "shape": [80, 49], "data_offsets": [0, 15360]},
    "integers": {"dtype": "I32", "shape": [80, 48], "data_offsets": [0, 15360]},
    "fp8": {"dtype": "F8_E4M3", "shape": [80, 48], "data_offsets": [0, 3840]},
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_a_bad_entry_is_named(folder, tmp_path, entry):
    rewrite(folder, lambda header: {**header, NAME: entry})
    assert NAME in refusal(folder, tmp_path)


def test_a_missing_tensor_is_named(folder, tmp_path):
    rewrite(folder, lambda header: {name: row for name, row in header.items() if name != NAME})
    assert NAME in refusal(folder, tmp_path)


def test_an_extra_tensor_is_named(folder, tmp_path):
    rewrite(folder, lambda header: {**header, "model.layers.0.surprise": header[NAME]})
    assert "model.layers.0.surprise" in refusal(folder, tmp_path)


def test_another_shape_is_named_with_both_shapes(folder, tmp_path):
    rewrite(folder, lambda header: {**header, NAME: {**header[NAME], "shape": [48, 80]}})
    sentence = refusal(folder, tmp_path)
    assert NAME in sentence
    assert "[48, 80]" in sentence
    assert "[80, 48]" in sentence


def test_rotary_buffers_and_the_second_name_of_a_tied_head_are_left_out(folder, tmp_path):
    checkpoint = RandomCheckpoint(json.loads((folder / "config.json").read_text()))
    checkpoint.shapes["model.layers.0.self_attn.rotary_emb.inv_freq"] = (8,)
    checkpoint.shapes["lm_head.weight"] = checkpoint.shapes["model.embed_tokens.weight"]
    write_safetensors(folder / "model.safetensors", checkpoint.shapes, checkpoint.read_rows)
    build_engine(folder, tmp_path / "engine", limits=LIMITS)


def test_values_that_are_not_finite_name_their_tensor(folder, tmp_path):
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    begin = 8 + length + json.loads(content[8 : 8 + length])[NAME]["data_offsets"][0]
    content[begin + 400 : begin + 404] = struct.pack("<f", float("nan"))
    path.write_bytes(content)
    for precision in ("fp32", "int8"):
        assert NAME in refusal(folder, tmp_path, precision=precision)


CONFIGS = {
    "architecture": ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
    "no-architecture": ({"architectures": "absent"}, "architectures"),
    "architecture-of-another-kind": ({"architectures": {"a": 1}}, "architectures"),
    "no-hidden-size": ({"hidden_size": "absent"}, "hidden_size"),
    "negative-layers": ({"num_hidden_layers": -2}, "num_hidden_layers"),
    "endless-layers": ({"num_hidden_layers": 10**7}, "num_hidden_layers"),
    "text-for-number": ({"intermediate_size": "80"}, "intermediate_size"),
    "true-for-number": ({"vocab_size": True}, "vocab_size"),
    "zero-heads": ({"num_attention_heads": 0}, "num_attention_heads"),
    "heads-not-a-multiple": ({"num_attention_heads": 5}, "num_key_value_heads"),
    "odd-head": ({"head_dim": 15}, "head_dim"),
    "activation": ({"hidden_act": "gelu"}, "gelu"),
    "epsilon": ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
    "negative-base": ({"rope_theta": -1}, "rope_theta"),
    "tied-as-text": ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    "longrope-rope": ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
    "rope-without-factor": ({"rope_scaling": {"type": "linear"}}, "factor"),
    "rope-as-text": ({"rope_scaling": "linear"}, "rope_scaling"),
    "partial-rotation": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "quantised": ({"quantization_config": {"quant_method": "awq"}}, "awq"),
    "eos-outside": ({"eos_token_id": 5000}, "eos_token_id"),
    "eos-as-text": ({"eos_token_id": "</s>"}, "eos_token_id"),
    "bos-outside": ({"bos_token_id": 5000}, "bos_token_id"),
}


@pytest.mark.parametrize(("keys", "said"), CONFIGS.values(), ids=CONFIGS)
def test_bad_configurations_are_named(folder, tmp_path, keys, said):
    set_config(folder, **keys)
    assert said in refusal(folder, tmp_path)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xff", b"[" * 100000], ids=range(5))
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_damaged_json_names_the_file(folder, tmp_path, name, content):
    (folder / name).write_bytes(content)
    assert name in refusal(folder, tmp_path)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors.index.json"])
def test_json_of_many_megabytes_is_refused_before_it_is_read(folder, tmp_path, name):
    with (folder / name).open("wb") as file:
        file.truncate(17 << 20)
    assert "bytes; want at most" in (sentence := refusal(folder, tmp_path)) and name in sentence


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_key_that_occurs_twice_is_refused(folder, tmp_path, name):
    content = (folder / name).read_text().rstrip().removesuffix("}") + ', "rope_theta": 1.0, "rope_theta": 2.0}'
    (folder / name).write_text(content.replace("rope_theta", "hidden_size") if name == "config.json" else content)
    assert "occurs twice" in (sentence := refusal(folder, tmp_path)) and name in sentence


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, tmp_path, name):
    (folder / name).unlink()
    assert name in refusal(folder, tmp_path)


def test_pytorch_files_are_refused_by_kind(folder, tmp_path):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "PyTorch" in refusal(folder, tmp_path)


INDEXES = {
    "no-map": ({}, "weight_map"),
    "map-of-another-kind": ({"weight_map": [1]}, "weight_map"),
    "outside-the-folder": ({"weight_map": {"a": "../x.safetensors"}}, "../x.safetensors"),
    "not-text": ({"weight_map": {"a": 7}}, "7"),
    "missing-shard": ({"weight_map": {"a": "nothing.safetensors"}}, "nothing.safetensors"),
    "missing-in-shard": ({"weight_map": {"a": "model.safetensors"}}, "'a'"),
    "unlisted-in-shard": ({"weight_map": {"model.norm.weight": "model.safetensors"}}, "lacks there"),
}


@pytest.mark.parametrize(("index", "said"), INDEXES.values(), ids=INDEXES)
def test_bad_shard_indexes_are_named(folder, tmp_path, index, said):
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert said in refusal(folder, tmp_path)


def test_end_tokens_are_the_union_with_the_generation_settings(folder, tmp_path):
    set_config(folder, eos_token_id=[2, 5])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7, 2]}))
    path = build_engine(folder, tmp_path / "engine", limits=LIMITS)
    assert open_engine_directory(path).config.eos_token_id == (2, 5, 7)


TEMPLATES = {
    "text": ("tokenizer_config.json", {"chat_template": "A"}, "A"),
    "named": ("tokenizer_config.json", {"chat_template": [{"name": "tool", "template": "B"},
                                                          {"name": "default", "template": "C"}]}, "C"),
    "own-json": ("chat_template.json", {"chat_template": "D"}, "D"),
}  # fmt: skip


@pytest.mark.parametrize(("file", "content", "wanted"), TEMPLATES.values(), ids=TEMPLATES)
def test_templates_are_found_where_models_keep_them(folder, tmp_path, file, content, wanted):
    (folder / "chat_template.jinja").unlink()
    (folder / file).write_text(json.dumps(content))
    path = build_engine(folder, tmp_path / "engine", limits=LIMITS)
    assert (path / "chat_template.jinja").read_text() == wanted


def test_the_licence_comes_from_the_model_card(folder, tmp_path):
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\nlicense: not this\n")
    path = build_engine(folder, tmp_path / "engine", limits=LIMITS)
    assert open_engine_directory(path).manifest.licence == "apache-2.0"


@MANY
@given(data=st.data())
def test_flipped_header_bytes_give_a_sentence(sound, tmp_path, data):
    folder = tmp_path / "flipped"
    shutil.copytree(sound, folder, dirs_exist_ok=True)
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, 7 + length))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        build_engine(folder, tmp_path / "engine", limits=LIMITS)
    except CheckpointError as error:
        assert "\n" not in str(error)
