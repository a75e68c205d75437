"""GGUF files made byte by byte, sound ones and damaged ones."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from edgellm_ros.builder.random_weights import CHAT_TEMPLATE, SPECIAL_TOKENS, byte_characters
from edgellm_ros.errors import CheckpointError  # noqa: F401  (re-exported for the tests' convenience)

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(content: Any) -> bytes:
    """Type number and content of a metadata value."""
    if isinstance(content, bool):
        return struct.pack("<I?", BOOL, content)
    if isinstance(content, int):
        return struct.pack("<II", UINT32, content)
    if isinstance(content, float):
        return struct.pack("<If", FLOAT32, content)
    if isinstance(content, str):
        return struct.pack("<I", STRING) + text(content)
    if all(isinstance(item, str) for item in content):
        return struct.pack("<IIQ", ARRAY, STRING, len(content)) + b"".join(map(text, content))
    if any(isinstance(item, float) for item in content):
        return struct.pack(f"<IIQ{len(content)}f", ARRAY, FLOAT32, len(content), *content)
    return struct.pack(f"<IIQ{len(content)}i", ARRAY, INT32, len(content), *content)


@dataclass
class GGUFBytes:
    """A file under construction; tensors are (shape as NumPy has it, type number, data)."""

    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]] = field(default_factory=dict)
    version: int = 3

    def header(self) -> bytes:
        parts = [b"GGUF", struct.pack("<IQQ", self.version, len(self.tensors), len(self.metadata))]
        parts += [text(key) + value(content) for key, content in self.metadata.items()]
        offset = 0
        for name, (shape, kind, data) in self.tensors.items():
            parts.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, offset))
            offset += -(-len(data) // 32) * 32
        return b"".join(parts)

    def content(self) -> bytes:
        header = self.header()
        data = b"".join(data.ljust(-(-len(data) // 32) * 32, b"\0") for _, _, data in self.tensors.values())
        return header.ljust(-(-len(header) // 32) * 32, b"\0") + data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.content())
        return path


_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def gguf_name(name: str) -> str:
    name = name.replace("model.layers.", "blk.")
    for ours, theirs in _NAMES.items():
        name = name.replace(ours, theirs)
    return name


def interleave_halves(matrix: np.ndarray, heads: int) -> np.ndarray:
    """The row order in which llama.cpp keeps query and key projections."""
    return matrix.reshape(heads, 2, len(matrix) // heads // 2, -1).swapaxes(1, 2).reshape(matrix.shape)


def llama_gguf(config: dict, tensors: dict[str, np.ndarray], kind: str = "F32") -> GGUFBytes:
    """A Llama checkpoint as GGUF; matrices of the type ``kind``, vectors F32."""
    characters = byte_characters()
    tokens = [*SPECIAL_TOKENS, *characters, *(f"x{n}" for n in range(config["vocab_size"] - 256 - len(SPECIAL_TOKENS)))]
    file = GGUFBytes(
        {
            "general.architecture": "llama",
            "general.name": "Random",
            "general.license": "mit",
            "llama.block_count": config["num_hidden_layers"],
            "llama.context_length": config["max_position_embeddings"],
            "llama.embedding_length": config["hidden_size"],
            "llama.feed_forward_length": config["intermediate_size"],
            "llama.attention.head_count": config["num_attention_heads"],
            "llama.attention.head_count_kv": config["num_key_value_heads"],
            "llama.attention.key_length": config["head_dim"],
            "llama.rope.freq_base": config["rope_theta"],
            "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
            "tokenizer.ggml.merges": [f"{characters[ord('t')]} {characters[ord('h')]}"],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.padding_token_id": 0,
            "tokenizer.chat_template": CHAT_TEMPLATE,
        }
    )
    file.metadata["tokenizer.ggml.tokens"][-1] = "th"
    number = gguf.GGMLQuantizationType[kind]
    for name, matrix in tensors.items():
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if part in name:
                matrix = interleave_halves(matrix, config[heads])
        if matrix.ndim == 1:
            file.tensors[gguf_name(name)] = (matrix.shape, 0, matrix.astype("<f4").tobytes())
        else:
            data = gguf.quants.quantize(matrix.astype(np.float32), number)
            file.tensors[gguf_name(name)] = (matrix.shape, int(number), data.tobytes())
    return file
