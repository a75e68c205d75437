"""The seam: all that the runtime knows of a device.

Everything above this file is the same on a laptop CPU, a Jetson and a data-centre GPU. Nothing above may assume
that a tensor is a NumPy array, that a call has finished when it returns, or how a cache is laid out.

Rules that hold for every backend
* One thread uses a backend. Calls enqueue on its stream in order; ``Tensor.numpy`` and ``Readback.wait`` wait.
* Buffers are allocated once, at the deployment's maxima. ``Tensor.prefix(shape)`` is the same memory seen as its
  first ``prod(shape)`` elements: packed, so a smaller batch or chunk starts at the same address.
* A recorded step (``Backend.capture``) may only touch tensors that exist already, through kernels and engines.
* Rows of a batch are dense, 0..B-1; an engine call covers rows ``first_row .. first_row + B - 1`` of the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

# what is imported under its own name is part of the seam for its users
from .image_kernels import ImageKernels as ImageKernels
from .stream_work import Captured, Readback, Stopwatch
from .values import CacheLayout as CacheLayout
from .values import DataType as DataType
from .values import EngineCapabilities as EngineCapabilities
from .values import RopeKind as RopeKind
from .values import SamplingRow as SamplingRow
from .values import TensorSpec as TensorSpec
from .values import TokenSpan as TokenSpan


@runtime_checkable
class Tensor(Protocol):
    """A block of memory that a backend owns; ``shape`` may be a prefix view of a larger one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> DataType: ...

    def prefix(self, shape: tuple[int, ...]) -> Tensor:
        """The first ``prod(shape)`` elements as a tensor of that shape: same memory, no copy.

        :raises ValueError: when it holds fewer elements.
        """
        ...

    def write(self, values: np.ndarray) -> None:
        """Enqueue a copy of host ``values`` (same shape and dtype); the host array may be reused at once."""
        ...

    def numpy(self) -> np.ndarray:
        """Wait for the work that writes it; a view on the CPU, a fresh host copy elsewhere."""
        ...


