"""Engine calls by size: the views, shapes and recorded steps that each needs, made once and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..backends.base import Backend, EmbeddingTable, Engine, RopeKind, Sampler, Tensor
from ..backends.stream_work import Captured
from .engine_tensors import EngineTensors


@dataclass(frozen=True)
class EngineCall:
    """Views of one (batch, chunk) size."""

    token_ids: Tensor  # [B,S]
    positions: Tensor  # [B,S]
    past_length: Tensor  # [B]
    query_length: Tensor  # [B]
    last_token_index: Tensor  # [B,R]
    attend: tuple[Tensor, Tensor] | None  # first slot and end of what a position sees, [B,S]; None: all before it
    logits: Tensor  # [B*R,V]
    sampled: Tensor  # [B]
    views: Mapping[str, Tensor]  # every bound tensor
    parts: tuple[Callable[[], None], ...]  # of run: embeddings, tables, the engine
    run: Callable[[], None]  # the engine; whole chunks are recorded, the others are of too many sizes
    step: Captured  # decode: the engine, the sampler, and ready for the step after it

    def write(
        self,
        token_ids: np.ndarray,
        positions: np.ndarray,
        past_length: np.ndarray,
        query_length: np.ndarray,
        last_token_index: np.ndarray,
        attend: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        """Enqueue the inputs, int32 each, in the shapes of the views; the arrays may be reused at once.

        ``attend``: what positions see where it is not just all before them.
        """
        self.token_ids.write(token_ids)
        self.positions.write(positions)
        self.past_length.write(past_length)
        self.query_length.write(query_length)
        self.last_token_index.write(last_token_index)
        if self.attend is not None:
            if attend is None:
                end = past_length[:, None] + np.arange(1, token_ids.shape[1] + 1, dtype=np.int32)
                attend = (np.zeros_like(end), end)
            for view, values in zip(self.attend, attend, strict=True):
                view.write(values)


class EngineCalls:
    """Makes calls and keeps them under (batch, chunk, first row, length bucket, wanted logits, rows of adapters)."""

    def __init__(
        self,
        backend: Backend,
        engine: Engine,
        tensors: EngineTensors,
        embeddings: EmbeddingTable,
        sampler: Sampler,
        whole_chunk: int,
    ) -> None:
        self._backend = backend
        self._engine = engine
        self._tensors = tensors
        self._embeddings = embeddings
        self._sampler = sampler
        self._whole_chunk = whole_chunk
        self.made: dict[tuple[int, int, int, int, int, int], EngineCall] = {}

    def get(self, batch: int, chunk: int, first_row: int, positions: int, wanted: int = 1) -> EngineCall:
        """The call of rows ``first_row`` .. ``first_row + batch - 1`` that leaves at most ``positions`` in each.

        It is to run next: what it needs to know of the rows' adapters is written now.
        """
        adapters = self._tensors.adapters
        rows = 0 if adapters is None else adapters.rows_in_use(first_row, batch)
        key = (batch, chunk, first_row, self._engine.length_bucket(positions), wanted, rows)
        call = self.made.get(key)
        if call is None:
            call = self.made[key] = self._make(*key)
        if adapters is not None:
            adapters.write_mask(first_row, batch, rows)
        return call

    def _make(self, batch: int, chunk: int, first_row: int, bucket: int, wanted: int, adapter_rows: int) -> EngineCall:
        key = (batch, chunk, first_row, bucket, wanted, adapter_rows)
        tensors = self._tensors
        shapes = tensors.shapes(batch, chunk, wanted, adapter_rows)
        token_ids = tensors.token_ids.prefix((batch, chunk))
        positions = tensors.positions.prefix((batch, chunk))
        embeds = tensors.bound["inputs_embeds"].prefix(shapes["inputs_embeds"])
        logits = tensors.bound["logits"].prefix((batch * wanted, shapes["logits"][2]))
        past_length = tensors.view("past_length", (batch,))
        sampled = tensors.token_ids.prefix((batch,))  # where the next step looks for its ids
        ropes = self._ropes(shapes)
        backend, engine, table, sampler = self._backend, self._engine, self._embeddings, self._sampler
        rows = range(batch)

        views = {name: tensor.prefix(shapes[name]) for name, tensor in tensors.bound.items()}
        attend = (views["attend_start"], views["attend_end"]) if "attend_end" in views else None
        advanced = (positions, past_length, *(attend[1:] if attend is not None else ()))

        def gather() -> None:
            backend.gather_embeddings(table, token_ids, embeds)

        def rotate() -> None:
            for rope, cosine, sine in ropes:
                backend.rope_tables(rope, positions, cosine, sine)

        def infer() -> None:
            engine.run(shapes, first_row, bucket)

        def run_engine() -> None:
            gather()
            rotate()
            infer()

        def decode() -> None:
            """One token further, all of it on the device, and ready for the step after it."""
            run_engine()
            sampler.sample(logits, rows, sampled)
            backend.advance(advanced)

        return EngineCall(
            token_ids=token_ids,
            positions=positions,
            past_length=past_length,
            query_length=tensors.view("query_length", (batch,)),
            last_token_index=tensors.view("last_token_index", (batch, wanted)),
            attend=attend,
            logits=logits,
            sampled=sampled,
            views=views,
            parts=(gather, rotate, infer),
            run=backend.capture(("prefill", *key), run_engine).run if chunk == self._whole_chunk else run_engine,
            step=backend.capture(("decode", *key), decode),
        )

    def _ropes(self, shapes: dict[str, tuple[int, ...]]) -> list[tuple[RopeKind, Tensor, Tensor]]:
        ropes = []
        for kind, rope in self._tensors.ropes.items():
            names = (f"rope_cos_{kind}", f"rope_sin_{kind}")
            if all(name in shapes for name in names):
                cosine, sine = (self._tensors.bound[name].prefix(shapes[name]) for name in names)
                ropes.append((rope, cosine, sine))
        return ropes
