"""GGUF files that hold a small vocabulary and nothing else, made from the vocabularies beside the fixtures."""

from __future__ import annotations

from pathlib import Path

from gguf_bytes import GGUFBytes
from mixed_strings import read_fixture

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def _model() -> dict:
    return {
        "general.architecture": "llama", "general.name": "Vocabulary", "llama.block_count": 1,
        "llama.context_length": 128, "llama.embedding_length": 64, "llama.feed_forward_length": 64,
        "llama.attention.head_count": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip


def byte_level_file(path: Path, pre: str) -> Path:
    content = read_fixture("byte_level_vocabulary.json")
    metadata = {
        **_model(),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": content["tokens"],
        "tokenizer.ggml.token_type": content["types"],
        "tokenizer.ggml.merges": content["merges"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": False,
    }
    return GGUFBytes(metadata).write(path)


def sentencepiece_file(path: Path, add_space_prefix: bool) -> Path:
    content = read_fixture("sentencepiece_vocabulary.json")
    metadata = {
        **_model(),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": content["tokens"],
        "tokenizer.ggml.token_type": content["types"],
        "tokenizer.ggml.scores": [float(score) for score in content["scores"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }
    return GGUFBytes(metadata).write(path)
