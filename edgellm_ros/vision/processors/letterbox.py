"""The image step of robot policies: aspect kept, bilinear, the rest black, which has the value -1.

SmolVLA pads on the left and on top, pi0 and pi0.5 on both sides. lerobot blends 32-bit numbers of four pixels, without
rounding to 8 bits. openpi resizes as Pillow does: antialiased where a picture shrinks, and 8-bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...json_values import shown, whole_number
from ..opencv import opencv
from ..processor import ProcessedImages, check_images
from ..processor_settings import ProcessorSettings
from ..resize import Filter, resize

LARGEST_PICTURE = 4096  # pixels of a side


class Box(NamedTuple):
    """Lines and columns of a fitted picture, and its top left corner in the whole, all in pixels."""

    down: int
    across: int
    top: int
    left: int


@dataclass(frozen=True)
class LetterboxProcessor:
    """``pixel_values`` float32 [images,3,height,width] in [-1,1]."""

    height: int
    width: int
    centred: bool  # the padding; False: all of it on the left and on top
    tokens_per_image: int
    smooth: bool = False  # as Pillow resizes

    image_mark = ""  # a policy's prompt has no marks: cameras come first, in the order of its settings
    image_token = ""

    @classmethod
    def from_settings(cls, settings: ProcessorSettings) -> LetterboxProcessor:
        """Read ``resize_imgs_with_padding`` (SmolVLA) or ``image_resolution`` (pi0, pi0.5) of config.json."""
        if not settings.normalise:
            raise settings.fault("a policy's images are blended in 32-bit numbers and cannot stay 8-bit")
        smolvla = settings.family == "smolvla"
        name = "resize_imgs_with_padding" if smolvla else "image_resolution"
        found = settings.config.get(name)
        try:
            if not isinstance(found, list) or len(found) != 2:
                raise ValueError(f"{name} is {shown(found)}; want two sizes")
            first, second = (whole_number(name, value, 1, LARGEST_PICTURE) for value in found)
        except ValueError as error:
            raise settings.fault(str(error)) from None
        height, width = (second, first) if smolvla else (first, second)  # SmolVLA writes width first
        return cls(height, width, centred=not smolvla, tokens_per_image=_tokens(settings, height, width))

    def process(self, images: Sequence[np.ndarray]) -> ProcessedImages:
        """See ``Processor.process``."""
        pixels = np.empty((len(images), 3, self.height, self.width), np.float32)
        self.fill(images, pixels)
        counts = (self.tokens_per_image,) * len(images)
        return ProcessedImages(
            inputs={"pixel_values": pixels},
            rows=(1,) * len(images),
            token_counts=counts,
            placeholders=("",) * len(images),
        )

    def fill(self, images: Sequence[np.ndarray], pixels: np.ndarray) -> None:
        """Write the pixels of each image into float32 [images,3,height,width], which may be used again and again."""
        check_images(images)
        pixels.fill(-1.0)
        for image, place in zip(images, pixels, strict=True):
            box = self.box(*image.shape[:2])
            part = place[:, box.top : box.top + box.down, box.left : box.left + box.across]
            blended = self._blend(image, box.down, box.across)
            np.multiply(blended.transpose(2, 0, 1), np.float32(2 / 255), out=part)
            part -= 1

    def box(self, height: int, width: int) -> Box:
        """Where an image of this size comes to stand."""
        ratio = max(width / self.width, height / self.height)
        down, across = max(int(height / ratio), 1), max(int(width / ratio), 1)
        share = 2 if self.centred else 1
        return Box(down, across, (self.height - down) // share, (self.width - across) // share)

    def _blend(self, image: np.ndarray, down: int, across: int) -> np.ndarray:
        """float32 [down,across,3] in 0..255."""
        if self.smooth:
            return resize(image, down, across, Filter.BILINEAR).astype(np.float32)
        blended = image.astype(np.float32)
        if (down, across) != image.shape[:2]:
            cv2 = opencv()
            blended = cv2.resize(blended, (across, down), interpolation=cv2.INTER_LINEAR)
        return blended


def _tokens(settings: ProcessorSettings, height: int, width: int) -> int:
    """Patches of the encoder, merged as the connector does; SmolVLM's encoder where config.json does not say."""
    vision = settings.config.get("vision_config")
    patch, factor = (16, 4) if settings.family == "smolvla" else (14, 1)
    if isinstance(vision, dict):
        patch = settings.size("patch_size", vision)
        factor = settings.size("scale_factor", settings.config, default=factor)
    return (height // patch) * (width // patch) // factor**2
