"""Drives an engine directory through the backend's seam: one row or a ragged batch, logits of every position."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgellm_ros.backends.base import Backend, CacheLayout, DataType, RopeKind
from edgellm_ros.backends.cpu import CPUBackend
from edgellm_ros.engine_format import EMBEDDING_FILE, open_engine_directory


class SeamRunner:
    """Histories of all rows; ``run`` adds a chunk to some of them."""

    def __init__(self, path: Path, *, rows: int = 3, backend: Backend | None = None) -> None:
        self.config = config = open_engine_directory(path).config
        self.backend = backend or CPUBackend(1)
        layout = CacheLayout(config.kv_layers, DataType(config.kv_cache_dtype))
        self.engine = self.backend.open_engine(path, cache_layout=layout)
        self.cache = self.backend.allocate_kv_cache(layout, rows, config.limits.max_kv_cache_capacity)
        self.engine.bind_cache(self.cache)
        self.embeddings = self.backend.open_embeddings(path / EMBEDDING_FILE, scale=config.embedding_scale)
        self.past = [0] * rows

    def run(self, chunks: Sequence[Sequence[int]], first_row: int = 0) -> list[np.ndarray]:
        """Logits [len(chunk), V] of each row's chunk, behind what the row holds already."""
        batch, width = len(chunks), max(map(len, chunks))
        rows = range(first_row, first_row + batch)
        past = np.array([self.past[row] for row in rows], dtype=np.int32)
        lengths = np.array([len(chunk) for chunk in chunks], dtype=np.int32)
        ids = np.full((batch, width), 7, dtype=np.int32)  # padding that would be noticed
        for row, chunk in enumerate(chunks):
            ids[row, : len(chunk)] = chunk
        values = {
            "past_length": past,
            "query_length": lengths,
            "last_token_index": np.tile(np.arange(width, dtype=np.int32), (batch, 1)),
        }
        tensors = {}
        for name, spec in {**self.engine.inputs, **self.engine.outputs}.items():
            free = iter((batch, width, width))
            shape = tuple(next(free) if size == -1 else size for size in spec.shape)
            tensors[name] = self.backend.allocate(shape, spec.dtype)
            if name in values:
                tensors[name].write(values[name])
        tokens = self.backend.allocate(ids.shape, DataType.INT32)
        tokens.write(ids)
        positions = self.backend.allocate(ids.shape, DataType.INT32)
        positions.write((past[:, None] + np.arange(width)).astype(np.int32))
        self.backend.gather_embeddings(self.embeddings, tokens, tensors["inputs_embeds"])
        for kind, rope in self.config.rope.items():
            tables = [tensors[f"rope_{table}_{kind}"] for table in ("cos", "sin")]
            self.backend.rope_tables(RopeKind(kind, rope.inverse_frequency, rope.scale), positions, *tables)
        for name, tensor in tensors.items():
            self.engine.bind(name, tensor)
        self.engine.run({name: tensor.shape for name, tensor in tensors.items()}, first_row)
        for row, chunk in zip(rows, chunks, strict=True):
            self.past[row] += len(chunk)
        logits = tensors["logits"].numpy()
        return [logits[row, : len(chunk)].copy() for row, chunk in enumerate(chunks)]

    def greedy(self, prompts: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
        """The most likely ids behind each prompt, all rows together."""
        last = [int(logits[-1].argmax()) for logits in self.run(prompts)]
        answers = [[token] for token in last]
        for _ in range(steps - 1):
            last = [int(logits[-1].argmax()) for logits in self.run([[token] for token in last])]
            for answer, token in zip(answers, last, strict=True):
                answer.append(token)
        return answers

    def close(self) -> None:
        self.backend.close()


def ragged_logits(path: Path, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Logits [len(row), V] of three rows: two ragged chunks, one token each until the shortest ends, then the rest."""
    runner = SeamRunner(path, rows=len(rows))
    found: list[list[np.ndarray]] = [[] for _ in rows]
    first = (4, 7, 2)
    second = (5, 9, 3)
    start = [0] * len(rows)
    for lengths in (first, second, (1, 1, 1), (1, 1, 1)):
        chunks = [row[at : at + length] for row, at, length in zip(rows, start, lengths, strict=True)]
        for row, logits in enumerate(runner.run(chunks)):
            found[row].append(logits)
            start[row] += len(chunks[row])
    for row, ids in enumerate(rows):  # alone, behind the rows before it
        if start[row] < len(ids):
            found[row].extend(runner.run([ids[start[row] :]], first_row=row))
    runner.close()
    return [np.concatenate(parts) for parts in found]
