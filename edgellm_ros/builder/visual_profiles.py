"""Shapes that the plan of an image tower is compiled for: one profile for each number of images that share a call."""

from __future__ import annotations

from ..errors import BackendError
from ..vision.visual_directory import FRAME_GROUPS, MOST_POSITIONS, TILES, TowerSettings
from .plan_profiles import Ranges, Shape

_USUAL_PATCHES = 1024


def visual_profiles(settings: TowerSettings, most_tokens: int) -> list[dict[str, tuple[int, int, int]]]:
    """Smallest, usual and largest of each dimension that varies, for every profile; the narrowest stands last.

    ``most_tokens`` is the longest prompt, so no frame has more patches than make as many tokens.
    """
    if settings.layout == TILES:
        most = settings.images_at_once(settings.tile_positions)
        return [{"images": (1, 1, most)}] if most == 1 else [{"images": (1, most, most)}, {"images": (1, 1, 1)}]
    merge = settings.spatial_merge_size
    least = merge * merge
    profiles = []
    for count in FRAME_GROUPS:
        most = least * max(1, min(most_tokens, MOST_POSITIONS // count // least) if count > 1 else most_tokens)
        usual = min(_USUAL_PATCHES, most)
        sizes = {"images": (1, count, count), "patches": (least, usual, most)}
        if settings.window_patches:
            low, middle, high = (_windows(settings, patches) for patches in (least, usual, most))
            square = settings.window_patches**2
            sizes["windows"] = (low, middle, high)
            sizes["places"] = (low * square, middle * square, high * square)
        profiles.append(sizes)
    return profiles


def _windows(settings: TowerSettings, patches: int) -> int:
    """The most windows that a frame of so many patches has: one that is as long and narrow as can be."""
    side, merge = settings.window_patches, settings.spatial_merge_size
    heights = range(merge, patches // merge + 1, merge)
    return max(-(-height // side) * -(-(patches // height) // side) for height in heights)


def visual_ranges(name: str, shape: Shape, sizes: dict[str, tuple[int, int, int]]) -> Ranges:
    """Ranges of one input of a tower; ``shape`` has -1 where it varies.

    :raises BackendError: an input that this version does not know.
    """
    dimensions = {
        "pixel_values": ("images", "patches", "values") if "patches" in sizes else ("images", "c", "h", "w"),
        "rope_cos": ("patches", "width"), "rope_sin": ("patches", "width"),
        "window_index": ("places",), "window_mask": ("windows", "width"), "window_place": ("patches",),
        "position_index": ("patches", "corners"), "position_weight": ("patches", "corners"),
    }.get(name)  # fmt: skip
    if dimensions is None or len(dimensions) != len(shape):
        raise BackendError(f"the graph's input {name!r} is none that this version compiles; build the directory again.")
    ranges = [(size,) * 3 if size >= 0 else sizes[dimension] for dimension, size in zip(dimensions, shape, strict=True)]
    smallest, usual, largest = (tuple(sizes) for sizes in zip(*ranges, strict=True))
    return smallest, usual, largest
