"""What a graph is made of: values, nodes, and weights that are described but not read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .elements import stored_dtype
from .weights import WeightPart

Dimension = int | str  # a name marks a dimension that varies from run to run


@dataclass(frozen=True)
class Value:
    """A tensor inside the graph, by name."""

    name: str


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of the graph; ``dtype`` is a NumPy name."""

    name: str
    dtype: str
    shape: tuple[Dimension, ...]


@dataclass(frozen=True)
class Node:
    """One operator; an empty name among the inputs stands for an absent one."""

    operator: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class StoredTensor:
    """A weight as it lies on disk; ``dtype`` is a NumPy name, bfloat16, or int4: two to a byte along the last axis."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def stored_dtype(self) -> str:
        """NumPy name of what the bytes are read and written as."""
        return "uint8" if self.dtype == "int4" else stored_dtype(self.dtype).name

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape in ``stored_dtype``."""
        return (*self.shape[:-1], -(-self.shape[-1] // 2)) if self.dtype == "int4" else self.shape

    @property
    def size(self) -> int:
        """Bytes."""
        return int(np.prod(self.stored_shape, dtype=np.int64)) * np.dtype(self.stored_dtype).itemsize


@dataclass(frozen=True)
class Parameter:
    """Tensors that come from one pass over one weight; ``bands`` yields a piece of each of them at a time.

    ``axis`` is the one along which the pieces follow each other.
    """

    weight: str
    tensors: tuple[StoredTensor, ...]
    bands: Callable[[], Iterator[tuple[np.ndarray, ...]]]
    axis: int = 0
    parts: tuple[WeightPart, ...] = ()  # where it is elements as the checkpoint's tensors give them


@dataclass(frozen=True)
class Product:
    """``x`` is multiplied with the matrix ``weight``, which has so many columns."""

    weight: str
    columns: int
    x: Value


@dataclass(frozen=True)
class SharedTensor:
    """Where a matrix of elements lies already, so that the graph need not hold a second copy."""

    file: str
    offset: int


@dataclass(frozen=True)
class AttentionShape:
    """One attention layer: its heads, and how a query sees keys.

    ``rope`` names the rope kind whose tables rotate the halves of each head (None: no rotation); ``window`` is the
    number of keys that a query sees, itself included (0: all); scores become ``softcap * tanh(scores / softcap)``
    (0: they stay).
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: str | None
    window: int = 0
    softcap: float = 0.0
