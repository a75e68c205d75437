"""What every image processor gives, and which one a folder asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from ..errors import EngineDirectoryError, RequestError
from ..json_values import is_positive, shown
from .image_plan import ImagePlan, carry_out
from .processor_settings import ProcessorSettings, read_processor_settings

LARGEST_IMAGE = 1 << 28  # pixels
LARGEST_RATIO = 200  # of the longer side to the shorter
LONGEST_STEP = 86400  # s from one frame of a video to the next


@dataclass(frozen=True)
class ProcessedImages:
    """Images as a vision engine takes them, and what stands for them in the prompt.

    ``inputs``: tensors of the vision engine by name; the first dimension of each counts tiles or patches.
    ``rows``: how many of those rows belong to each image, in order.
    ``grids``: int64 [n,3], temporal, vertical and horizontal patches per image, for families with such positions.
    ``token_counts``: embedding rows per image, equal to the image tokens in its placeholder.
    ``placeholders``: the text that replaces each image's mark in the prompt.
    """

    inputs: Mapping[str, np.ndarray]
    rows: tuple[int, ...]
    token_counts: tuple[int, ...]
    placeholders: tuple[str, ...]
    grids: np.ndarray | None = None


class Processor(Protocol):
    """Images of one family, processed as it was trained. Safe to use from several threads."""

    @property
    def image_mark(self) -> str:
        """What the chat template writes where an image stands; each is replaced by one placeholder."""
        ...

    @property
    def image_token(self) -> str:
        """The token within a placeholder whose embedding the vision engine's rows replace."""
        ...

    def process(self, images: Sequence[np.ndarray]) -> ProcessedImages:
        """Images uint8 RGB [H,W,3] of any sizes, at least one.

        :raises RequestError: an array is no such image, or its shape is beyond what the family can take.
        """
        ...


@runtime_checkable
class PlannedProcessor(Processor, Protocol):
    """A family whose work on an image follows from its size, so that it can be done elsewhere."""

    @property
    def table(self) -> np.ndarray:
        """What each of 256 levels becomes, [256,3], float32 or uint8."""
        ...

    def plan(self, height: int, width: int) -> ImagePlan:
        """What happens to an image of this size.

        :raises RequestError: its shape is beyond what the family can take.
        """
        ...


@dataclass(frozen=True)
class Video:
    """Frames uint8 RGB [H,W,3] of equal size in order, and the time that each stands for; see ``check_video``.

    ``times``: s of each frame since the start, where frames were picked out of more; empty: one behind the other. Of
    F frames picked from first to last out of T s, each stands for T/F s, and they are T/(F-1) s apart.
    """

    frames: Sequence[np.ndarray]
    seconds_per_frame: float = field(default=1.0)
    times: Sequence[float] = ()

    def time_of(self, index: int) -> float:
        """Seconds of a frame since the start."""
        return self.times[index] if self.times else index * self.seconds_per_frame


class VideoProcessor(Processor, Protocol):
    """A family that takes frames as one video, with time among its positions."""

    @property
    def video_mark(self) -> str:
        """What the chat template writes where a video stands."""
        ...

    @property
    def video_token(self) -> str:
        """The token within a video's placeholder whose embedding the vision engine's rows replace."""
        ...

    def process_video(self, video: Video) -> ProcessedImages:
        """One video; ``grids`` [1,3] with as many temporal patches as pairs of frames.

        :raises RequestError: as ``process``; no frames; frames of different sizes; a time that is not positive.
        """
        ...


def _idefics3(settings: ProcessorSettings) -> Processor:
    from .processors.idefics3 import Idefics3Processor

    return Idefics3Processor.from_settings(settings)


def _qwen_vl(settings: ProcessorSettings) -> Processor:
    from .processors.qwen_vl import QwenVLProcessor

    return QwenVLProcessor.from_settings(settings)


def _internvl(settings: ProcessorSettings) -> Processor:
    from .processors.internvl import InternVLProcessor

    return InternVLProcessor.from_settings(settings)


def _siglip(settings: ProcessorSettings) -> Processor:
    from .processors.siglip import SiglipProcessor

    return SiglipProcessor.from_settings(settings)


def _gemma3(settings: ProcessorSettings) -> Processor:
    from .processors.gemma3 import Gemma3Processor

    return Gemma3Processor.from_settings(settings)


def _letterbox(settings: ProcessorSettings) -> Processor:
    from .processors.letterbox import LetterboxProcessor

    return LetterboxProcessor.from_settings(settings)


_FAMILIES: dict[str, Callable[[ProcessorSettings], Processor]] = {
    "idefics3": _idefics3,
    "smolvlm": _idefics3,
    "qwen2_vl": _qwen_vl,
    "qwen2_5_vl": _qwen_vl,
    "qwen3_vl": _qwen_vl,
    "internvl": _internvl,
    "internvl_chat": _internvl,
    "paligemma": _siglip,
    "gemma3": _gemma3,
    "smolvla": _letterbox,
    "pi0": _letterbox,
    "pi05": _letterbox,
}


