"""A policy's pictures fitted where the tower runs: frames go there as bytes, and kernels do the processor's work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backends.base import Backend, Tensor
from ..backends.image_kernels import Blend, Spot
from .device_images import DeviceImages
from .processor import check_images
from .processors.letterbox import LetterboxProcessor
from .resize_taps import Filter, neighbours


class DeviceLetterbox:
    """Belongs to the thread that drives the backend. Once every size of a camera was seen, nothing is allocated."""

    def __init__(self, backend: Backend, processor: LetterboxProcessor) -> None:
        self._backend, self._processor = backend, processor
        self._images = DeviceImages(backend)

    def fill(self, images: Sequence[np.ndarray], pixels: Tensor) -> None:
        """Enqueue what ``LetterboxProcessor.fill`` does, into float32 [images,3,height,width] of the backend.

        The images may be changed as soon as this returns.
        """
        check_images(images)
        for index, image in enumerate(images):
            height, width = image.shape[:2]
            box = self._processor.box(height, width)
            picture = self._images.place(image)
            if self._processor.smooth:
                height, width = box.down, box.across
                picture = self._images.resized(picture, height, width, Filter.BILINEAR)
            lines, columns = self._blend(height, box.down), self._blend(width, box.across)
            self._backend.images.letterbox(picture, lines, columns, pixels, Spot(index, box.top, box.left))

    def _blend(self, length: int, new_length: int) -> Blend:
        return Blend(*self._images.tables((length, new_length), lambda: neighbours(length, new_length)))

    def close(self) -> None:
        """Free the tables and the memory of pictures."""
        self._images.close()
