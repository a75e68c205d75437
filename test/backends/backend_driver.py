"""A generation loop made of nothing but the seam, so that one set of tests drives every backend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgellm_ros.backends.base import Backend, CacheLayout, DataType, RopeKind, SamplingRow, Tensor
from edgellm_ros.engine_format import EMBEDDING_FILE, EngineConfig

GREEDY = SamplingRow()
PROMPT = [1, 5, 9, 33, 7, 20, 2]
OTHER = [8, 3, 50, 4]


class BackendDriver:
    """One engine with its caches and tensors at their maxima; rows are given by number."""

    def __init__(
        self, backend: Backend, directory: Path, config: EngineConfig, *, rows: int = 4, chunk: int = 64
    ) -> None:
        self.backend, self.config, self.chunk = backend, config, chunk
        layout = CacheLayout(config.kv_layers, DataType(config.kv_cache_dtype))
        self.engine = backend.open_engine(directory, cache_layout=layout)
        self.cache = backend.allocate_kv_cache(layout, rows, config.limits.max_kv_cache_capacity)
        self.engine.bind_cache(self.cache)
        self.embeddings = backend.open_embeddings(directory / EMBEDDING_FILE, scale=config.embedding_scale)
        self.sampler = backend.allocate_sampler(rows, config.vocab_size)
        self.ids = backend.allocate((rows, chunk), DataType.INT32)
        self.positions = backend.allocate((rows, chunk), DataType.INT32)
        self.picked = backend.allocate((rows,), DataType.INT32)
        self.tensors: dict[str, Tensor] = {}
        for name, spec in {**self.engine.inputs, **self.engine.outputs}.items():
            free = iter((rows, 1 if name in ("last_token_index", "logits") else chunk))
            self.tensors[name] = backend.allocate(
                tuple(next(free) if size == -1 else size for size in spec.shape), spec.dtype
            )
            self.engine.bind(name, self.tensors[name])
        self.ropes = {name: RopeKind(name, rope.inverse_frequency, rope.scale) for name, rope in config.rope.items()}
        self.history: dict[int, list[int]] = {}

    def shapes(self, batch: int, chunk: int) -> dict[str, tuple[int, ...]]:
        out = {}
        for name, spec in {**self.engine.inputs, **self.engine.outputs}.items():
            free = iter((batch, 1 if name in ("last_token_index", "logits") else chunk))
            out[name] = tuple(next(free) if size == -1 else size for size in spec.shape)
        return out

    def run(self, chunks: Sequence[Sequence[int]], first_row: int = 0) -> Tensor:
        """Run the next ids of rows ``first_row ..``; returns logits [B, V] of each row's last one."""
        batch, longest = len(chunks), max(len(ids) for ids in chunks)
        rows = range(first_row, first_row + batch)
        shapes = self.shapes(batch, longest)
        lengths = np.array([len(ids) for ids in chunks], dtype=np.int32)
        past = np.array([len(self.history.setdefault(row, [])) for row in rows], dtype=np.int32)
        ids = np.zeros((batch, longest), dtype=np.int32)
        for row, chunk in enumerate(chunks):
            ids[row, : len(chunk)] = chunk
        id_tensor, position_tensor = self.ids.prefix(ids.shape), self.positions.prefix(ids.shape)
        id_tensor.write(ids)
        position_tensor.write(past[:, None] + np.arange(longest, dtype=np.int32))
        view = {name: self.tensors[name].prefix(shape) for name, shape in shapes.items()}
        self.backend.gather_embeddings(self.embeddings, id_tensor, view["inputs_embeds"])
        for name, rope in self.ropes.items():
            self.backend.rope_tables(rope, position_tensor, view[f"rope_cos_{name}"], view[f"rope_sin_{name}"])
        view["past_length"].write(past)
        if "query_length" in view:
            view["query_length"].write(lengths)
        view["last_token_index"].write((lengths - 1)[:, None])
        self.engine.run(shapes, first_row)
        for row, chunk in zip(rows, chunks, strict=True):
            self.history[row].extend(chunk)
        return self.tensors["logits"].prefix((batch, self.config.vocab_size))

    def sample(self, logits: Tensor, rows: Sequence[int]) -> list[int]:
        picked = self.picked.prefix((len(rows),))
        self.sampler.sample(logits, rows, picked)
        return [int(token) for token in self.backend.read_async(picked).wait()]

    def start(self, row: int, prompt: Sequence[int], parameters: SamplingRow = GREEDY, *, piece: int = 0) -> int:
        """Prefill one row, ``piece`` ids at a time, and pick its first token."""
        self.history[row] = []
        self.sampler.set_row(row, parameters, prompt, len(prompt))
        piece = piece or self.chunk
        for start in range(0, len(prompt), piece):
            logits = self.run([prompt[start : start + piece]], row)
        return self.sample(logits, [row])[0]

    def advance(self, last: Sequence[int], steps: int, first_row: int = 0) -> list[list[int]]:
        """Decode rows ``first_row ..`` together; ``last`` holds each row's latest token, not yet in the cache."""
        rows = range(first_row, first_row + len(last))
        out: list[list[int]] = [[] for _ in rows]
        tokens = list(last)
        for _ in range(steps):
            tokens = self.sample(self.run([[token] for token in tokens], first_row), list(rows))
            for answer, token in zip(out, tokens, strict=True):
                answer.append(token)
        return out

    def answer(self, prompt: Sequence[int], steps: int, parameters: SamplingRow = GREEDY, *, row: int = 0) -> list[int]:
        """The reference: one row alone, prompt at once."""
        first = self.start(row, prompt, parameters)
        return [first, *self.advance([first], steps - 1, row)[0]]

    def close(self) -> None:
        self.engine.close()
        self.backend.close()
