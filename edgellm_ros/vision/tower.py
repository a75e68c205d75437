"""An image tower on a device: pixel values in, rows for the language model out."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np

from ..backends.base import Backend, DataType, Tensor
from ..backends.image_kernels import Order
from ..errors import EngineDirectoryError, RequestError
from .grid_tables import grid_tables
from .media import EncodedMedia
from .visual_directory import TILES, VisualDirectory

MOST_GRIDS = 8  # whose tables are kept: cameras of a robot keep their size
PIXELS, EMBEDS = "pixel_values", "image_embeds"
_PLANE = "deepstack_"


@dataclass(frozen=True)
class PlacedImage:
    """Where the tower finds ``pixels`` and leaves ``encoded`` whenever it is ``run``, which touches nothing else."""

    pixels: Tensor
    encoded: EncodedMedia
    run: Callable[[], None]

    def write(self, pixels: np.ndarray) -> None:
        """What the next run sees, as ``Tower.encode`` takes it."""
        values = pixels.reshape(self.pixels.shape)
        self.pixels.write(np.ascontiguousarray(values, dtype=self.pixels.dtype.numpy))


class Tower:
    """Belongs to the thread that drives the backend.

    :raises BackendError: the engine does not load.
    :raises EngineDirectoryError: its tensors are not those that ``config.json`` tells of.
    """

    def __init__(self, directory: VisualDirectory, backend: Backend) -> None:
        self.settings = directory.tower
        self._backend = backend
        with ExitStack() as undo:
            self._engine = undo.enter_context(closing(backend.open_engine(directory.graph)))
            self._tables: OrderedDict[tuple[int, int], dict[str, Tensor]] = OrderedDict()
            self.planes = [f"{_PLANE}{index}" for index in range(self.settings.deepstack_planes)]
            for name, tensor in ((PIXELS, self._engine.inputs.get(PIXELS)), (EMBEDS, self._engine.outputs.get(EMBEDS))):
                if tensor is None:
                    raise EngineDirectoryError(f"{directory.graph} has no {name!r}; build the engine directory again.")
            width = self._engine.outputs[EMBEDS].shape[2]
            planes = {name for name in self._engine.outputs if name.startswith(_PLANE)}
            if width != self.settings.hidden_size or planes != {*self.planes}:
                raise EngineDirectoryError(
                    f"{directory.graph} gives rows of {width} numbers and {len(planes)} planes; config.json tells of "
                    f"{self.settings.hidden_size} and {self.settings.deepstack_planes}: build the engine directory "
                    "again."
                )
            undo.pop_all()

    def encode(self, pixels: np.ndarray | Tensor, grid: tuple[int, int, int] | None = None) -> EncodedMedia:
        """Rows of one item: tiles [N,3,side,side], or patches [S,values] of a ``grid`` [time,rows,columns].

        Pixels are float32, or levels of 0 to 255 as the settings say, which may be uint8 or on the device.

        :raises RequestError: pixel values of another shape than the tower takes.
        :raises BackendError: the engine failed.
        """
        shape, tokens, tables = self._checked(tuple(pixels.shape), grid)
        images, width = shape[0], self.settings.hidden_size
        names = (EMBEDS, *self.planes)
        rows = {name: self._backend.allocate((images * tokens, width), DataType.FLOAT32) for name in names}
        for start, stop in self._groups(images, tokens):
            count = stop - start
            whole = count == images
            size = (count * tokens, width)
            part = rows if whole else {name: self._backend.allocate(size, DataType.FLOAT32) for name in names}
            self._run(self._taken(pixels, start, (count, *shape[1:])), tokens, tables, part)
            if not whole:
                index = self._backend.allocate((count * tokens,), DataType.INT32)
                index.write(np.arange(start * tokens, stop * tokens, dtype=np.int32))
                for name in names:
                    self._backend.splice_rows(part[name], index, rows[name])
        return EncodedMedia(rows[EMBEDS], tuple(rows[name] for name in self.planes))

    def place(self, shape: tuple[int, ...], grid: tuple[int, int, int] | None = None) -> PlacedImage:
        """Tensors for images of a shape and grid that come again and again, as many as one call takes.

        :raises RequestError: pixel values of another shape than the tower takes.
        """
        shape, tokens, tables = self._checked(shape, grid)
        rows = {
            name: self._backend.allocate((shape[0] * tokens, self.settings.hidden_size), DataType.FLOAT32)
            for name in (EMBEDS, *self.planes)
        }
        pixels = self._backend.allocate(shape, self._engine.inputs[PIXELS].dtype)
        encoded = EncodedMedia(rows[EMBEDS], tuple(rows[name] for name in self.planes))
        return PlacedImage(pixels, encoded, lambda: self._run(pixels, tokens, tables, rows))

    def _checked(
        self, shape: tuple[int, ...], grid: tuple[int, int, int] | None
    ) -> tuple[tuple[int, ...], int, Mapping[str, Tensor]]:
        """The shape with an axis for tiles or frames, tokens of each, and the tables of their grid."""
        settings = self.settings
        if settings.layout == TILES:
            wanted = (settings.num_channels, settings.image_size, settings.image_size)
            if len(shape) != 4 or shape[1:] != wanted or not shape[0]:
                raise RequestError(f"pixel values have the shape {shape}; want tiles of {wanted}.")
            return shape, settings.tokens_per_tile, {}
        values = settings.num_channels * settings.temporal_patch_size * settings.patch_size**2
        merge = settings.spatial_merge_size
        if grid is None or min(grid) < 1 or grid[1] % merge or grid[2] % merge:
            raise RequestError(f"the grid of an image is {grid}; want three numbers, two of them multiples of {merge}.")
        frames, height, width = grid
        if shape != (frames * height * width, values):
            raise RequestError(
                f"pixel values have the shape {shape}; want {(frames * height * width, values)} for the grid {grid}."
            )
        return (frames, height * width, values), height * width // merge**2, self._grid(height, width)

    def _grid(self, height: int, width: int) -> Mapping[str, Tensor]:
        found = self._tables.get((height, width))
        if found is None:
            found = {}
            for name, array in grid_tables(self.settings, height, width).items():
                found[name] = self._backend.allocate(array.shape, self._engine.inputs[name].dtype)
                found[name].write(array)
            self._tables[height, width] = found
            if len(self._tables) > MOST_GRIDS:
                self._tables.popitem(last=False)
        self._tables.move_to_end((height, width))
        return found

    def _groups(self, count: int, tokens: int) -> Iterator[tuple[int, int]]:
        settings = self.settings
        tiles = settings.layout == TILES
        step = settings.images_at_once(settings.tile_positions if tiles else tokens * settings.spatial_merge_size**2)
        return ((start, min(start + step, count)) for start in range(0, count, step))

    def _taken(self, pixels: np.ndarray | Tensor, start: int, shape: tuple[int, ...]) -> Tensor:
        """The tiles or frames from ``start`` on, as the engine takes them."""
        backend, dtype = self._backend, self._engine.inputs[PIXELS].dtype
        taken = backend.allocate(shape, dtype)
        size = math.prod(shape[1:])
        if isinstance(pixels, np.ndarray):
            part = pixels.reshape(-1, *shape[1:])[start : start + shape[0]]
            taken.write(np.ascontiguousarray(part, dtype=dtype.numpy))
        else:
            backend.images.rearrange(pixels, taken, Order((shape[0] * size,), (1,), start * size))
        return taken

    def _run(self, pixels: Tensor, tokens: int, tables: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> None:
        engine = self._engine
        shapes: dict[str, tuple[int, ...]] = {PIXELS: pixels.shape}
        engine.bind(PIXELS, pixels)
        for name, table in tables.items():
            engine.bind(name, table)
            shapes[name] = table.shape
        for name, out in rows.items():
            engine.bind(name, out)
            shapes[name] = (pixels.shape[0], tokens, self.settings.hidden_size)
        engine.run(shapes)

    def close(self) -> None:
        """Free the engine."""
        self._tables.clear()
        self._engine.close()
