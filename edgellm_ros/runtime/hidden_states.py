"""What the model thought of a prompt: input embeddings and hidden states of one layer, kept for the caller.

They belong to the last request that asked for them. The next ``begin_generation`` that gets past the latch drops them,
whether it is refused later or not, and a view from before raises instead of showing what is not its own.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np

from ..errors import MisuseError

EMBEDDINGS_LAYER = 0  # the input embeddings; an engine's own layers count from 1


class StaleViewError(MisuseError):
    """A view of the hidden states of a request that is not the last one any more."""


class HiddenStates:
    """The store of a runtime; owned by the thread that drives it."""

    def __init__(self) -> None:
        self.generation = 0  # counts requests; views of earlier ones are stale
        self.prefill_length = 0
        self.input_token_ids: list[list[int]] = []
        self._layers: dict[int, list[list[np.ndarray]]] = {}  # layer -> row -> chunks [n,D]

    def forget(self) -> None:
        """A request begins: nothing of the last one may be seen."""
        self.generation += 1
        self.prefill_length = 0
        self.input_token_ids = []
        self._layers = {}

    def expect(self, layers: Items[int], prompts: Items[Items[int]]) -> None:
        """The request that begins wants ``layers`` of its prompts."""
        self.input_token_ids = [list(prompt) for prompt in prompts]
        self.prefill_length = max(map(len, prompts))
        self._layers = {layer: [[] for _ in prompts] for layer in layers}

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers that are kept for the open request."""
        return tuple(self._layers)

    def add(self, layer: int, row: int, values: np.ndarray) -> None:
        """The next positions of a row, float32 [n,D]; kept, not copied."""
        self._layers[layer][row].append(values)

    def view(self, layer: int) -> HiddenStatesView | None:
        """What is kept of a layer; None where the last request did not ask for it, or did not run its prompts."""
        rows = self._layers.get(layer) if isinstance(layer, int) else None
        if rows is None or any(
            sum(map(len, chunks)) < len(prompt) for chunks, prompt in zip(rows, self.input_token_ids, strict=True)
        ):
            return None
        width = rows[0][0].shape[1]
        values = np.zeros((len(rows), self.prefill_length, width), np.float32)
        for place, chunks in zip(values, rows, strict=True):
            joined = np.concatenate(chunks)
            place[: len(joined)] = joined
        return HiddenStatesView(self, layer, values)


class HiddenStatesView:
    """One layer of the last request: rows in their original order, prompts right padded with zeros."""

    def __init__(self, store: HiddenStates, layer: int, values: np.ndarray) -> None:
        self._store = store
        self._generation = store.generation
        self.layer = layer
        self._values: np.ndarray | None = values

    @property
    def shape(self) -> tuple[int, ...]:
        """[sequences, longest prompt, D]. :raises StaleViewError: another request has begun."""
        return tuple(self.numpy().shape)

    def numpy(self) -> np.ndarray:
        """float32 [sequences, longest prompt, D], the view's own memory.

        :raises StaleViewError: another request has begun.
        """
        if self._values is None or self._store.generation != self._generation:
            self._values = None
            raise StaleViewError(
                "this view belongs to an earlier request; ask get_base_model_hidden_states again after the last one."
            )
        return self._values