def open_processor(visual_dir: Path, *, normalise: bool | None = None) -> Processor:
    """The image processor that the files of a folder describe.

    Reads config.json (``model_type``, or ``type`` of a lerobot policy) and, where the family has them,
    preprocessor_config.json, processor_config.json and video_preprocessor_config.json. With ``normalise=False``
    pixels stay uint8 in the same layout, for an engine that scales them itself by ``ProcessorSettings.mean`` and
    ``std``; left out, config.json says which the tower beside it wants.

    :raises EngineDirectoryError: a file is missing or unsound, or the family is none of those that can be processed.
    """
    settings = read_processor_settings(visual_dir, normalise=normalise)
    opened = _FAMILIES.get(settings.family)
    if opened is None:
        raise EngineDirectoryError(
            f"{visual_dir / 'config.json'} names the family {settings.family!r}, whose images cannot be processed; "
            f"want one of {', '.join(_FAMILIES)}."
        )
    if opened is not _letterbox:  # whose sizes are the policy's own
        settings.check_steps()
    return opened(settings)


def process_planned(processor: PlannedProcessor, images: Sequence[np.ndarray]) -> ProcessedImages:
    """``Processor.process`` of a family with plans, on the CPU."""
    check_images(images)
    plans = [processor.plan(*image.shape[:2]) for image in images]
    rows = tuple(plan.rows for plan in plans)
    pixels = np.empty((sum(rows), *plans[0].shape[1:]), processor.table.dtype)
    first = 0
    for image, plan in zip(images, plans, strict=True):
        carry_out(plan, image, processor.table, pixels[first : first + plan.rows])
        first += plan.rows
    grids = [plan.grid for plan in plans if plan.grid is not None]
    return ProcessedImages(
        inputs={"pixel_values": pixels},
        rows=rows,
        token_counts=tuple(plan.token_count for plan in plans),
        placeholders=tuple(plan.placeholder for plan in plans),
        grids=np.array(grids, np.int64) if grids else None,
    )


def check_images(images: Sequence[np.ndarray]) -> None:
    """Refuse whatever is not a list of uint8 RGB images [H,W,3], or long and narrow beyond use.

    :raises RequestError: the list is empty, or one is of another type, shape or size.
    """
    if len(images) == 0:
        raise RequestError("There is no image to process; give at least one.")
    for index, image in enumerate(images):
        if not isinstance(image, np.ndarray):
            raise RequestError(f"Image {index} is {type(image).__name__}; want a NumPy array [height, width, 3], RGB.")
        shape = tuple(image.shape)
        if image.dtype != np.uint8 or len(shape) != 3 or shape[2] != 3 or 0 in shape:
            raise RequestError(
                f"Image {index} is {image.dtype} of shape {list(shape)}; want uint8 of shape [height, width, 3], RGB."
            )
        if is_line(*shape[:2]):
            raise RequestError(
                f"An image of {shape[1]} by {shape[0]} pixels has an aspect ratio of "
                f"{max(shape[:2]) / min(shape[:2]):.1f}; want at most {LARGEST_RATIO}: crop it."
            )
        if shape[0] * shape[1] > LARGEST_IMAGE:
            raise RequestError(
                f"An image of {shape[1]} by {shape[0]} pixels is larger than any that is served; want at most "
                f"{LARGEST_IMAGE} pixels."
            )


def check_video(video: Video) -> None:
    """Refuse whatever is not frames of one size, with a time between them.

    :raises RequestError: no frames, or of another type, shape or size; a time that is not positive, or beyond a day;
        times that are not one for each frame, or fall.
    """
    frames, seconds = video.frames, video.seconds_per_frame
    if not isinstance(frames, list | tuple | np.ndarray):
        raise RequestError(f"The frames of a video are {type(frames).__name__}; want a list of images.")
    check_images(frames)
    sizes = {frame.shape[:2] for frame in frames}
    if len(sizes) != 1:
        raise RequestError(f"The frames of a video have {len(sizes)} different sizes; want all alike.")
    if not is_positive(seconds) or seconds > LONGEST_STEP:
        raise RequestError(
            f"A video has {shown(seconds)} seconds per frame; want a positive number up to {LONGEST_STEP}."
        )
    times = video.times
    if not isinstance(times, list | tuple) or len(times) not in (0, len(frames)):
        raise RequestError(f"A video of {len(frames)} frames has the times {shown(times)}; want one for each, or none.")
    last = 0.0
    for time in times:
        if not (time == last or is_positive(time)) or not last <= time <= LONGEST_STEP * len(frames):
            raise RequestError(
                f"The times of a video hold {shown(time)} behind {last:g} s; want seconds from 0 that do not fall, up "
                f"to {LONGEST_STEP} a frame."
            )
        last = time


def is_line(height: int, width: int) -> bool:
    """Whether an image is too long and narrow: a line of 16 million pixels, stretched to a square, takes gigabytes."""
    return max(height, width) > LARGEST_RATIO * min(height, width)
