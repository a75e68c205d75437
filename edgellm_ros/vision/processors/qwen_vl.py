"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: any size near the image's own, cut into patches in the order they are merged.

A still image is its own second frame: a patch spans ``temporal_patch`` frames. Qwen3-VL writes the time of each pair
of frames of a video into the prompt; the older two put it into the positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import RequestError
from ..image_plan import ImagePlan, Patches, Resized, check_amount, cut_patches
from ..processor import ProcessedImages, Video, check_video, process_planned
from ..processor_settings import MOST_PIXELS, ProcessorSettings
from ..resize import lines_of, resize_lines
from ..resize_taps import Filter

LARGEST_GROUP = 16  # patches of a token, and frames of a patch, along an axis


def smart_resize(
    height: int, width: int, factor: int, min_pixels: int, max_pixels: int, frames: int = 1, temporal: int = 1
) -> tuple[int, int]:
    """The nearest multiples of ``factor`` whose product lies within the limits.

    With ``frames``, the limits are for the pixels of all frames together, counted in whole patches of ``temporal``.
    """
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    counted = round(frames / temporal) * temporal * new_height * new_width
    if counted > max_pixels:
        shrink = math.sqrt(frames * height * width / max_pixels)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif counted < min_pixels:
        grow = math.sqrt(min_pixels / (frames * height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return new_height, new_width


@dataclass(frozen=True)
class QwenVLProcessor:
    """``pixel_values`` [patches, 3*temporal*patch*patch] of all images, one behind the other."""

    patch: int
    merge: int
    temporal_patch: int
    min_pixels: int
    max_pixels: int
    video_min_pixels: int
    video_max_pixels: int
    kernel: Filter
    table: np.ndarray
    times_in_prompt: bool  # Qwen3-VL

    image_mark = "<|image_pad|>"
    image_token = "<|image_pad|>"
    video_token = "<|video_pad|>"
    vision_start = "<|vision_start|>"
    vision_end = "<|vision_end|>"

    @classmethod
    def from_settings(cls, settings: ProcessorSettings) -> QwenVLProcessor:
        """Read patch, merge and pixel limits: ``min_pixels`` and ``max_pixels``, or ``size`` in newer files."""
        low, high = _pixel_limits(settings, settings.image)
        video_low, video_high = _pixel_limits(settings, settings.video)
        return cls(
            patch=settings.size("patch_size"),
            merge=settings.size("merge_size", largest=LARGEST_GROUP),
            temporal_patch=settings.size("temporal_patch_size", largest=LARGEST_GROUP),
            min_pixels=low,
            max_pixels=high,
            video_min_pixels=video_low,
            video_max_pixels=video_high,
            kernel=settings.kernel(Filter.BICUBIC),
            table=settings.pixel_table(),
            times_in_prompt=settings.family == "qwen3_vl",
        )

    @property
    def video_mark(self) -> str:
        """What a placeholder of ``process_video`` replaces; with times in the prompt, the marks around it as well."""
        if self.times_in_prompt:
            return f"{self.vision_start}{self.video_token}{self.vision_end}"
        return self.video_token

    def process(self, images: Sequence[np.ndarray]) -> ProcessedImages:
        """See ``Processor.process``."""
        return process_planned(self, images)

    def plan(self, height: int, width: int) -> ImagePlan:
        """See ``PlannedProcessor``."""
        factor = self.patch * self.merge
        height, width = smart_resize(height, width, factor, self.min_pixels, self.max_pixels)
        patches = Patches(1, height, width, self.patch, self.merge, self.temporal_patch)
        grid = (1, height // self.patch, width // self.patch)
        count = grid[1] * grid[2] // self.merge**2
        check_amount(3 * self.temporal_patch * height * width, count)
        steps = (Resized(0, height, width),)
        return ImagePlan(self.kernel, steps, (patches,), count, self.image_token * count, grid)

    def process_video(self, video: Video) -> ProcessedImages:
        """See ``VideoProcessor.process_video``; the last frame is used again until whole patches are full."""
        check_video(video)
        height, width = self._video_size(len(video.frames), *video.frames[0].shape[:2])
        times = -(-len(video.frames) // self.temporal_patch)
        grid = (times, height // self.patch, width // self.patch)
        count = math.prod(grid) // self.merge**2
        check_amount(3 * times * self.temporal_patch * height * width, count)
        frames = [resize_lines(lines_of(frame), height, width, self.kernel) for frame in video.frames]
        frames += [frames[-1]] * (-len(frames) % self.temporal_patch)
        patches = cut_patches(np.stack(frames), self.patch, self.merge, self.temporal_patch, self.table)
        return ProcessedImages(
            inputs={"pixel_values": patches},
            rows=(len(patches),),
            token_counts=(count,),
            placeholders=(self._video_placeholder(video, grid[0], count),),
            grids=np.array([grid], np.int64),
        )

    def _video_size(self, frames: int, height: int, width: int) -> tuple[int, int]:
        factor = self.patch * self.merge
        low, high = self.video_min_pixels, self.video_max_pixels
        if not self.times_in_prompt:
            return smart_resize(height, width, factor, low, high)
        if frames < self.temporal_patch:
            raise RequestError(
                f"A video of {frames} is too short; want at least {self.temporal_patch} frames, or give it as an image."
            )
        if height < factor or width < factor:
            scale = max(factor / height, factor / width)
            height, width = int(height * scale), int(width * scale)
        return smart_resize(height, width, factor, low, high, frames, self.temporal_patch)

    def _video_placeholder(self, video: Video, times: int, count: int) -> str:
        if not self.times_in_prompt:
            return self.video_token * count
        last = len(video.frames) - 1
        parts = []
        for index in range(times):
            first = min(index * self.temporal_patch, last)
            final = min(first + self.temporal_patch - 1, last)
            seconds = (video.time_of(first) + video.time_of(final)) / 2
            tokens = self.video_token * (count // times)
            parts.append(f"<{seconds:.1f} seconds>{self.vision_start}{tokens}{self.vision_end}")
        return "".join(parts)


def _pixel_limits(settings: ProcessorSettings, values: dict[str, Any]) -> tuple[int, int]:
    size = values.get("size")
    if not isinstance(size, dict):
        size = {}
    low = values.get("min_pixels", size.get("min_pixels", size.get("shortest_edge")))
    high = values.get("max_pixels", size.get("max_pixels", size.get("longest_edge")))
    limits = {"min_pixels": low, "max_pixels": high}
    low, high = (settings.size(name, limits, largest=MOST_PIXELS) for name in limits)
    if low > high:
        raise settings.fault(f"min_pixels is {low} and max_pixels {high}; want the first at most the second")
    return low, high
