"""The settings of an image processor, read from the files that checkpoints carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import EngineDirectoryError
from ..json_values import LARGEST_SIZE, finite_number, plain_text, read_json, shown, whole_number
from .resize_taps import Filter

LARGEST_SIDE = 1 << 16  # pixels; of any tile or limit of a side
MOST_PIXELS = LARGEST_SIZE  # where a limit is one of an area
CONFIG = "config.json"
FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
LEVELS = "levels"  # what a tower takes that scales pixels itself: 0 to 255
_OFF = ("do_resize", "do_rescale", "do_normalize")


@dataclass(frozen=True)
class ProcessorSettings:
    """One folder's files: ``image`` is the image processor's own object, ``source`` the file it came from."""

    directory: Path
    family: str
    config: dict[str, Any]
    image: dict[str, Any]
    processor: dict[str, Any]
    video: dict[str, Any]
    source: Path
    normalise: bool

    def fault(self, sentence: str) -> EngineDirectoryError:
        """An error about the image processor's file."""
        return EngineDirectoryError(f"{self.source}: {sentence}.")

    def check_steps(self) -> None:
        """:raises EngineDirectoryError: the image processor has no settings, or a step of it is switched off."""
        if not self.image:
            raise EngineDirectoryError(
                f"{self.directory / 'preprocessor_config.json'} is missing or empty; it comes with the "
                "checkpoint: fetch it and build the engine directory again."
            )
        for name in _OFF:
            if not self.flag(name, default=True):
                raise self.fault(f"{name} is false; this step is part of every processor here, so want true")

    def size(
        self,
        name: str,
        values: dict[str, Any] | None = None,
        *,
        default: int | None = None,
        largest: int = LARGEST_SIDE,
    ) -> int:
        """A positive whole number of the image processor's object (or of ``values``)."""
        found = (self.image if values is None else values).get(name, default)
        try:
            return whole_number(name, found, 1, largest)
        except ValueError as error:
            raise self.fault(str(error)) from None

    def kernel(self, default: Filter) -> Filter:
        """The resampling kernel, by Pillow's number."""
        found = self.image.get("resample", default.value)
        try:
            return Filter(found)
        except ValueError:
            wanted = ", ".join(f"{kernel.value} ({kernel.name.lower()})" for kernel in Filter)
            raise self.fault(f"resample is {shown(found)}; want one of {wanted}") from None

    def flag(self, name: str, default: bool) -> bool:
        """A switch; null counts as the default."""
        found = self.image.get(name)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise self.fault(f"{name} is {shown(found)}; want true or false")
        return found

    def pixel_table(self) -> np.ndarray:
        """What each of 256 levels becomes, [256,3]: float32 as the reference computes it, or uint8 unchanged."""
        levels = np.arange(256)
        if not self.normalise:
            return np.repeat(levels[:, None], 3, axis=1).astype(np.uint8)
        with np.errstate(over="ignore", invalid="ignore"):
            values = (levels * self.rescale_factor).astype(np.float32)[:, None]
            table = np.ascontiguousarray((values - self.mean) / self.std)
        if not np.isfinite(table).all():
            raise self.fault(
                f"rescale_factor {self.rescale_factor}, image_mean {self.mean.tolist()} and image_std "
                f"{self.std.tolist()} make pixel values that are not finite; want those of the checkpoint"
            )
        return table

    @property
    def rescale_factor(self) -> float:
        """What levels are multiplied with before mean and deviation."""
        found = self.image.get("rescale_factor", 1 / 255)
        try:
            factor = finite_number("rescale_factor", found)
            if factor <= 0:
                raise ValueError(f"rescale_factor is {shown(found)}; want a number above 0")
            return factor
        except ValueError as error:
            raise self.fault(str(error)) from None

    @property
    def mean(self) -> np.ndarray:
        """float32 [3], taken off after scaling."""
        return self._three("image_mean")

    @property
    def std(self) -> np.ndarray:
        """float32 [3], divided by."""
        values = self._three("image_std")
        if not (values > 0).all():
            raise self.fault(f"image_std is {values.tolist()}; want three positive numbers")
        return values

    def _three(self, name: str) -> np.ndarray:
        found = self.image.get(name)
        try:
            if not isinstance(found, list) or len(found) != 3:
                raise ValueError(f"{name} is {shown(found)}; want three numbers")
            return np.array([finite_number(name, value) for value in found], np.float32)
        except ValueError as error:
            raise self.fault(str(error)) from None


def _object(holder: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = holder.get(name)
    return found if isinstance(found, dict) else {}


def read_processor_settings(directory: Path, *, normalise: bool | None = None) -> ProcessorSettings:
    """The settings that a folder holds; newer checkpoints keep all of them in processor_config.json.

    :raises EngineDirectoryError: config.json is missing, or a file is unsound.
    """
    files = {name: read_json(directory / name) for name in (CONFIG, *FILES) if (directory / name).exists()}
    if CONFIG not in files:
        read_json(directory / CONFIG)  # says what is the matter
    return processor_settings(directory, files, normalise=normalise)


def processor_settings(
    directory: Path, files: Mapping[str, dict[str, Any]], *, normalise: bool | None = None
) -> ProcessorSettings:
    """The settings of config.json and of those of ``FILES`` that there are; ``directory`` is where they lie.

    ``normalise`` left out: unless config.json tells of a tower that takes levels.

    :raises EngineDirectoryError: config.json names no family.
    """
    config = files[CONFIG]
    family = config.get("model_type", config.get("type"))
    if not isinstance(family, str):
        raise EngineDirectoryError(
            f"{directory / CONFIG} has the model_type {shown(family)}; want the name of a family."
        )
    image_file, processor_file, video_file = FILES
    processor = files.get(processor_file, {})
    source, image = image_file, files.get(image_file, {})
    if not image and "image_processor" in processor:
        source, image = processor_file, _object(processor, "image_processor")
    video = files.get(video_file) or _object(processor, "video_processor") or image
    if normalise is None:
        normalise = _object(config, "tower").get("pixels") != LEVELS
    return ProcessorSettings(
        directory, plain_text(family), config, image, processor, video, directory / source, normalise=normalise
    )
