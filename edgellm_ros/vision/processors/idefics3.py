"""Idefics3, SmolVLM and SmolVLM2: an image as tiles of the encoder's size and one view of the whole.

Every image is first brought to a fixed longest edge. With splitting it is then stretched to whole tiles, cut, and
the view of the whole is made from that stretched image; without splitting only the view of the whole remains. Each of
these steps rounds to 8 bits, so their order is part of what the network was trained on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import EngineDirectoryError
from ...json_values import whole_number
from ..image_plan import ImagePlan, Resized, Tiles, check_amount
from ..processor import ProcessedImages, process_planned
from ..processor_settings import ProcessorSettings
from ..resize_taps import Filter

LONGEST_SIDE = 4096  # whatever the settings say


@dataclass(frozen=True)
class Idefics3Processor:
    """``pixel_values`` [tiles,3,tile,tile] of all images, each image's view of the whole last."""

    tile: int
    longest_edge: int
    split: bool
    kernel: Filter
    tokens_per_tile: int
    table: np.ndarray

    image_mark = "<image>"
    image_token = "<image>"
    around_token = "<fake_token_around_image>"
    whole_token = "<global-img>"

    @classmethod
    def from_settings(cls, settings: ProcessorSettings) -> Idefics3Processor:
        """Read ``max_image_size``, ``size`` and ``do_image_splitting``; tokens from processor or model settings."""
        sizes = {name: settings.image.get(name) for name in ("size", "max_image_size")}
        for name, value in sizes.items():
            if not isinstance(value, dict):
                raise settings.fault(f"{name} is {value!r}; want an object with longest_edge")
        return cls(
            tile=settings.size("longest_edge", sizes["max_image_size"]),
            longest_edge=settings.size("longest_edge", sizes["size"]),
            split=settings.flag("do_image_splitting", default=True),
            kernel=settings.kernel(Filter.LANCZOS),
            tokens_per_tile=_tokens_per_tile(settings),
            table=settings.pixel_table(),
        )

    def tile_grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tiles for an image of this size; 0, 0 where only the view of the whole is used."""
        if not self.split:
            return 0, 0
        height, width = self._whole_tiles(*self._first_size(height, width))
        if height <= self.tile and width <= self.tile:
            return 0, 0
        return height // self.tile, width // self.tile

    def process(self, images: Sequence[np.ndarray]) -> ProcessedImages:
        """See ``Processor.process``."""
        return process_planned(self, images)

    def plan(self, height: int, width: int) -> ImagePlan:
        """See ``PlannedProcessor``."""
        down, across = self.tile_grid(height, width)
        tiles = down * across + 1
        check_amount(3 * tiles * self.tile**2, tiles * self.tokens_per_tile)
        steps = [Resized(0, *self._first_size(height, width))]
        if self.split:
            steps.append(Resized(1, *self._whole_tiles(steps[0].height, steps[0].width)))
        steps.append(Resized(len(steps), self.tile, self.tile))
        whole = Tiles(len(steps), 1, 1, self.tile, self.tile)
        return ImagePlan(
            self.kernel,
            tuple(steps),
            (Tiles(len(steps) - 1, down, across, self.tile, self.tile), whole) if down else (whole,),
            tiles * self.tokens_per_tile,
            self._placeholder(down, across),
        )

    def _first_size(self, height: int, width: int) -> tuple[int, int]:
        """The longest edge as set, the other rounded up to an even number, then both within ``LONGEST_SIDE``."""
        ratio = width / height
        if width >= height:
            width = self.longest_edge
            height = int(width / ratio)
            height += height % 2
        else:
            height = self.longest_edge
            width = int(height * ratio)
            width += width % 2
        height, width = max(height, 1), max(width, 1)
        ratio = width / height
        if width >= height and width > LONGEST_SIDE:
            width = LONGEST_SIDE
            height = int(width / ratio)
        elif height > width and height > LONGEST_SIDE:
            height = LONGEST_SIDE
            width = int(height * ratio)
        return max(height, 1), max(width, 1)

    def _whole_tiles(self, height: int, width: int) -> tuple[int, int]:
        ratio = width / height
        if width >= height:
            width = math.ceil(width / self.tile) * self.tile
            height = math.ceil(int(width / ratio) / self.tile) * self.tile
        else:
            height = math.ceil(height / self.tile) * self.tile
            width = math.ceil(int(height * ratio) / self.tile) * self.tile
        return height, width

    def _placeholder(self, rows: int, columns: int) -> str:
        tokens = self.image_token * self.tokens_per_tile
        whole = f"{self.around_token}{self.whole_token}{tokens}{self.around_token}"
        if rows == 0:
            return whole
        lines = []
        for row in range(1, rows + 1):
            tiles = (f"{self.around_token}<row_{row}_col_{column}>{tokens}" for column in range(1, columns + 1))
            lines.append("".join(tiles) + "\n")
        return "".join(lines) + "\n" + whole


def _tokens_per_tile(settings: ProcessorSettings) -> int:
    stated = settings.processor.get("image_seq_len")
    vision = settings.config.get("vision_config")
    try:
        if stated is not None:
            return whole_number("image_seq_len", stated, 1)
        if not isinstance(vision, dict):
            raise ValueError("neither processor_config.json with image_seq_len nor vision_config in config.json")
        side = whole_number("image_size", vision.get("image_size"), 1)
        patch = whole_number("patch_size", vision.get("patch_size"), 1)
        factor = whole_number("scale_factor", settings.config.get("scale_factor"), 1)
    except ValueError as error:
        raise EngineDirectoryError(f"{settings.directory}: image tokens per tile are not known: {error}.") from None
    return (side // patch) ** 2 // factor**2
