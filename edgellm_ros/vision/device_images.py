"""Images prepared where the tower runs: a frame goes there as it is, and kernels resize and cut it."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from ..backends.base import Backend, DataType, Tensor
from ..backends.image_kernels import Order
from .image_plan import ImagePlan
from .resize_taps import Filter, taps

MOST_TABLES = 32  # pairs of lengths whose weights stay on the device: cameras keep their size


class DeviceImages:
    """Belongs to the thread that drives the backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._tables: OrderedDict[tuple[int, int, Filter], tuple[Tensor, Tensor]] = OrderedDict()

    def prepare(self, image: np.ndarray, plan: ImagePlan) -> Tensor:
        """Levels uint8 of the plan's shape, of an image uint8 [H,W,3]."""
        backend = self._backend
        frame = backend.allocate(image.shape, DataType.UINT8)
        frame.write(np.ascontiguousarray(image))
        pictures = [frame]
        for step in plan.steps:
            pictures.append(self._resized(pictures[step.source], step.height, step.width, plan.kernel))
        out = backend.allocate(plan.shape, DataType.UINT8)
        start = 0
        for part in plan.parts:
            backend.images.rearrange(pictures[part.source], out, Order(*part.layout, out_start=start))
            start += part.rows * int(np.prod(part.row_shape))
        return out

    def _resized(self, picture: Tensor, height: int, width: int, kernel: Filter) -> Tensor:
        """Columns first, then rows, as Pillow does."""
        old_height, old_width, _ = picture.shape
        if old_width != width:
            picture = self._pass((old_height, old_width, 3), (old_height, width, 3), picture, kernel)
        if old_height != height:
            picture = self._pass((1, old_height, 3 * width), (1, height, 3 * width), picture, kernel)
        return picture.prefix((height, width, 3))

    def _pass(self, shape: tuple[int, ...], new_shape: tuple[int, ...], picture: Tensor, kernel: Filter) -> Tensor:
        out = self._backend.allocate(new_shape, DataType.UINT8)
        first, weights = self._table(shape[1], new_shape[1], kernel)
        self._backend.images.resample(picture.prefix(shape), first, weights, out)
        return out

    def _table(self, length: int, new_length: int, kernel: Filter) -> tuple[Tensor, Tensor]:
        key = (length, new_length, kernel)
        if key not in self._tables:
            placed = []
            for values in taps(length, new_length, kernel).whole():
                tensor = self._backend.allocate(values.shape, DataType.INT32)
                tensor.write(values)
                placed.append(tensor)
            self._tables[key] = (placed[0], placed[1])
            if len(self._tables) > MOST_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(key)
        return self._tables[key]

    def close(self) -> None:
        """Free the tables."""
        self._tables.clear()
