"""InternVL3: the grid of tiles closest to the image's shape, and a view of the whole behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...json_values import finite_number, whole_number
from ..image_plan import ImagePlan, Resized, Tiles, check_amount
from ..processor import ProcessedImages, process_planned
from ..processor_settings import ProcessorSettings
from ..resize_taps import Filter

MOST_TILES = 256  # every grid of as many is looked at


@lru_cache(maxsize=64)
def tile_grid(height: int, width: int, tile: int, fewest: int, most: int) -> tuple[int, int]:
    """Rows and columns of tiles for an image of ``height`` by ``width``.

    Of grids equally close in shape, the one with more tiles wins as long as the image fills half of them.
    """
    grids = [
        (columns, rows)
        for columns in range(1, most + 1)
        for rows in range(1, most + 1)
        if fewest <= columns * rows <= most
    ]
    grids.sort(key=lambda grid: grid[0] * grid[1])
    best, best_difference = (1, 1), float("inf")
    for columns, rows in grids:
        difference = abs(width / height - columns / rows)
        fills = height * width > 0.5 * tile * tile * columns * rows
        if difference < best_difference or (difference == best_difference and fills):
            best, best_difference = (columns, rows), difference
    return best[1], best[0]


@dataclass(frozen=True)
class InternVLProcessor:
    """``pixel_values`` [tiles,3,tile,tile] of all images."""

    tile: int
    fewest_tiles: int
    most_tiles: int
    thumbnail: bool
    kernel: Filter
    tokens_per_tile: int
    table: np.ndarray
    image_mark: str

    image_token = "<IMG_CONTEXT>"
    start_token = "<img>"
    end_token = "</img>"

    @classmethod
    def from_settings(cls, settings: ProcessorSettings) -> InternVLProcessor:
        """Read tile limits: of config.json for the original checkpoints, of the processor's file for converted ones."""
        original = settings.family == "internvl_chat"
        holder, names = (
            (settings.config, ("min_dynamic_patch", "max_dynamic_patch"))
            if original
            else (settings.image, ("min_patches", "max_patches"))
        )
        fewest = settings.size(names[0], holder, default=1, largest=MOST_TILES)
        most = settings.size(names[1], holder, default=12, largest=MOST_TILES)
        if original and settings.config.get("dynamic_image_size") is False:
            most = fewest = 1
        if fewest > most:
            raise settings.fault(f"{names[0]} is {fewest} and {names[1]} {most}; want the first at most the second")
        return cls(
            tile=_tile_size(settings),
            fewest_tiles=fewest,
            most_tiles=most,
            thumbnail=not original or settings.config.get("use_thumbnail", True) is True,
            kernel=settings.kernel(Filter.BICUBIC),
            tokens_per_tile=_tokens_per_tile(settings),
            table=settings.pixel_table(),
            image_mark="<image>" if original else "<IMG_CONTEXT>",
        )

    def process(self, images: Sequence[np.ndarray]) -> ProcessedImages:
        """See ``Processor.process``."""
        return process_planned(self, images)

    def plan(self, height: int, width: int) -> ImagePlan:
        """See ``PlannedProcessor``."""
        tile = self.tile
        down, across = tile_grid(height, width, tile, self.fewest_tiles, self.most_tiles)
        steps, parts = [Resized(0, down * tile, across * tile)], [Tiles(1, down, across, tile, tile)]
        if self.thumbnail and down * across > 1:
            steps.append(Resized(0, tile, tile))
            parts.append(Tiles(2, 1, 1, tile, tile))
        tiles = down * across + len(parts) - 1
        count = tiles * self.tokens_per_tile
        check_amount(3 * tiles * tile**2, count)
        placeholder = f"{self.start_token}{self.image_token * count}{self.end_token}"
        return ImagePlan(self.kernel, tuple(steps), tuple(parts), count, placeholder)


def _tile_size(settings: ProcessorSettings) -> int:
    size = settings.image.get("size")
    if isinstance(size, dict):
        height, width = settings.size("height", size), settings.size("width", size)
        if height != width:
            raise settings.fault(f"size is {height} by {width}; want square tiles")
        return height
    return settings.size("size")


def _tokens_per_tile(settings: ProcessorSettings) -> int:
    for holder in (settings.processor, settings.config):
        if "image_seq_length" in holder:
            return settings.size("image_seq_length", holder)
    vision = settings.config.get("vision_config")
    try:
        if not isinstance(vision, dict):
            raise ValueError("config.json has neither image_seq_length nor vision_config")
        patch, ratio = vision.get("patch_size"), settings.config.get("downsample_ratio")
        patch = whole_number("patch_size", patch[0] if isinstance(patch, list) and patch else patch, 1)
        ratio = finite_number("downsample_ratio", ratio)
    except ValueError as error:
        raise settings.fault(f"image tokens per tile are not known: {error}") from None
    return int((_tile_size(settings) // patch) ** 2 * ratio**2)
