"""Images for a language model: processed, placed in a prompt, encoded once."""

from __future__ import annotations

import hashlib
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..backends.base import Backend, Tensor
from ..backends.registry import graph_libraries
from ..errors import RefusalCode, RequestError
from .agreement import check_fit, mrope_rule
from .device_images import device_images
from .encoder_cache import DEFAULT_BUDGET_BYTES, EncoderCache
from .image_plan import ImagePlan
from .media import IMAGE, VIDEO, EncodedMedia, Media, MediaItem
from .mrope import MropeRule
from .processor import PlannedProcessor, ProcessedImages, Processor, Video, check_images, check_video, open_processor
from .tower import PIXELS, Tower
from .visual_directory import VisualDirectory, open_visual_directory

WARM_UP_SIZE = (480, 640)  # pixels of an image: rows, columns
MOST_LAYOUTS = 64  # sizes of images whose placeholders are kept


@dataclass
class VisionMetrics:
    """Of a vision runner. Seconds are of the host, and on a GPU do not wait for the device.

    ``images`` and ``image_tokens`` are those of prompts, whatever of them was known; ``encoded`` is what the tower ran.
    """

    images: int = 0
    image_tokens: int = 0
    encoded: int = 0
    processing_seconds: float = 0.0
    encoding_seconds: float = 0.0


