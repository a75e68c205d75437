"""The invented tokens that engines are probed with when they are loaded.

Five tokens in two contexts, of which the last is the same in both: what the other context changes in its logits is the
yardstick for what a chunk, a batch or a recorded run may change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..adapter_format import free_sizes
from .values import TensorSpec

TOKENS = 5
CAPACITY = 16  # of the caches that they are run over
# of the difference that another context makes; a model whose products round their inputs to eight bits came to 0.26
_SHARE = 0.4
_ROUNDING = 1e-4  # of the size of the logits

Row = tuple[int, int, int]  # context, first and last position + 1


def allowed_error(logits: np.ndarray, other: np.ndarray) -> float:
    """How far logits of the last token may lie from ``logits``, given those behind another context."""
    return max(_SHARE * float(np.linalg.norm(logits - other)), _ROUNDING * float(np.linalg.norm(logits)))


class ProbeTokens:
    """Embeddings of all tokens, ``width`` numbers each, and of a padding that would be noticed."""

    def __init__(self, width: int) -> None:
        random = np.random.default_rng(7)
        self._tokens = random.normal(0.0, 1.0, (2, TOKENS, width)).astype(np.float32)
        self._tokens[1, -1] = self._tokens[0, -1]
        self._padding = random.normal(0.0, 1.0, width).astype(np.float32)

    def inputs(self, specs: Mapping[str, TensorSpec], rows: Sequence[Row]) -> dict[str, np.ndarray]:
        """Values of every input for one call, each of its tensor's element type."""
        batch, chunk = len(rows), max(end - start for _, start, end in rows)
        starts = np.array([start for _, start, _ in rows], dtype=np.int32)
        lengths = np.array([end - start for _, start, end in rows], dtype=np.int32)
        embeds = np.broadcast_to(self._padding, (batch, chunk, self._padding.size)).copy()
        for row, (context, start, end) in enumerate(rows):
            embeds[row, : end - start] = self._tokens[context, start:end]
        positions = starts[:, None] + np.arange(chunk, dtype=np.int32)
        known = {
            "inputs_embeds": embeds,
            "past_length": starts,
            "query_length": lengths,
            "last_token_index": (lengths - 1)[:, None],
            "attend_start": np.zeros_like(positions),
            "attend_end": positions + 1,
        }
        values: dict[str, np.ndarray] = {}
        for name, spec in specs.items():
            if name.startswith(("rope_cos_", "rope_sin_")):
                angles = positions[..., None] * np.exp2(-np.arange(spec.shape[2], dtype=np.float32))
                value: np.ndarray = np.cos(angles) if name.startswith("rope_cos_") else np.sin(angles)
            elif name in known:
                value = np.asarray(known[name])
            else:  # adapters, planes of an image: nothing of the kind here
                free = iter(free_sizes(name, batch, chunk))
                value = np.zeros([next(free) if size == -1 else size for size in spec.shape])
            values[name] = value.astype(spec.dtype.numpy)
        return values
