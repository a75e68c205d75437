"""Llama's forward pass written a second time, in float64 and without a cache, to hold the graph against."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


def read_folder(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """config.json and every tensor of a folder, float64 (float32 and bfloat16 files)."""
    config = json.loads((path / "config.json").read_text())
    tensors = {}
    for file in path.glob("*.safetensors"):
        data = file.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        for name, row in header.items():
            if name == "__metadata__":
                continue
            begin, end = (8 + length + offset for offset in row["data_offsets"])
            if row["dtype"] == "BF16":
                values = (np.frombuffer(data[begin:end], "<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                values = np.frombuffer(data[begin:end], {"F32": "<f4", "F16": "<f2"}[row["dtype"]])
            tensors[name] = values.reshape(row["shape"]).astype(np.float64)
    return config, tensors


def default_frequencies(config: dict) -> np.ndarray:
    size = config["head_dim"]
    return config["rope_theta"] ** (-np.arange(0, size, 2) / size)


@dataclass
class ReferenceLlama:
    """``logits(ids)`` of every position; the switches break one thing, for tests of the tests."""

    config: dict
    tensors: dict[str, np.ndarray]
    frequencies: np.ndarray | None = None
    table_scale: float = 1.0
    causal: bool = True
    rotate: bool = True
    position_offset: int = 0
    extra: dict = field(default_factory=dict)

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        y = x @ self.tensors[name + ".weight"].T
        return y + self.tensors[name + ".bias"] if name + ".bias" in self.tensors else y

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        mean = (x**2).mean(axis=-1, keepdims=True)
        return x / np.sqrt(mean + self.config["rms_norm_eps"]) * self.tensors[name + ".weight"]

    def _rotate(self, x: np.ndarray) -> np.ndarray:
        """x [S,H,D]"""
        if not self.rotate:
            return x
        frequencies = default_frequencies(self.config) if self.frequencies is None else self.frequencies
        angle = (np.arange(len(x)) + self.position_offset)[:, None, None] * frequencies
        cosine, sine = np.cos(angle) * self.table_scale, np.sin(angle) * self.table_scale
        half = x.shape[-1] // 2
        first, second = x[..., :half], x[..., half:]
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)

    def _attention(self, x: np.ndarray, prefix: str) -> np.ndarray:
        count, size = len(x), self.config["head_dim"]
        query, key, value = (self._linear(x, f"{prefix}{n}_proj").reshape(count, -1, size) for n in "qkv")
        query, key = self._rotate(query), self._rotate(key)
        groups = query.shape[1] // key.shape[1]
        key, value = np.repeat(key, groups, axis=1), np.repeat(value, groups, axis=1)
        scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(size)
        if self.causal:
            scores = np.where(np.tril(np.ones((count, count), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, value).reshape(count, -1)
        return self._linear(mixed, prefix + "o_proj")

    def logits(self, ids: list[int]) -> np.ndarray:
        """float64 [len(ids), V]."""
        x = self.tensors["model.embed_tokens.weight"][np.asarray(ids)]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            x = x + self._attention(self._norm(x, prefix + "input_layernorm"), prefix + "self_attn.")
            y = self._norm(x, prefix + "post_attention_layernorm")
            gate, up = self._linear(y, prefix + "mlp.gate_proj"), self._linear(y, prefix + "mlp.up_proj")
            x = x + self._linear(gate / (1 + np.exp(-gate)) * up, prefix + "mlp.down_proj")
        head = "model.embed_tokens" if self.config["tie_word_embeddings"] else "lm_head"
        return self._norm(x, "model.norm") @ self.tensors[head + ".weight"].T