class VisionRunner:
    """``place`` may run on any threads; ``encode`` belongs to the one that drives the backend.

    ``tower_backend`` runs the tower in place of ``backend``, which gets copies of its rows; it is closed with this, and
    where this cannot be made.

    :raises BackendError: the tower does not load.
    :raises EngineDirectoryError: the directory fails a check.
    """

    def __init__(
        self,
        directory: VisualDirectory,
        backend: Backend,
        *,
        processor: Processor | None = None,
        cache_bytes: int = DEFAULT_BUDGET_BYTES,
        tower_backend: Backend | None = None,
    ) -> None:
        with ExitStack() as undo:
            if tower_backend is not None:
                undo.callback(tower_backend.close)
            self.directory = directory
            self.processor = processor or open_processor(directory.path)
            self._backend = backend
            self._tower_backend = tower_backend  # where the tower runs, if not where the language model does
            self._rule = mrope_rule(directory)
            check_fit(self.processor, directory, WARM_UP_SIZE)
            self.tower = undo.enter_context(closing(Tower(directory, tower_backend or backend)))
            self._device = device_images(self.processor, directory, tower_backend or backend)
            if self._device is not None:
                undo.callback(self._device.close)
            self.cache = EncoderCache(cache_bytes)
            self.metrics = VisionMetrics()
            self._counting = threading.Lock()  # of what several threads add to
            # Placeholder and grid follow from the size of an image alone, and cameras keep theirs.
            self._layouts: dict[tuple[int, ...], MediaItem] = {}
            self._closing = undo.pop_all()

    @classmethod
    def open(cls, path: Path, backend: Backend, **options: Any) -> VisionRunner:
        """The runner of a directory ``visual``."""
        return cls(open_visual_directory(path), backend, **options)

    # -- before the prompt is known ----------------------------------------------------------------------------

    @property
    def image_mark(self) -> str:
        """What the chat template writes where an image stands."""
        return self.processor.image_mark

    @property
    def video_mark(self) -> str | None:
        """The same for a video; None where the family has none."""
        return getattr(self.processor, "video_mark", None)

    def place(self, content: Media) -> MediaItem:
        """An image or video, ready to stand in a prompt.

        :raises RequestError: it cannot be processed, or the family takes no videos.
        """
        start = time.perf_counter()
        kind = VIDEO if isinstance(content, Video) else IMAGE
        if isinstance(content, Video):
            check_video(content)
        else:
            check_images([content])
            # A camera's next frame may go into the same memory before the tower has looked at this one.
            content = np.array(content, order="C")
        digest = _digest(content)
        shape = () if isinstance(content, Video) else content.shape
        known = self._layouts.get(shape) if shape else None
        if known is not None and digest in self.cache:
            item = replace(known, content=content, digest=digest)
        else:
            item = self._item(kind, content, digest)
            if shape and len(self._layouts) < MOST_LAYOUTS:
                self._layouts[shape] = replace(item, content=np.empty(0), inputs=None)
        with self._counting:
            self.metrics.processing_seconds += time.perf_counter() - start
        return item

    def _item(self, kind: str, content: Media, digest: bytes) -> MediaItem:
        plan = self._plan(content)
        if plan is not None:
            token = self.processor.image_token
            return MediaItem(kind, content, digest, plan.placeholder, token, plan.token_count, plan.grid)
        processed = self._process(content)
        token = self.processor.image_token if kind == IMAGE else str(getattr(self.processor, "video_token", ""))
        return MediaItem(
            kind,
            content,
            digest,
            processed.placeholders[0],
            token,
            processed.token_counts[0],
            None if processed.grids is None else _triple(processed.grids[0]),
            processed.inputs,
        )

    def _plan(self, content: Media) -> ImagePlan | None:
        """What the device does to an image when it is encoded; None where the processor does it, on the CPU."""
        if self._device is None or isinstance(content, Video):
            return None
        assert isinstance(self.processor, PlannedProcessor)
        return self.processor.plan(*content.shape[:2])

    def _process(self, content: Media) -> ProcessedImages:
        if not isinstance(content, Video):
            return self.processor.process([content])
        process = getattr(self.processor, "process_video", None)
        if process is None:
            raise RequestError(
                f"a video is given, and {self.tower.settings.model_type} takes none; give its frames as images.",
                RefusalCode.UNSUPPORTED,
            )
        processed: ProcessedImages = process(content)
        return processed

    # -- positions ---------------------------------------------------------------------------------------------

    def mrope_rule(self) -> MropeRule | None:
        """How the family counts positions on three axes; None where it has one."""
        return self._rule

    def blocks(self, places: list[np.ndarray], length: int) -> tuple[tuple[int, int], ...]:
        """Spans of a prompt of ``length`` whose tokens see each other in both directions."""
        if self.tower.settings.blocks == "prompt":
            return ((0, length),)
        if self.tower.settings.blocks != "images" or not places:
            return ()
        tokens = np.concatenate(places)
        runs = np.split(tokens, np.flatnonzero(np.diff(tokens) > 1) + 1)  # images that touch are one block
        return tuple((int(run[0]), int(run[-1]) + 1) for run in runs)

    # -- on the device -----------------------------------------------------------------------------------------

    def encode(self, item: MediaItem) -> EncodedMedia:
        """The rows of an item, from the cache where it was seen before.

        :raises BackendError: the engine failed.
        :raises RequestError: pixel values of a shape that the tower does not take.
        """
        start = time.perf_counter()
        metrics = self.metrics
        encoded = self.cache.get(item.digest)
        if encoded is None:
            encoded = self.tower.encode(self.pixels(item), item.grid)
            if encoded.embeddings.shape[0] != item.token_count:
                raise RequestError(
                    f"an image gave {encoded.embeddings.shape[0]} rows for {item.token_count} tokens of the prompt; "
                    "build the engine directory again."
                )
            encoded = self._brought_over(encoded)
            self.cache.put(item.digest, encoded)
            metrics.encoded += 1
        metrics.encoding_seconds += time.perf_counter() - start
        return encoded

    def warm_up(self) -> None:
        """Where the tower's backend has a choice of libraries, let it choose, on a black image."""
        if graph_libraries(self._tower_backend or self._backend):
            item = self._item(IMAGE, np.zeros((*WARM_UP_SIZE, 3), np.uint8), b"")
            self.tower.encode(self.pixels(item), item.grid)

    def pixels(self, item: MediaItem) -> np.ndarray | Tensor:
        """What the tower takes of an item: made on its device where that is done there."""
        plan = self._plan(item.content) if item.inputs is None else None
        if plan is not None and self._device is not None:
            return self._device.prepare(item.content, plan)  # type: ignore[arg-type]
        return (item.inputs or self._process(item.content).inputs)[PIXELS]

    def _brought_over(self, encoded: EncodedMedia) -> EncodedMedia:
        """The rows in memory of the language model's device."""
        if self._tower_backend is None:
            return encoded

        def copy(rows: Tensor) -> Tensor:
            place = self._backend.allocate(rows.shape, rows.dtype)
            place.write(rows.numpy())
            return place

        return EncodedMedia(copy(encoded.embeddings), tuple(copy(plane) for plane in encoded.planes))

    def describe(self) -> dict[str, Any]:
        """Tower and encoder cache as plain values, for reports and diagnostics. Any thread may ask."""
        return {
            "model_type": self.tower.settings.model_type,
            "precision": self.directory.manifest.precision,
            "images": self.metrics.images,
            "image_tokens": self.metrics.image_tokens,
            "encoded": self.metrics.encoded,
            "processing_seconds": self.metrics.processing_seconds,
            "encoding_seconds": self.metrics.encoding_seconds,
            "cache_items": len(self.cache),
            "cache_bytes": self.cache.nbytes,
            "cache_budget_bytes": self.cache.budget_bytes,
        }

    def close(self) -> None:
        """Free the tower and what it gave; a second call does nothing."""
        self.cache.clear()
        self._closing.close()


def _triple(grid: np.ndarray) -> tuple[int, int, int]:
    times, rows, columns = (int(value) for value in grid)
    return times, rows, columns


def _digest(content: Media) -> bytes:
    """128 bits over everything that the tower will see."""
    frames = content.frames if isinstance(content, Video) else (content,)
    checksum = hashlib.blake2b(digest_size=16)
    if isinstance(content, Video):
        checksum.update(f"video {content.seconds_per_frame!r} {[*content.times]!r}".encode())
    for frame in frames:
        array = np.ascontiguousarray(frame)
        checksum.update(f"{array.dtype.str} {array.shape}".encode())
        checksum.update(array.data)
    return checksum.digest()
