"""What happens to an image of one size: resizes, and how the results are cut into the rows of a vision engine.

A plan follows from height and width alone, so cameras have one each. It is carried out on the CPU here, and by kernels
of a GPU in ``device_images.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import RequestError
from .opencv import opencv
from .resize import lines_of, resize_lines
from .resize_taps import Filter

MOST_TOKENS = 1 << 17  # of an image; no context is longer
MOST_VALUES = 1 << 29  # numbers of its pixels: 2 GB as float32


@dataclass(frozen=True)
class Resized:
    """A resize of picture ``source``: 0 is the image as it came, 1 what the first resize gives, and so on."""

    source: int
    height: int
    width: int


@dataclass(frozen=True)
class Tiles:
    """Picture ``source`` cut into ``down`` times ``across`` tiles [3,height,width], row by row."""

    source: int
    down: int
    across: int
    height: int
    width: int

    @property
    def rows(self) -> int:
        """Tiles."""
        return self.down * self.across

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Of one of them."""
        return 3, self.height, self.width

    @property
    def layout(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes and strides, in bytes of the picture, that give all values of all tiles in order."""
        line = 3 * self.across * self.width
        sizes = (self.down, self.across, 3, self.height, self.width)
        return sizes, (self.height * line, 3 * self.width, 1, line, 3)


@dataclass(frozen=True)
class Patches:
    """Picture ``source`` of height x width cut into patches [3*temporal*patch*patch], equal for every frame of one.

    Patches that are merged into one token follow each other.
    """

    source: int
    height: int
    width: int
    patch: int
    merge: int
    temporal: int

    @property
    def rows(self) -> int:
        """Patches."""
        return (self.height // self.patch) * (self.width // self.patch)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Of one of them."""
        return (3 * self.temporal * self.patch**2,)

    @property
    def layout(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """As of ``Tiles``: rows and columns of tokens, those of patches in one, channels, frames, lines, columns."""
        patch, merge, line = self.patch, self.merge, 3 * self.width
        down, across = self.height // patch // merge, self.width // patch // merge
        sizes = (down, across, merge, merge, 3, self.temporal, patch, patch)
        return sizes, (merge * patch * line, 3 * merge * patch, patch * line, 3 * patch, 1, 0, line, 3)


@dataclass(frozen=True)
class ImagePlan:
    """``parts`` give the engine's rows in order; the rest is what stands for the image in a prompt."""

    kernel: Filter
    steps: tuple[Resized, ...]
    parts: tuple[Tiles, ...] | tuple[Patches, ...]
    token_count: int
    placeholder: str
    grid: tuple[int, int, int] | None = None

    @property
    def rows(self) -> int:
        """Rows of the engine."""
        return sum(part.rows for part in self.parts)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the pixel values."""
        return (self.rows, *self.parts[0].row_shape)


def check_amount(values: int, tokens: int) -> None:
    """:raises RequestError: an image would become more numbers or tokens than any machine or model takes."""
    if values > MOST_VALUES or tokens > MOST_TOKENS:
        raise RequestError(
            f"an image or video becomes {values} pixel values and {tokens} tokens; want at most {MOST_VALUES} and "
            f"{MOST_TOKENS}: give a smaller one, or correct the sizes in preprocessor_config.json."
        )


def carry_out(plan: ImagePlan, image: np.ndarray, table: np.ndarray, out: np.ndarray) -> None:
    """Write uint8 [H,W,3] into ``out`` of the plan's shape through ``table`` [256,3]; ``out`` has the table's dtype."""
    pictures = [lines_of(image, borrowed="image")]
    for number, step in enumerate(plan.steps):
        source = pictures[step.source]
        pictures.append(resize_lines(source, step.height, step.width, plan.kernel, borrowed=f"step {number}"))
    first = 0
    for part in plan.parts:
        rows, picture = out[first : first + part.rows], pictures[part.source]
        first += part.rows
        if isinstance(part, Patches):
            cut_patches(picture[None], part.patch, part.merge, part.temporal, table, rows)
            continue
        for index in range(part.rows):
            top, left = index // part.across * part.height, index % part.across * part.width
            _planes(picture[top : top + part.height, :, left : left + part.width], table, rows[index])


def _planes(lines: np.ndarray, table: np.ndarray, out: np.ndarray) -> None:
    """Write lines uint8 [H,3,W] into ``out`` [3,H,W] through ``table`` [256,3]; ``out`` has the table's dtype."""
    if table.dtype == np.uint8:
        np.copyto(out, lines.transpose(1, 0, 2))
        return
    cv2 = opencv()
    for channel in range(3):
        cv2.LUT(lines[:, channel], np.ascontiguousarray(table[:, channel]).reshape(1, 256), dst=out[channel])


def cut_patches(
    frames: np.ndarray, patch: int, merge: int, temporal: int, table: np.ndarray, out: np.ndarray | None = None
) -> np.ndarray:
    """Lines uint8 [F,H,3,W] to [F/temporal * H/patch * W/patch, 3*temporal*patch*patch] of the table's dtype [256,3].

    Patches that are merged into one token follow each other. ``F`` is 1 (a still image, used ``temporal`` times) or a
    multiple of ``temporal``.
    """
    count, height, _, width = frames.shape
    times = max(count // temporal, 1)
    down, across = height // patch // merge, width // patch // merge
    shape = (times, down, across, merge, merge, 3, temporal, patch, patch)
    result = np.empty(shape, table.dtype) if out is None else out.reshape(shape)
    levels = np.empty((count, 3, height, width), table.dtype)
    for frame, into in zip(frames, levels, strict=True):
        _planes(frame, table, into)
    line = np.dtype((np.void, patch * table.itemsize))  # of a patch, as one thing: copied in half the time
    split = levels.view(line).reshape(times, -1, 3, down, merge, patch, across, merge)
    np.copyto(result.view(line)[..., 0], split.transpose(0, 3, 6, 4, 7, 2, 1, 5))
    return result.reshape(times * down * across * merge * merge, -1)
