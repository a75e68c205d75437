"""What the files of a directory ``visual`` must agree on before a prompt comes: processor, tower, positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..engine_format import CONFIG_FILE
from ..errors import EngineDirectoryError, RequestError
from ..json_values import finite_number, whole_number
from .mrope import MropeRule
from .processor import PlannedProcessor, Processor
from .processor_settings import FILES
from .visual_directory import TILES, VisualDirectory

FASTEST = 1000  # positions a second


def check_fit(processor: Processor, directory: VisualDirectory, size: tuple[int, int]) -> None:
    """:raises EngineDirectoryError: an image of ``size`` becomes other pixels or counts than the tower takes."""
    if not isinstance(processor, PlannedProcessor):
        return
    settings, source = directory.tower, directory.path / FILES[0]
    try:
        plan = processor.plan(*size)
    except RequestError as error:
        raise EngineDirectoryError(f"{source}: {error}") from None
    if settings.layout == TILES:
        wanted: tuple[int, ...] = (settings.num_channels, settings.image_size, settings.image_size)
        tokens = plan.rows * settings.tokens_per_tile
    else:
        wanted = (settings.num_channels * settings.temporal_patch_size * settings.patch_size**2,)
        tokens = plan.rows // settings.spatial_merge_size**2
    if (plan.parts[0].row_shape, plan.token_count) != (wanted, tokens):
        height, width = size
        raise EngineDirectoryError(
            f"{source}: an image of {width} by {height} becomes pixels {plan.shape} and {plan.token_count} tokens; the "
            f"tower takes {(plan.rows, *wanted)} and gives {tokens}: fetch the checkpoint's files again and build it."
        )


def mrope_rule(directory: VisualDirectory) -> MropeRule | None:
    """How the family counts positions on three axes; None where it has one.

    :raises EngineDirectoryError: its configuration says nothing that can be counted by.
    """
    settings, config = directory.tower, directory.config
    if not settings.spatial_merge_size:
        return None
    vision: Mapping[str, Any] = config.get("vision_config") or {}
    video = config.get("video_token_id")
    try:
        speed = finite_number("tokens_per_second", vision.get("tokens_per_second") or 4)  # positions for 1 s of video
        if not 0 < speed <= FASTEST:
            raise ValueError(f"tokens_per_second is {speed}; want a number above 0, up to {FASTEST}")
        return MropeRule(
            image_token_id=whole_number("image_token_id", config.get("image_token_id"), 0),
            video_token_id=None if video is None else whole_number("video_token_id", video, 0),
            merge=settings.spatial_merge_size,
            tokens_per_second=speed if settings.model_type == "qwen2_5_vl" else 0.0,
            frames_apart=settings.model_type == "qwen3_vl",
        )
    except ValueError as error:
        raise EngineDirectoryError(f"{directory.path / CONFIG_FILE}: {error}; build it from a sound one.") from None
