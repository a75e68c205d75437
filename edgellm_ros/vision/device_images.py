"""Images prepared where the tower runs: a frame goes there as it is, and kernels resize and cut it."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from ..backends.base import Backend, DataType, Tensor
from ..backends.image_kernels import Order
from .image_plan import ImagePlan
from .processor import PlannedProcessor, Processor
from .processor_settings import LEVELS
from .resize_taps import Filter, taps
from .visual_directory import VisualDirectory

MOST_TABLES = 32  # pairs of lengths whose weights stay on the device: cameras keep their size
MOST_KEPT_BYTES = 1 << 25  # of a picture whose memory is used again: 11 million pixels


class DeviceImages:
    """Belongs to the thread that drives the backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._tables: OrderedDict[Hashable, tuple[Tensor, ...]] = OrderedDict()
        self._kept: dict[str, Tensor] = {}

    def prepare(self, image: np.ndarray, plan: ImagePlan, out: Tensor | None = None) -> Tensor:
        """Levels of the plan's shape, of an image uint8 [H,W,3]: uint8, or in ``out``, which may be float32."""
        backend = self._backend
        pictures = [self.place(image)]
        for step in plan.steps:
            source = pictures[step.source]
            pictures.append(self.resized(source, step.height, step.width, plan.kernel, name=f"step {len(pictures)}"))
        out = out or backend.allocate(plan.shape, DataType.UINT8)
        start = 0
        for part in plan.parts:
            backend.images.rearrange(pictures[part.source], out, Order(*part.layout, out_start=start))
            start += part.rows * int(np.prod(part.row_shape))
        return out

    def place(self, image: np.ndarray) -> Tensor:
        """An image uint8 [H,W,3] on the device, in memory that the next one is written to behind all work on this."""
        frame = self._memory("frame", image.shape)
        frame.write(np.ascontiguousarray(image))
        return frame

    def resized(self, picture: Tensor, height: int, width: int, kernel: Filter, *, name: str = "") -> Tensor:
        """uint8 [height,width,3] of a picture uint8 [H,W,3]: columns first, then rows, as Pillow does.

        The next call with the same ``name`` overwrites it.
        """
        old_height, old_width, _ = picture.shape
        if old_width != width:
            shape, new_shape = (old_height, old_width, 3), (old_height, width, 3)
            picture = self._pass(shape, picture, kernel, self._memory(f"wide {name}", new_shape))
        if old_height != height:
            shape, new_shape = (1, old_height, 3 * width), (1, height, 3 * width)
            picture = self._pass(shape, picture, kernel, self._memory(f"whole {name}", new_shape))
        return picture.prefix((height, width, 3))

    def _memory(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Memory of that name, whose content is whatever was left there: all work is in order on one stream."""
        size = math.prod(shape)
        held = self._kept.get(name)
        if held is None or math.prod(held.shape) < size:
            held = self._backend.allocate(shape, DataType.UINT8)
            if size <= MOST_KEPT_BYTES:
                self._kept[name] = held
        return held.prefix(shape)

    def _pass(self, shape: tuple[int, ...], picture: Tensor, kernel: Filter, out: Tensor) -> Tensor:
        lengths = shape[1], out.shape[1]
        first, weights = self.tables((*lengths, kernel), lambda: taps(*lengths, kernel).whole())
        self._backend.images.resample(picture.prefix(shape), first, weights, out)
        return out

    def tables(self, key: Hashable, arrays: Callable[[], Sequence[np.ndarray]]) -> tuple[Tensor, ...]:
        """``arrays()`` int32 or float32 on the device, where those of a ``key`` are kept."""
        if key not in self._tables:
            placed = []
            for values in arrays():
                tensor = self._backend.allocate(values.shape, DataType(values.dtype.name))
                tensor.write(values)
                placed.append(tensor)
            self._tables[key] = tuple(placed)
            if len(self._tables) > MOST_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(key)
        return self._tables[key]

    def close(self) -> None:
        """Free the tables and the memory of pictures."""
        self._tables.clear()
        self._kept.clear()


def device_images(processor: Processor, directory: VisualDirectory, backend: Backend) -> DeviceImages | None:
    """Where the tower takes pixels as they come, and its backend likes to prepare them."""
    planned = isinstance(processor, PlannedProcessor) and directory.tower.pixels == LEVELS
    return DeviceImages(backend) if planned and backend.images.preferred else None
