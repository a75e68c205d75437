"""PaliGemma and other models over a plain SigLIP encoder: every image stretched to one square."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...json_values import whole_number
from ..image_plan import ImagePlan, Resized, Tiles, check_amount
from ..processor import ProcessedImages, process_planned
from ..processor_settings import ProcessorSettings
from ..resize_taps import Filter


@dataclass(frozen=True)
class SiglipProcessor:
    """``pixel_values`` [images,3,height,width]."""

    height: int
    width: int
    kernel: Filter
    tokens_per_image: int
    table: np.ndarray

    image_mark = "<image>"
    image_token = "<image>"

    @classmethod
    def from_settings(cls, settings: ProcessorSettings) -> SiglipProcessor:
        """Read ``size``; tokens from ``image_seq_length`` or from the patches of the encoder."""
        size = settings.image.get("size")
        if not isinstance(size, dict):
            raise settings.fault(f"size is {size!r}; want an object with height and width")
        height, width = settings.size("height", size), settings.size("width", size)
        return cls(
            height=height,
            width=width,
            kernel=settings.kernel(Filter.BICUBIC),
            tokens_per_image=_tokens(settings, height, width),
            table=settings.pixel_table(),
        )

    def process(self, images: Sequence[np.ndarray]) -> ProcessedImages:
        """See ``Processor.process``."""
        return process_planned(self, images)

    def plan(self, height: int, width: int) -> ImagePlan:
        """See ``PlannedProcessor``: the same for every size."""
        count = self.tokens_per_image
        check_amount(3 * self.height * self.width, count)
        squares = (Tiles(1, 1, 1, self.height, self.width),)
        return ImagePlan(self.kernel, (Resized(0, self.height, self.width),), squares, count, self.image_token * count)


def _tokens(settings: ProcessorSettings, height: int, width: int) -> int:
    if "image_seq_length" in settings.image:
        return settings.size("image_seq_length")
    vision = settings.config.get("vision_config")
    try:
        if not isinstance(vision, dict):
            raise ValueError("neither image_seq_length here nor vision_config in config.json")
        patch = whole_number("patch_size", vision.get("patch_size"), 1)
    except ValueError as error:
        raise settings.fault(f"image tokens are not known: {error}") from None
    return (height // patch) * (width // patch)
