"""PaliGemma and other models over a plain SigLIP encoder: every image stretched to one square."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...json_values import whole_number
from ..processor import ProcessedImages, check_images
from ..processor_settings import ProcessorSettings
from ..resize import Filter, resize
from .pixels import planes


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
        check_images(images)
        pixels = np.empty((len(images), 3, self.height, self.width), self.table.dtype)
        for index, image in enumerate(images):
            planes(resize(image, self.height, self.width, self.kernel, borrowed="whole"), self.table, pixels[index])
        counts = (self.tokens_per_image,) * len(images)
        return ProcessedImages(
            inputs={"pixel_values": pixels},
            rows=(1,) * len(images),
            token_counts=counts,
            placeholders=tuple(self.image_token * count for count in counts),
        )


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
