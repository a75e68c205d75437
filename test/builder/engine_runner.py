"""Runs an engine directory on ONNX Runtime by its documented inputs alone, apart from the package's own backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime

from edgellm_ros.engine_format import open_engine_directory


def read_embedding(path: Path) -> np.ndarray:
    from safetensors.numpy import load_file

    return load_file(path)["embedding"]


class EngineRunner:
    """Rows of one batch, caches bound in place."""

    def __init__(self, path: Path, rows: int, capacity: int) -> None:
        directory = open_engine_directory(path)
        self.config = directory.config
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(path / "llm.onnx"), options, providers=["CPUExecutionProvider"])
        self.embedding = read_embedding(path / "embedding.safetensors")
        self.caches = {
            f"{kind}_{layer}": onnxruntime.OrtValue.ortvalue_from_numpy(
                # what lies beyond the valid length must never matter
                np.full((rows, heads, capacity, size), 1e3, dtype=np.float32)
            )
            for layer, (heads, size) in enumerate(self.config.kv_layers)
            for kind in ("key", "value")
        }

    def run(self, chunks: list[list[int]], past: list[int], positions: list[list[int]] | None = None) -> np.ndarray:
        """Logits of every position of right-padded chunks, [B,S,V]."""
        width = max(map(len, chunks))
        ids = np.zeros((len(chunks), width), dtype=np.int64)
        for row, chunk in enumerate(chunks):
            ids[row, : len(chunk)] = chunk
        past_length = np.array(past, dtype=np.int32)
        position = past_length[:, None] + np.arange(width) if positions is None else np.array(positions)
        feeds = {
            "inputs_embeds": self.embedding[ids] * np.float32(self.config.embedding_scale),
            "past_length": past_length,
            "query_length": np.array([len(chunk) for chunk in chunks], dtype=np.int32),
            "last_token_index": np.tile(np.arange(width, dtype=np.int32), (len(chunks), 1)),
        }
        for kind, rope in self.config.rope.items():
            angle = position[:, :, None].astype(np.float64) * np.array(rope.inverse_frequency)
            feeds[f"rope_cos_{kind}"] = (np.cos(angle) * rope.scale).astype(np.float32)
            feeds[f"rope_sin_{kind}"] = (np.sin(angle) * rope.scale).astype(np.float32)
        binding = self.session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name, cache in self.caches.items():
            binding.bind_ortvalue_input(f"past_{name}", cache)
            binding.bind_ortvalue_output(f"present_{name}", cache)
        binding.bind_output("logits")
        self.session.run_with_iobinding(binding)
        return np.array(
            dict(zip([o.name for o in self.session.get_outputs()], binding.get_outputs(), strict=True))[
                "logits"
            ].numpy()
        )
