"""Gemma 3: every image stretched to one square; its tokens stand between two marks, with blank lines around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..image_plan import ImagePlan
from ..processor import ProcessedImages, process_planned
from ..processor_settings import ProcessorSettings
from .siglip import SiglipProcessor


@dataclass(frozen=True)
class Gemma3Processor:
    """``pixel_values`` [images,3,height,width]."""

    squares: SiglipProcessor

    image_mark = "<start_of_image>"
    image_token = "<image_soft_token>"
    end_mark = "<end_of_image>"

    @classmethod
    def from_settings(cls, settings: ProcessorSettings) -> Gemma3Processor:
        """Read what a plain SigLIP encoder has; tokens from ``image_seq_length``, else ``mm_tokens_per_image``.

        :raises EngineDirectoryError: also where images are cut into crops, which is not built.
        """
        if settings.flag("do_pan_and_scan", False):
            raise settings.fault("do_pan_and_scan is true; want false, since images are not cut into crops here")
        squares = SiglipProcessor.from_settings(settings)
        if "image_seq_length" not in settings.image:
            squares = replace(
                squares, tokens_per_image=settings.size("mm_tokens_per_image", settings.config, default=256)
            )
        return cls(squares)

    @property
    def table(self) -> np.ndarray:
        """See ``PlannedProcessor``."""
        return self.squares.table

    def process(self, images: Sequence[np.ndarray]) -> ProcessedImages:
        """See ``Processor.process``."""
        return process_planned(self, images)

    def plan(self, height: int, width: int) -> ImagePlan:
        """See ``PlannedProcessor``."""
        plan = self.squares.plan(height, width)
        tokens = f"{self.image_mark}{self.image_token * plan.token_count}{self.end_mark}"
        return replace(plan, placeholder=f"\n\n{tokens}\n\n")
