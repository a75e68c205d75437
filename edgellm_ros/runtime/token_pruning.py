"""Leaves visual tokens out of a prompt before it is run: ids, places, positions and blocks of what stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..backends.base import Backend, DataType, EmbeddingTable, Tensor
from ..vision.media import PlacedItem, PromptMedia
from ..vision.pruner import PrunedPrompt, PruningOutcome, PruningReport, VisualPrunerConfig, prune_prompt
from .boundary import SlotSeed
from .media_prompt import media_spans
from .row_media import RowMedia


class TokenPruner:
    """Belongs to the thread that drives the runtime. ``window``: the engine has layers with a sliding window."""

    def __init__(self, backend: Backend, table: EmbeddingTable, media: RowMedia, *, window: bool) -> None:
        self.config = VisualPrunerConfig()  # of requests that bring none
        self.window = window
        self.pruned_tokens = 0
        self._backend = backend
        self._table = table
        self._media = media
        self._embeds: Tensor | None = None

    def prune(self, seed: SlotSeed) -> tuple[SlotSeed, PruningReport]:
        """The seed with what its settings leave of its prompt, and what was done to it.

        :raises BackendError: the tower or the selection failed.
        """
        media, config = seed.media, seed.visual_pruner
        spans = [] if media is None else [span for placed in media.items for span in runs(placed.places)]
        visual = sum(stop - start for start, stop in spans)
        if media is None or not config.enabled or not visual:
            outcome = PruningOutcome.NO_IMAGES if config.enabled else PruningOutcome.OFF
            return seed, PruningReport(outcome, visual, visual)
        if self.window:
            return seed, PruningReport(PruningOutcome.SLIDING_WINDOW, visual, visual)
        chosen = self._choose(seed, media, spans, config)
        if chosen.keep is None:
            return seed, chosen.report
        self.pruned_tokens += chosen.report.before - chosen.report.after
        keep = np.asarray(chosen.keep, np.int64)
        left = pruned_media(media, keep, len(seed.prompt_ids))
        kept = tuple(tuple(np.flatnonzero(placed.places >= 0).tolist()) for placed in left.items)
        return replace(
            seed,
            prompt_ids=tuple(seed.prompt_ids[place] for place in chosen.keep),
            media=left,
            cache=replace(seed.cache, media=media_spans(left)),
        ), replace(chosen.report, kept=kept)

    def _choose(
        self, seed: SlotSeed, media: PromptMedia, spans: list[tuple[int, int]], config: VisualPrunerConfig
    ) -> PrunedPrompt:
        length, width = len(seed.prompt_ids), self._table.shape[1]
        if self._embeds is None or self._embeds.shape[0] < length:
            self._embeds = self._backend.allocate((length, width), DataType.FLOAT32)
        embeds = self._embeds.prefix((1, length, width))
        ids = self._backend.allocate((1, length), DataType.INT32)
        ids.write(np.asarray(seed.prompt_ids, np.int32)[None])
        self._backend.gather_embeddings(self._table, ids, embeds)
        for _ in self._media.splice_embeddings(media, 0, length, embeds):
            pass
        return prune_prompt(self._backend, embeds.prefix((length, width)), spans, config)


def unpruned(seed: SlotSeed) -> PruningReport:
    """The report of a prompt whose hidden states were asked for, each of them."""
    visual = 0 if seed.media is None else sum(seed.media.token_counts)
    outcome = PruningOutcome.HIDDEN_STATES if seed.visual_pruner.enabled else PruningOutcome.OFF
    return PruningReport(outcome, visual, visual)


def runs(places: np.ndarray) -> list[tuple[int, int]]:
    """(start, stop) of the places that follow each other without a gap; tiles of one image have text between them."""
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(places, breaks) if len(part)]


def pruned_media(media: PromptMedia, keep: np.ndarray, length: int) -> PromptMedia:
    """The media of a prompt of ``length`` of which only the places ``keep`` stay; every position stays what it was."""
    new_place = np.full(length, -1, np.int32)
    new_place[keep] = np.arange(len(keep), dtype=np.int32)
    positions = np.tile(np.arange(length, dtype=np.int32), (3, 1)) if media.positions is None else media.positions
    return PromptMedia(
        items=tuple(PlacedItem(placed.item, new_place[placed.places]) for placed in media.items),
        positions=positions[:, keep],
        delta=media.delta + length - len(keep),
        blocks=tuple(
            (int(np.searchsorted(keep, start)), int(np.searchsorted(keep, stop))) for start, stop in media.blocks
        ),
    )
