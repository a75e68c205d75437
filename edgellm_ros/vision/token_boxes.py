"""Where in an image each of its tokens looks: boxes as fractions (top, left, bottom, right) of height and width."""

from __future__ import annotations

import math

import numpy as np

from .processor import Processor
from .processors.idefics3 import Idefics3Processor
from .processors.internvl import InternVLProcessor, tile_grid
from .processors.qwen_vl import QwenVLProcessor, smart_resize


def token_boxes(processor: Processor, height: int, width: int) -> np.ndarray:
    """float64 [n,4] for the tokens of one image of this size, in order.

    Tokens of a tile look at their part of it; those of the view of the whole at theirs of the image. A processor that
    only stretches images has one grid over all of it.

    :raises RequestError: the processor takes no image of this size.
    """
    if isinstance(processor, QwenVLProcessor):
        factor = processor.patch * processor.merge
        new_height, new_width = smart_resize(height, width, factor, processor.min_pixels, processor.max_pixels)
        return grid_boxes(new_height // factor, new_width // factor)
    if isinstance(processor, Idefics3Processor):
        rows, columns = processor.tile_grid(height, width)
        return tile_boxes(rows, columns, processor.tokens_per_tile, whole=True)
    if isinstance(processor, InternVLProcessor):
        rows, columns = tile_grid(height, width, processor.tile, processor.fewest_tiles, processor.most_tiles)
        whole = processor.thumbnail and rows * columns > 1
        return tile_boxes(rows, columns, processor.tokens_per_tile, whole=whole)
    side = math.isqrt(processor.process([np.zeros((height, width, 3), np.uint8)]).token_counts[0])
    return grid_boxes(side, side)


def grid_boxes(rows: int, columns: int) -> np.ndarray:
    """A grid over the whole image, row by row."""
    top, left = np.divmod(np.arange(rows * columns), columns)
    return np.stack([top / rows, left / columns, (top + 1) / rows, (left + 1) / columns], axis=1)


def tile_boxes(rows: int, columns: int, tokens: int, *, whole: bool) -> np.ndarray:
    """Tiles row by row, each a square grid of ``tokens``; then the view of the whole where there is one."""
    side = math.isqrt(tokens)
    inner, outer = grid_boxes(side, side), grid_boxes(rows, columns)
    scale = np.array([max(rows, 1), max(columns, 1)] * 2)
    tiles = [np.tile(box[:2], 2) + inner / scale for box in outer]
    return np.concatenate([*tiles, *([inner] if whole else [])])