class KVCache(Protocol):
    """Keys and values of all layers for ``rows`` sequences of up to ``capacity`` positions. The layout is private."""

    @property
    def rows(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    @property
    def dtype(self) -> DataType: ...

    @property
    def bytes_per_position(self) -> int:
        """Bytes that one position of one row takes over all layers."""
        ...

    def copy_row(self, source: int, destination: int, length: int) -> None:
        """Copy the first ``length`` positions of one row over another (fills the hole of a row that left)."""
        ...

    def export_block(self, row: int, start: int, count: int) -> Any:
        """A copy of ``count`` positions of a row, opaque, for the prefix-reuse store."""
        ...

    def import_block(self, row: int, start: int, block: Any) -> None:
        """Write a block that ``export_block`` gave (possibly of another row) at ``start``."""
        ...

    def copy_out(self, row: int, length: int, tensors: Sequence[Tensor]) -> None:
        """Enqueue a copy of the first ``length`` positions of a row, zeros behind them, for a graph that reads it.

        ``tensors`` are for the first layers, or all, keys [1,heads,head size,room], turned, then values
        [1,heads,room,head size], of the cache's type; ``room`` is at least ``length``, and the same everywhere.

        :raises MisuseError: another number, shape or type of tensors, or positions outside.
        """
        ...


class Engine(Protocol):
    """A compiled graph. Bind once, run many; ``run`` only enqueues."""

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        """Inputs by name, caches left out."""
        ...

    @property
    def outputs(self) -> Mapping[str, TensorSpec]: ...

    @property
    def capabilities(self) -> EngineCapabilities: ...

    def bind(self, name: str, tensor: Tensor) -> None:
        """Give an input or output the (maximum-size) tensor that it reads or writes from now on.

        :raises ValueError: unknown name or another element type.
        """
        ...

    def bind_cache(self, cache: KVCache) -> None:
        """Use these caches, in place."""
        ...

    def length_bucket(self, positions: int) -> int:
        """A length of at least ``positions``, equal for many of them, under which a step is run and recorded.

        0 where the cost of a run does not depend on how much of the caches is in use.
        """
        ...

    def run(self, shapes: Mapping[str, tuple[int, ...]], first_row: int = 0, cache_length: int = 0) -> None:
        """Enqueue one run; ``shapes`` gives the shape of every bound tensor, each packed at its start.

        ``cache_length`` bounds the positions in use once it has run, as ``length_bucket`` gave it; 0: the capacity.

        :raises BackendError: the engine library refused or failed.
        """
        ...

    def close(self) -> None: ...


class Sampler(Protocol):
    """Per-row sampling state on the device: parameters, penalties' token counts, bias and mask."""

    def set_row(self, row: int, parameters: SamplingRow, prompt_ids: Sequence[int], position: int) -> None:
        """Start a sequence in a row; ``position`` is that of its first draw (its prompt's length)."""
        ...

    def move_row(self, source: int, destination: int) -> None: ...

    def set_mask(self, row: int, allowed: np.ndarray | None) -> None:
        """Restrict a row's draws to a bit mask, int32 [ceil(V/32)], until another; None or ``set_row`` lifts it."""
        ...

    def sample(self, logits: Tensor, rows: Sequence[int], token_ids: Tensor) -> None:
        """Pick one token for each of ``rows``; logits float32 [N,V] in their order, token_ids int32 [N].

        Counts the token and advances the row's position. A row of logits that is not finite gives id -1.
        Logits may be changed in place.
        """
        ...

    def logprobs(self, index: int, count: int) -> list[tuple[int, float]]:
        """The last draw's chosen token first, then its ``count`` most likely, as (id, natural log) pairs.

        ``index`` counts in the order of the last ``sample`` call. Taken before temperature, after bias and penalties;
        only for rows whose ``num_logprobs`` is above 0.
        """
        ...


class Backend(Protocol):
    """A device: opens engines, owns memory and stream, and offers the kernels that the runtime needs."""

    @property
    def name(self) -> str: ...

    def open_engine(
        self,
        path: Path,
        *,
        cache_layout: CacheLayout | None = None,
        weights: Mapping[str, np.ndarray] | None = None,
    ) -> Engine:
        """Load the graph at ``path`` (or that of an engine directory) and probe it.

        ``weights`` takes the place of those that the graph says lie in files beside it; they are kept, not copied.

        :raises BackendError: it does not load, or its probe shows numbers this runtime cannot rely on.
        """
        ...

    def allocate(self, shape: tuple[int, ...], dtype: DataType) -> Tensor:
        """Zeroed memory."""
        ...

    def allocate_kv_cache(self, layout: CacheLayout, rows: int, capacity: int) -> KVCache: ...

    def allocate_sampler(self, rows: int, vocab_size: int) -> Sampler: ...

    def open_embeddings(self, path: Path, *, scale: float = 1.0, tensor: str = "embedding") -> EmbeddingTable:
        """Map a tensor [V,D] of a safetensors file (device memory on a GPU); read times ``scale``."""
        ...

    def gather_embeddings(self, table: EmbeddingTable, token_ids: Tensor, out: Tensor) -> None:
        """out[B,S,D] = scale * table[token_ids[B,S]]; ids outside the vocabulary give zeros."""
        ...

    def rope_tables(self, rope: RopeKind, positions: Tensor, cosine: Tensor, sine: Tensor) -> None:
        """cosine, sine float32 [B,S,head_dim/2] of positions int32 [B,S]."""
        ...

    def advance(self, tensors: Sequence[Tensor], amount: int = 1) -> None:
        """Add ``amount`` to every element of int32 ``tensors``: positions and lengths of a step that repeats."""
        ...

    def copy(self, source: Tensor, destination: Tensor) -> None:
        """Copy the elements of one tensor into another of equal shape and type."""
        ...

    def gather_rows(self, source: Tensor, rows: Tensor, out: Tensor) -> None:
        """out[m] = source[rows[m]]; source [N,D], rows int32 [M], out [M,D]; zeros for a row outside."""
        ...

    def splice_rows(self, source: Tensor, rows: Tensor, out: Tensor) -> None:
        """out[rows[m]] = source[m]; source [M,D], rows int32 [M], out [N,D]; nothing for a row outside."""
        ...

    def select_tokens(
        self, embeddings: Tensor, spans: Sequence[TokenSpan], text_pivots: int, image_pivots: int
    ) -> np.ndarray:
        """Rows of a prompt's embeddings [L,D] to keep, int32, ascending; ``token_selection.select_tokens`` says which.

        Chosen where the embeddings are; waits once, for the places.
        """
        ...

    @property
    def images(self) -> ImageKernels:
        """What it does to images of bytes."""
        ...

    def euler_step(self, state: Tensor, velocity: Tensor, step: float) -> None:
        """Add ``step * velocity`` to ``state``; float32 of equal shapes."""
        ...

    def capture(self, key: Hashable, step: Callable[[], None]) -> Captured:
        """Record ``step`` under ``key``; on the CPU simply the function. Never required for correctness."""
        ...

    def stopwatch(self) -> Stopwatch: ...

    def read_async(self, tensor: Tensor) -> Readback: ...

    def synchronize(self) -> None: ...

    def memory(self) -> Mapping[str, int]:
        """Bytes in use and free, by kind, for diagnostics."""
        ...

    def close(self) -> None: ...


class EmbeddingTable(Protocol):
    """Token embeddings [V,D]."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> DataType: ...
