"""Images and videos of a prompt: what a caller gives, what stands for them, and where their rows go."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ..backends.base import Tensor
from .processor import Video

Media = np.ndarray | Video  # an image uint8 RGB [H,W,3], or frames
IMAGE, VIDEO = "image", "video"


@dataclass(frozen=True, eq=False)
class MediaItem:
    """An image or video that takes part in a prompt.

    ``placeholder`` is its text there, ``token`` the token in it that the tower's rows replace, ``token_count`` how
    often. ``grid``: temporal, vertical and horizontal patches, for towers of patches. ``inputs`` are the processor's
    tensors; None where the rows were known already when it was placed, and it is processed again if they are not any
    more.
    """

    kind: str
    content: Media
    digest: bytes
    placeholder: str
    token: str
    token_count: int
    grid: tuple[int, int, int] | None = None
    inputs: Mapping[str, np.ndarray] | None = None

    @property
    def seconds_per_patch(self) -> float:
        """Time that a temporal patch of a video spans; 0 for an image."""
        content = self.content
        if not isinstance(content, Video) or self.grid is None:
            return 0.0
        return content.seconds_per_frame * -(-len(content.frames) // self.grid[0])


@dataclass(frozen=True)
class EncodedMedia:
    """Rows of one item on the device: ``embeddings`` float32 [n,D], and as many of each deepstack plane."""

    embeddings: Tensor
    planes: tuple[Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take."""
        return 4 * int(np.prod(self.embeddings.shape)) * (1 + len(self.planes))


@dataclass(frozen=True, eq=False)
class PlacedItem:
    """``places``: the index in the prompt of each of the item's tokens, int32 [n], ascending; -1: left out of it."""

    item: MediaItem
    places: np.ndarray

    @cached_property
    def present(self) -> np.ndarray:
        """Places of the tokens that were not left out, at least one."""
        return self.places[self.places >= 0]

    @property
    def span(self) -> tuple[int, int]:
        """From the first of them to behind the last."""
        return int(self.present[0]), int(self.present[-1]) + 1

    @property
    def digest(self) -> bytes:
        """The item's own, or one of it and of which of its tokens are left."""
        if len(self.present) == len(self.places):
            return self.item.digest
        kept = np.flatnonzero(self.places >= 0).astype("<i4").tobytes()
        return hashlib.blake2b(self.item.digest + kept, digest_size=16).digest()


@dataclass(frozen=True, eq=False)
class PromptMedia:
    """What of a prompt is more than its ids.

    ``positions`` int32 [3,L] where tokens have positions on three axes, and ``delta``: the position of a later token
    is its index plus this. ``blocks``: (start, stop) of tokens that see each other in both directions.
    """

    items: tuple[PlacedItem, ...] = ()
    positions: np.ndarray | None = None
    delta: int = 0
    blocks: tuple[tuple[int, int], ...] = field(default=())

    @property
    def token_counts(self) -> tuple[int, ...]:
        """Tokens of each item, without those left out."""
        return tuple(len(placed.present) for placed in self.items)
