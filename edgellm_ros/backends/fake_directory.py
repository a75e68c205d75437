"""An engine directory around a script: every file that a model's has, but the graph."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..engine_format import (
    CHAT_TEMPLATE_FILE,
    CONFIG_FILE,
    EMBEDDING_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    BuilderLimits,
    EngineConfig,
    RopeConfig,
)
from ..engine_manifest import MANIFEST_FILE, Manifest
from .fake_script import END_OF_TEXT, END_OF_TURN, SPECIAL_TOKENS, FakeScript, FakeVocabulary
from .host_embeddings import TENSOR_NAME

FAKE_FILE = "fake.json"
HIDDEN_SIZE = 4
LAYERS = ((1, 2),)  # (num_kv_heads, head_dim): what one slot of the fake cache could be taken for
# One frequency so low that an angle names its position: the engine reads positions back from the tables.
INVERSE_FREQUENCY = (2.0**-20,)
ROPE_KIND = "default"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def embedding_rows(vocab_size: int) -> np.ndarray:
    """float32 [V, 4]: (id, 1, -id, 0.5), so that a row says which id it is and damage to it shows."""
    rows = np.empty((vocab_size, HIDDEN_SIZE), dtype=np.float32)
    rows[:, 0] = np.arange(vocab_size)
    rows[:, 1] = 1.0
    rows[:, 2] = -rows[:, 0]
    rows[:, 3] = 0.5
    return rows


def write_fake_engine_directory(
    path: Path, script: FakeScript, *, max_batch: int = 4, max_input: int = 1024, max_kv: int = 4096
) -> Path:
    """Write an engine directory that ``FakeBackend`` runs; returns ``path``.

    :raises EngineDirectoryError: the limits do not fit together.
    """
    limits = BuilderLimits(max_batch, max_input, max_kv)
    vocabulary = FakeVocabulary(script)
    config = EngineConfig(
        model="fake",
        vocab_size=vocabulary.size,
        hidden_size=HIDDEN_SIZE,
        num_hidden_layers=len(LAYERS),
        num_attention_heads=LAYERS[0][0],
        kv_layers=LAYERS,
        kv_cache_dtype="float32",
        rope={ROPE_KIND: RopeConfig(INVERSE_FREQUENCY)},
        eos_token_id=(END_OF_TURN, END_OF_TEXT),
        limits=limits,
        pad_token_id=END_OF_TEXT,
        max_position_embeddings=max_kv,
    )
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": max_kv,
        "clean_up_tokenization_spaces": False,
    }
    files = {
        FAKE_FILE: _json(script.to_json()),
        CONFIG_FILE: _json(config.to_json()),
        TOKENIZER_FILE: _json(_tokenizer(vocabulary)),
        TOKENIZER_CONFIG_FILE: _json(tokenizer_config),
        CHAT_TEMPLATE_FILE: CHAT_TEMPLATE.encode("utf-8"),
        EMBEDDING_FILE: _safetensors(embedding_rows(vocabulary.size)),
    }
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (path / name).write_bytes(content)
    manifest = Manifest(
        lowering="fake",
        precision="fp32",
        builder_version=__version__,
        source="a script of the fake backend",
        licence="Apache-2.0",
        fingerprint=hashlib.sha256(b"".join(files.values())).hexdigest(),
        files={name: len(content) for name, content in files.items()},
    )
    (path / MANIFEST_FILE).write_bytes(_json(manifest.to_json()))
    return path


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode("utf-8")


def _safetensors(rows: np.ndarray) -> bytes:
    entry = {"dtype": "F32", "shape": list(rows.shape), "data_offsets": [0, rows.nbytes]}
    header = json.dumps({TENSOR_NAME: entry}).encode("ascii")
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + rows.tobytes()


def _byte_letters() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE (the table of GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters, extra = [], 0
    for byte in range(256):
        if byte in printable:
            letters.append(chr(byte))
        else:
            letters.append(chr(0x100 + extra))
            extra += 1
    return letters


def _tokenizer(vocabulary: FakeVocabulary) -> dict[str, Any]:
    """``tokenizer.json``: byte-level BPE without merges, so a text is one token per byte."""
    letters = _byte_letters()
    ids = {letter: byte for byte, letter in enumerate(letters)}
    ids.update({"".join(letters[byte] for byte in piece): vocabulary.id_of(piece) for piece in vocabulary.pieces})
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 256 + index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index, token in enumerate(SPECIAL_TOKENS)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {**ids, **{token: 256 + index for index, token in enumerate(SPECIAL_TOKENS)}},
            "merges": [],
        },
    }
