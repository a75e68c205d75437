"""Damaged and hostile GGUF files are refused in one sentence that names the fault."""

from __future__ import annotations

import os
import re
import struct

import numpy as np
import pytest
from build_places import LIMITS
from gguf_bytes import ARRAY, STRING, GGUFBytes, llama_gguf, text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.gguf_checkpoint import GGUFCheckpoint
from edgellm_ros.builder.gguf_file import GGUFFile
from edgellm_ros.errors import CheckpointError

MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_frequency_factors_beside_another_scaling_are_refused(block_model, tmp_path):
    _, config, tensors = block_model
    file = llama_gguf(config, tensors)
    file.metadata["llama.rope.scaling.factor"] = 2.0
    file.tensors["rope_freqs.weight"] = ((24,), 0, np.ones(24, np.float32).tobytes())
    assert "rope_freqs.weight" in refusal(file.write(tmp_path / "m.gguf"))


def test_frequency_factors_without_end_are_refused_before_they_are_read(block_model, tmp_path):
    _, config, tensors = block_model
    file = llama_gguf(config, tensors)
    file.tensors["rope_freqs.weight"] = ((1 << 38,), 0, b"")
    path = file.write(tmp_path / "m.gguf")
    os.truncate(path, (1 << 40) + (1 << 24))
    assert "rope_freqs.weight" in refusal(path)


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


def test_truncation_anywhere_in_the_header_is_refused(block_model, tmp_path):
    _, config, tensors = block_model
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
def test_bad_metadata_is_named(block_model, tmp_path, key, content, said):
    _, config, tensors = block_model
    file = llama_gguf(config, tensors)
    file.metadata |= {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0, key: content}
    assert said in refusal(file.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("key", ["llama.embedding_length", "tokenizer.ggml.tokens", "general.architecture"])
def test_missing_metadata_is_named(block_model, tmp_path, key):
    _, config, tensors = block_model
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
def test_bad_tensors_are_named(block_model, tmp_path, shape, kind, data, said):
    _, config, tensors = block_model
    file = llama_gguf(config, tensors)
    file.tensors["blk.0.attn_norm.weight"] = (shape, kind, data)
    sentence = refusal(file.write(tmp_path / "m.gguf"))
    assert said in sentence
    assert "blk.0.attn_norm.weight" in sentence


def test_a_sentencepiece_token_of_endless_length_is_refused_at_once(block_model, tmp_path):
    _, config, tensors = block_model
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


def test_tensors_that_share_bytes_are_refused(block_model, tmp_path):
    _, config, tensors = block_model
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
def test_a_scale_that_is_not_finite_is_one_sentence_and_no_warning(block_model, tmp_path, kind, scale, precision):
    _, config, tensors = block_model
    file = llama_gguf(config, tensors, kind)
    shape, number, data = file.tensors["blk.1.ffn_up.weight"]
    file.tensors["blk.1.ffn_up.weight"] = (shape, number, np.float16(scale).tobytes() + data[2:])
    with pytest.raises(CheckpointError, match="not finite"):
        build_engine(
            file.write(tmp_path / "m.gguf"), tmp_path / "engine", precision=precision, limits=LIMITS, calibrate=False
        )


@pytest.mark.parametrize("name", ["model.layers.0.input_layernorm.weight", "blk.00.attn_norm.weight"])
def test_another_name_of_the_same_tensor_is_refused(block_model, tmp_path, name):
    _, config, tensors = block_model
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
def test_flipped_bytes_give_a_sentence_or_sound_numbers(block_model, tmp_path, data):
    _, config, tensors = block_model
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
