"""What a tower of patches takes beside the pixels, from the grid alone: rotations, windows, learned positions.

Patches come in squares of the merge size, row by row of the squares and row by row within each, as the processors
give them. A robot's cameras keep their size, so the tables of a grid are kept by whoever asks.
"""

from __future__ import annotations

import numpy as np

from .visual_directory import TowerSettings

UNSEEN = -6e4  # added to the scores of places that hold no patch; within the range of float16


def patch_places(height: int, width: int, merge: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each patch of a frame of height x width patches, int64 [S], in the processors' order."""
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    shape = (height // merge, merge, width // merge, merge)
    return tuple(place.reshape(shape).transpose(0, 2, 1, 3).reshape(-1) for place in (rows, columns))  # type: ignore[return-value]


def rotation_tables(settings: TowerSettings, height: int, width: int) -> dict[str, np.ndarray]:
    """``rope_cos`` and ``rope_sin`` float32 [S,head_dim/2]: half of the angles by row, half by column."""
    size = settings.head_dim // 2
    exponent = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    frequency = (1.0 / np.power(np.float32(settings.rope_theta), exponent)).astype(np.float32)
    places = patch_places(height, width, settings.spatial_merge_size)
    angles = np.concatenate([place.astype(np.float32)[:, None] * frequency for place in places], axis=1)
    return {"rope_cos": np.cos(angles), "rope_sin": np.sin(angles)}


def window_tables(settings: TowerSettings, height: int, width: int) -> dict[str, np.ndarray]:
    """``window_index`` int32 [W*size], ``window_mask`` float32 [W,size], ``window_place`` int32 [S].

    Windows at the lower and right edge are smaller; their places that are left over hold patch 0, unseen.
    """
    side = settings.window_patches
    rows, columns = patch_places(height, width, settings.spatial_merge_size)
    across = -(-width // side)
    window = rows // side * across + columns // side
    count, size = -(-height // side) * across, side * side
    index = np.zeros((count, size), dtype=np.int32)
    mask = np.full((count, size), UNSEEN, dtype=np.float32)
    place = np.empty(height * width, dtype=np.int32)
    for number in range(count):
        members = np.flatnonzero(window == number)
        index[number, : members.size] = members
        mask[number, : members.size] = 0
        place[members] = number * size + np.arange(members.size)
    return {"window_index": index.reshape(-1), "window_mask": mask, "window_place": place}


def position_tables(settings: TowerSettings, height: int, width: int) -> dict[str, np.ndarray]:
    """``position_index`` int32 and ``position_weight`` float32 [S,4]: the corners of a learned square grid.

    The grid's corners lie on the image's, and what is between is interpolated along both axes.
    """
    side = settings.position_grid
    corners = []
    for place, length in zip(patch_places(height, width, settings.spatial_merge_size), (height, width), strict=True):
        steps = np.linspace(0, side - 1, length, dtype=np.float32)[place]
        low = steps.astype(np.int32)
        high = np.minimum(low + 1, side - 1)
        share = steps - low
        corners.append((np.stack([low, high], axis=1), np.stack([1 - share, share], axis=1)))
    (rows, row_weights), (columns, column_weights) = corners
    index = rows[:, :, None] * side + columns[:, None, :]
    weight = row_weights[:, :, None] * column_weights[:, None, :]
    return {
        "position_index": index.reshape(-1, 4).astype(np.int32),
        "position_weight": weight.reshape(-1, 4).astype(np.float32),
    }


def grid_tables(settings: TowerSettings, height: int, width: int) -> dict[str, np.ndarray]:
    """Every table of a frame of height x width patches that the tower has an input for."""
    tables = rotation_tables(settings, height, width)
    if settings.window_patches:
        tables |= window_tables(settings, height, width)
    if settings.position_grid:
        tables |= position_tables(settings, height, width)
    return tables
