"""Rows that decode and one that runs a chunk of its prompt, right padded in one engine call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..backends.base import Backend, Sampler
from .engine_calls import EngineCall

SHORTEST_END = 16  # positions


def chunk_length(count: int) -> int:
    """The length of a chunk for ``count`` tokens: few different shapes, little padding."""
    return 1 << (count - 1).bit_length() if count <= 16 else -(-count // 16) * 16


def chunk_end(start: int, most: int, length: int) -> int:
    """Where the chunk from ``start`` of a prompt of ``length`` ends, of at most ``most`` positions.

    The last chunk is not left with a few positions where that can be: eight-bit kernels round differently for few.
    """
    end = min(start + most, length)
    if most >= SHORTEST_END and end < length < end + SHORTEST_END:
        end = max(start + 1, length - SHORTEST_END)
    return end


@dataclass(frozen=True)
class MixedRows:
    """One token for each of rows 0..B-1, and ``chunk`` for row B; ``past_lengths`` [B+1] is what their caches hold.

    ``completes``: the chunk is the last of its prompt, so that row B draws a token too.
    """

    token_ids: list[int]
    past_lengths: list[int]
    chunk: Sequence[int]
    completes: bool

    def write(self, call: EngineCall, host: np.ndarray, width: int, offsets: np.ndarray) -> None:
        """Enqueue the inputs of a call of ``width`` positions a row; ``host`` int32 [5,positions] is scratch.

        ``offsets`` [rows]: how far the position of a row runs ahead of its length.
        """
        decoding, count = len(self.token_ids), len(self.chunk)
        batch = decoding + 1
        tokens, positions = host[:2, : batch * width].reshape(2, batch, width)
        tokens[:decoding] = np.asarray(self.token_ids, np.int32)[:, None]
        tokens[decoding, :count] = self.chunk
        tokens[decoding, count:] = self.chunk[-1]
        past, query, last = host[2:, :batch]
        past[:] = self.past_lengths
        query[:] = 1
        query[decoding] = count
        last[:] = query - 1
        positions[:] = (past + offsets[:batch])[:, None] + np.arange(width, dtype=np.int32)
        call.write(tokens, positions, past, query, last.reshape(batch, 1))

    def run(self, call: EngineCall, sampler: Sampler, backend: Backend) -> list[int]:
        """Run it: the token that each row draws, that of row B last where it draws one."""
        call.run()
        rows = len(self.token_ids) + self.completes
        logits, sampled = (view.prefix((rows, *view.shape[1:])) for view in (call.logits, call.sampled))
        sampler.sample(logits, range(rows), sampled)
        ids: list[int] = backend.read_async(sampled).wait().tolist()
        return ids
