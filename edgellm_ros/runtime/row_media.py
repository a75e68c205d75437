"""The media of running rows: image rows go into the embeddings of a chunk, positions on three axes into its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..backends.base import Backend, DataType, Tensor
from ..engine_format import EngineConfig
from ..errors import MisuseError
from ..vision.media import EncodedMedia, MediaItem, PromptMedia
from .engine_tensors import DEEPSTACK, EngineTensors

Encode = Callable[[MediaItem], EncodedMedia]


class RowMedia:
    """What the sequences in the rows brought beside ids. One thread uses it, that of the executor."""

    def __init__(self, backend: Backend, tensors: EngineTensors, config: EngineConfig, rows: int) -> None:
        self._backend = backend
        self._tensors = tensors
        self._axes = {kind: rope_axes(config.extra, len(rope.inverse_frequency)) for kind, rope in config.rope.items()}
        self._media: list[PromptMedia | None] = [None] * rows
        self.offsets = np.zeros(rows, np.int32)  # of each row: position of a generated token, less its index
        self.encode: Encode | None = None  # the tower, where there is one
        count = sum(name.startswith(DEEPSTACK) for name in tensors.bound)
        self._planes = [f"{DEEPSTACK}{index}" for index in range(count)]  # in the order of the tower's
        self._dirty = False  # the planes hold something of an image

    def start(self, row: int, media: PromptMedia | None) -> None:
        """A sequence takes a row."""
        self._media[row] = media
        self.offsets[row] = media.delta if media is not None else 0

    def move(self, source: int, destination: int) -> None:
        """A sequence changes rows."""
        self._media[destination] = self._media[source]
        self.offsets[destination] = self.offsets[source]

    def of(self, row: int) -> PromptMedia | None:
        """What a row's prompt has beside ids."""
        return self._media[row]

    def chunk_end(self, row: int, start: int, end: int, length: int) -> int:
        """The end of a chunk that cuts no block of tokens that see each other; ``end`` where it cuts none."""
        media = self._media[row]
        for first, stop in media.blocks if media is not None else ():
            if first < end < stop:
                return min(stop, length)
        return end

    def bounds(self, row: int, start: int, chunk: int) -> tuple[np.ndarray, np.ndarray]:
        """``attend_start`` and ``attend_end`` int32 [1,chunk] of positions from ``start`` on.

        A token sees what is before it and itself, and all of the block that it is in.
        """
        end = np.arange(start + 1, start + chunk + 1, dtype=np.int32)
        media = self._media[row]
        for begin, stop in media.blocks if media is not None else ():
            low, high = max(begin - start, 0), max(stop - start, 0)
            end[low:high] = np.maximum(end[low:high], stop)
        return np.zeros((1, chunk), np.int32), end[None]

    def splice(self, row: int, start: int, end: int, views: Mapping[str, Tensor]) -> None:
        """Put the rows of images into the embeddings and deepstack planes of the chunk ``start`` to ``end``.

        :raises BackendError: the tower failed.
        """
        media = self._media[row]
        if media is None:
            return
        chunk, width = views["inputs_embeds"].shape[1:]
        for encoded, index in self.splice_embeddings(media, start, end, views["inputs_embeds"]):
            for name, plane in zip(self._planes, encoded.planes, strict=True):
                self._backend.splice_rows(plane, index, views[name].prefix((chunk, width)))
                self._dirty = True

    def splice_embeddings(
        self, media: PromptMedia, start: int, end: int, embeds: Tensor
    ) -> Iterator[tuple[EncodedMedia, Tensor]]:
        """Put image rows into ``embeds`` [1,S,D], which begins at ``start``; each item that is there, and its places.

        :raises BackendError: the tower failed.
        """
        for placed in media.items:
            first, stop = placed.span
            if first >= end or stop <= start:
                continue
            if self.encode is None:
                raise MisuseError("a prompt has images and no tower was loaded for them.")
            encoded = self.encode(placed.item)
            within = (placed.places >= start) & (placed.places < end)
            index = self._backend.allocate(within.shape, DataType.INT32)
            index.write(np.where(within, placed.places - start, -1).astype(np.int32))
            self._backend.splice_rows(encoded.embeddings, index, embeds.prefix(embeds.shape[1:]))
            yield encoded, index

    def settle(self) -> None:
        """A chunk has run: what follows has no planes of an image unless it splices them itself."""
        if self._dirty:
            for name in self._planes:
                tensor = self._tensors.bound[name]
                tensor.write(np.zeros(tensor.shape, np.float32))
        self._dirty = False

    def rotate(self, row: int, start: int, chunk: int, views: Mapping[str, Tensor]) -> bool:
        """Write the tables of positions on three axes; False where the row has plain ones.

        ``views`` are the rope tables [1,chunk,head_dim/2]; what is beyond the prompt is padding.
        """
        media = self._media[row]
        if media is None or media.positions is None:
            return False
        positions = np.zeros((3, chunk), np.float32)
        given = media.positions[:, start : start + chunk]
        positions[:, : given.shape[1]] = given
        for kind, rope in self._tensors.ropes.items():
            frequency = np.asarray(rope.inverse_frequency, dtype=np.float32)
            angles = positions[self._axes[kind]].T * frequency  # each frequency turns by the position on its axis
            for name, table in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
                view = views.get(f"rope_{name}_{kind}")
                if view is not None:
                    view.write((table * np.float32(rope.scale))[None].astype(np.float32))
        return True


def rope_axes(extra: Mapping[str, Any], count: int) -> np.ndarray:
    """The axis (0 time, 1 row, 2 column) by which each of ``count`` frequencies turns, int64 [count]."""
    axes = np.zeros(count, dtype=np.int64)
    section = extra.get("mrope_section")
    if not isinstance(section, list) or len(section) != 3:
        return axes
    if extra.get("mrope_interleaved"):
        for axis in (1, 2):
            axes[axis : 3 * section[axis] : 3] = axis
        return axes
    return np.repeat(np.arange(3), section)[:count]
