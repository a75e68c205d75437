"""The inputs through which an engine gets adapters, and which places the rows of a call use."""

from __future__ import annotations

import numpy as np

from ..adapter_format import MASK, AdapterFormat, input_names
from ..backends.base import Backend, DataType, Engine, Tensor
from ..errors import EngineDirectoryError
from .peft_folder import AdapterWeights


class AdapterTensors:
    """Allocated once at the limits and bound, as all inputs are. Belongs to the thread that drives the runtime.

    :raises EngineDirectoryError: the graph has no room for what config.json describes.
    """

    def __init__(self, backend: Backend, engine: Engine, form: AdapterFormat, rows: int) -> None:
        self._backend = backend
        self.form = form
        self._slots = [0] * rows  # place of the adapter of each row
        self._tensors: dict[str, Tensor] = {}
        self._written: object = None
        self._filled: set[tuple[int, int]] = set()  # (product, place) whose rows are not zero
        self._varying = False
        self._counts: dict[str, int] = {}  # targets of each input
        for index, stack in enumerate(form.stacks):
            count = len(stack.targets)
            for name, width in zip(input_names(index, count), (stack.columns, stack.rows), strict=True):
                self._counts[name] = count
                self._bind(engine, name, (count * form.total_rows, width))
        self._bind(engine, MASK, (rows, form.total_rows))
        self._varying = engine.inputs[MASK].shape[1] == -1
        most = max(self._counts.values()) * form.rank
        widest = max(self._tensors[name].shape[1] for name in self._counts)
        self._staging = backend.allocate((most, widest), self._tensors[next(iter(self._counts))].dtype)
        self._places = backend.allocate((most,), DataType.INT32)

    def _bind(self, engine: Engine, name: str, shape: tuple[int, ...]) -> None:
        spec = engine.inputs.get(name)
        if spec is None or len(spec.shape) != 2 or spec.shape[1] not in (-1, shape[1]):
            raise EngineDirectoryError(
                f"config.json describes room for adapters, but the graph has no input {name!r} of {shape[1]} numbers; "
                "build the engine directory again."
            )
        self._tensors[name] = self._backend.allocate(shape, spec.dtype)
        engine.bind(name, self._tensors[name])

    @property
    def names(self) -> set[str]:
        """The inputs that it binds."""
        return set(self._tensors)

    def load(self, weights: AdapterWeights, slot: int) -> None:
        """Fill a place: its rows beyond the adapter's rank become zero.

        What an adapter leaves out is not written where the place was zero before: memory that was never written costs
        an engine on the CPU next to nothing to read.
        """
        for index, pair in enumerate(weights.stacks):
            if pair[1].any():
                self._filled.add((index, slot))
            elif (index, slot) in self._filled:
                self._filled.discard((index, slot))
            else:
                continue
            count = len(self.form.stacks[index].targets)
            rows = count * self.form.rank
            places = self._places.prefix((rows,))
            places.write(np.arange((slot - 1) * rows, slot * rows, dtype=np.int32))
            for name, values in zip(input_names(index, count), pair, strict=True):
                tensor = self._tensors[name]
                padded = np.zeros((rows, tensor.shape[1]), np.float32)
                padded[: count * weights.rank] = values.reshape(count * weights.rank, -1)
                staged = self._staging.prefix(padded.shape)
                staged.write(_as_element(padded, tensor.dtype))
                self._backend.splice_rows(staged, places, tensor)

    def set_row(self, row: int, slot: int) -> None:
        """A sequence that uses this place sits in a row; 0: it uses none."""
        self._slots[row] = slot

    def move_row(self, source: int, destination: int) -> None:
        """A sequence moved."""
        self._slots[destination] = self._slots[source]

    def rows_in_use(self, first_row: int, batch: int) -> int:
        """L of a call of these rows: up to the last place in use where the engine can leave out the rest."""
        if not self._varying:
            return self.form.total_rows
        return max(1, max(self._slots[first_row : first_row + batch]) * self.form.rank)

    def shapes(self, batch: int, adapter_rows: int) -> dict[str, tuple[int, ...]]:
        """The shape of every input in a call."""
        shapes = {name: (count * adapter_rows, self._tensors[name].shape[1]) for name, count in self._counts.items()}
        return {**shapes, MASK: (batch, adapter_rows)}

    def write_mask(self, first_row: int, batch: int, adapter_rows: int) -> None:
        """Say which places the rows of the next call use; nothing is written where that is as it was."""
        slots = tuple(self._slots[first_row : first_row + batch])
        if self._written == (slots, adapter_rows):
            return
        mask = np.zeros((batch, adapter_rows), np.float32)
        for row, slot in enumerate(slots):
            if slot:
                mask[row, (slot - 1) * self.form.rank : slot * self.form.rank] = 1.0
        self._tensors[MASK].prefix(mask.shape).write(mask)
        self._written = (slots, adapter_rows)


def _as_element(values: np.ndarray, dtype: DataType) -> np.ndarray:
    if dtype is not DataType.BFLOAT16:
        return values.astype(dtype.numpy, copy=False)
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
