"""The GPU backend: memory, kernels, engines and recorded steps of one NVIDIA GPU behind the seam."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import BackendError, MisuseError
from ..base import CacheLayout, DataType, EmbeddingTable, ImageKernels, RopeKind, Tensor, TokenSpan
from ..host_embeddings import TENSOR_NAME
from .device import Device
from .embeddings import CUDAEmbeddingTable
from .engine_frame import EngineFrame
from .engine_loader import EngineLoader
from .graphs import CUDAStep, Recorder
from .images import CUDAImages
from .kernels import Kernels
from .kv_cache import CacheOrder, CUDAKVCache
from .sampler import CUDASampler
from .selection import TokenSelection
from .stopwatch import CUDAStopwatch
from .tensor import CUDAMemory, CUDATensor, cuda_tensor

_THREADS = 256
_MOST_ADVANCED = 4  # arrays that one kernel takes


class CUDABackend:
    """``library`` runs the engines: ``tensorrt`` or ``onnxruntime``.

    ``device`` and ``kernels`` may be given where others share them, ``module`` instead of the library's own.

    :raises MissingPackageError: cuda-python is not installed.
    :raises BackendError: no driver, no GPU, or one that cannot be used.
    """

    def __init__(
        self,
        library: str,
        ordinal: int = 0,
        *,
        device: Device | None = None,
        kernels: Kernels | None = None,
        module: Any | None = None,
    ) -> None:
        if library not in ("tensorrt", "onnxruntime"):
            raise BackendError(f"library is {library!r}; want 'tensorrt' or 'onnxruntime'.")
        self._library = library
        with ExitStack() as undo:
            self.device = device or undo.enter_context(closing(Device(ordinal)))
            self.kernels = kernels or Kernels(self.device)
            self._recorder = Recorder(self.device, host_calls=library == "tensorrt")
            self._loader = EngineLoader(self.device, self.kernels, self._recorder, library, module)
            self._selection = TokenSelection(self.device, self.kernels)
            self.images: ImageKernels = CUDAImages(self.device, self.kernels)
            self._engines: list[EngineFrame] = []
            self._steps: set[CUDAStep] = set()
            self._stopwatches: set[CUDAStopwatch] = set()
            self._frequencies: dict[RopeKind, CUDAMemory] = {}
            self._order = CacheOrder.HEADS_FIRST
            self._closed = False
            undo.pop_all()

    @property
    def name(self) -> str:
        """``tensorrt`` or ``onnxruntime_cuda``."""
        return self._library if self._library == "tensorrt" else "onnxruntime_cuda"

    def _check_open(self) -> None:
        if self._closed:
            raise MisuseError("this GPU backend is closed; open a new one.")

    # engines

    def open_engine(
        self,
        path: Path,
        *,
        cache_layout: CacheLayout | None = None,
        weights: Mapping[str, np.ndarray] | None = None,
    ) -> EngineFrame:
        """Load the plan or graph at ``path`` (or that of an engine directory) and probe it.

        :raises BackendError: it does not load or does not fit this GPU, there is not enough memory, its caches are
            not ``cache_layout``, or its probe shows numbers that this runtime cannot rely on.
        """
        self._check_open()
        if weights is not None:
            raise BackendError(
                f"the backend {self.name} takes no weights from a checkpoint; build them into the engine."
            )
        engine = self._loader.open(Path(path), cache_layout)
        self._engines.append(engine)
        if engine.caches.layout.layers:
            self._order = engine.caches.order
        return engine

    # memory

    def allocate(self, shape: tuple[int, ...], dtype: DataType) -> CUDATensor:
        """Zeroed memory.

        :raises BackendError: the GPU has not enough.
        """
        self._check_open()
        return CUDATensor.zeros(self.device, shape, dtype)

    def allocate_kv_cache(self, layout: CacheLayout, rows: int, capacity: int) -> CUDAKVCache:
        """Zeroed caches, in the order that the engine opened last wants.

        :raises BackendError: an element type that this backend has not, or not enough memory.
        """
        self._check_open()
        return CUDAKVCache(self.device, self.kernels, layout, rows, capacity, self._order)

    def allocate_sampler(self, rows: int, vocab_size: int) -> CUDASampler:
        """Sampling state for ``rows`` sequences."""
        self._check_open()
        return CUDASampler(self.device, self.kernels, self._recorder, rows, vocab_size)

    def open_embeddings(self, path: Path, *, scale: float = 1.0, tensor: str = TENSOR_NAME) -> CUDAEmbeddingTable:
        """Copy a tensor [V,D] of a safetensors file to the GPU.

        :raises EngineDirectoryError: missing, damaged, or of an element type this runtime cannot read.
        """
        self._check_open()
        return CUDAEmbeddingTable(self.device, Path(path), scale, tensor)

    # kernels

    def gather_embeddings(self, table: EmbeddingTable, token_ids: Tensor, out: Tensor) -> None:
        """Fill out float32 [B,S,D] with scale * table[token_ids int32 [B,S]]; ids outside the vocabulary give zeros."""
        if not isinstance(table, CUDAEmbeddingTable):
            raise MisuseError(f"a {type(table).__name__} was given to a GPU backend; want a table that it opened.")
        ids, rows = cuda_tensor(token_ids, self.device), cuda_tensor(out, self.device)
        if rows.shape != (*ids.shape, table.shape[1]):
            raise ValueError(
                f"embeddings of ids {ids.shape} were asked into {rows.shape}; want [..., {table.shape[1]}]."
            )
        table.gather(self.kernels, ids, rows)

    def rope_tables(self, rope: RopeKind, positions: Tensor, cosine: Tensor, sine: Tensor) -> None:
        """cosine, sine float32 [B,S,head_dim/2] of positions int32 [B,S]; angles are float32 products."""
        frequency = self._frequencies.get(rope)
        if frequency is None:
            values = np.asarray(rope.inverse_frequency, dtype=np.float32)
            frequency = self._frequencies[rope] = CUDAMemory(self.device, values.nbytes)
            self.device.write(frequency.address, values)
        where, cosines, sines = (cuda_tensor(tensor, self.device) for tensor in (positions, cosine, sine))
        half = len(rope.inverse_frequency)
        if cosines.shape != (*where.shape, half) or sines.shape != cosines.shape:
            raise ValueError(f"rope tables {cosines.shape} were asked of positions {where.shape}; want [..., {half}].")
        self.kernels["rope_tables"].launch(
            (where.nbytes // 4, 1, 1), min(_THREADS, -(-half // 32) * 32), where.address, frequency.address,
            cosines.address, sines.address, half, rope.scale,
        )  # fmt: skip

    def advance(self, tensors: Sequence[Tensor], amount: int = 1) -> None:
        """Add ``amount`` to every element of int32 ``tensors``."""
        arrays = [cuda_tensor(tensor, self.device) for tensor in tensors]
        for first in range(0, len(arrays), _MOST_ADVANCED):
            some = arrays[first : first + _MOST_ADVANCED]
            empty = _MOST_ADVANCED - len(some)
            packed = struct.pack(
                "=4Q4i", *(array.address for array in some), *[0] * empty,
                *(array.nbytes // 4 for array in some), *[0] * empty,
            )  # fmt: skip
            self.kernels["advance"].launch((1, 1, 1), _THREADS, packed, amount)

    def copy(self, source: Tensor, destination: Tensor) -> None:
        """Copy the elements of one tensor into another of equal shape and type."""
        given, place = cuda_tensor(source, self.device), cuda_tensor(destination, self.device)
        if (given.shape, given.dtype) != (place.shape, place.dtype):
            raise ValueError(f"a copy of {given.shape} into {place.shape} was asked; want equal shapes and types.")
        self.device.copy(given.address, place.address, given.nbytes)

    def gather_rows(self, source: Tensor, rows: Tensor, out: Tensor) -> None:
        """out[m] = source[rows[m]]; source [N,D], rows int32 [M], out [M,D]; zeros for a row outside."""
        given, places, result = (cuda_tensor(tensor, self.device) for tensor in (source, rows, out))
        words = _row_words(given, places, result)
        self.kernels["gather_rows"].launch(
            (places.nbytes // 4, 1, 1), _THREADS, given.address, places.address, result.address, given.shape[0], words
        )

    def splice_rows(self, source: Tensor, rows: Tensor, out: Tensor) -> None:
        """out[rows[m]] = source[m]; source [M,D], rows int32 [M], out [N,D]; nothing for a row outside."""
        given, places, result = (cuda_tensor(tensor, self.device) for tensor in (source, rows, out))
        words = _row_words(result, places, given)
        self.kernels["splice_rows"].launch(
            (places.nbytes // 4, 1, 1), _THREADS, given.address, places.address, result.address, result.shape[0], words
        )

    def select_tokens(
        self, embeddings: Tensor, spans: Sequence[TokenSpan], text_pivots: int, image_pivots: int
    ) -> np.ndarray:
        """Rows of embeddings [L,D] to keep, int32, ascending; see ``token_selection.select_tokens``."""
        return self._selection.select(cuda_tensor(embeddings, self.device), spans, text_pivots, image_pivots)

    def euler_step(self, state: Tensor, velocity: Tensor, step: float) -> None:
        """Add ``step * velocity`` to ``state``, float32 of equal shapes."""
        values, slope = cuda_tensor(state, self.device), cuda_tensor(velocity, self.device)
        if values.shape != slope.shape or {values.dtype, slope.dtype} != {DataType.FLOAT32}:
            raise ValueError(
                f"an euler step of {values.shape} with {slope.shape} was asked; want equal float32 shapes."
            )
        count = values.nbytes // 4
        self.kernels["euler_step"].launch(
            (-(-count // _THREADS), 1, 1), _THREADS, values.address, slope.address, step, count
        )

    # steps

    def capture(self, key: Hashable, step: Callable[[], None]) -> CUDAStep:
        """A step that becomes a CUDA graph at its second run, where it can."""
        self._check_open()
        captured = CUDAStep(self.device, self._recorder, key, step, self._steps.discard)
        self._steps.add(captured)
        return captured

    def stopwatch(self) -> CUDAStopwatch:
        """A stopwatch on the GPU's clock."""
        self._check_open()
        stopwatch = CUDAStopwatch(self.device, self._stopwatches.discard)
        self._stopwatches.add(stopwatch)
        return stopwatch

    def read_async(self, tensor: Tensor) -> Any:
        """A copy to pinned host memory that is under way."""
        given = cuda_tensor(tensor, self.device)
        return self.device.read(given.address, given.shape, given.dtype.numpy)

    def synchronize(self) -> None:
        """Wait for the stream.

        :raises BackendError: work on it failed.
        """
        self.device.synchronize()

    def memory(self) -> Mapping[str, int]:
        """Bytes of ``tensors``, ``caches``, ``blocks`` out of them, ``embeddings`` and ``other`` things, and ``free``.

        What an engine library takes by itself shows in ``free`` alone.
        """
        used = {kind: self.device.allocated(kind) for kind in ("tensors", "caches", "blocks", "embeddings", "other")}
        return {**used, "free": self.device.memory()[0]}

    def close(self) -> None:
        """Free everything; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for step in tuple(self._steps):
            step.close()
        for stopwatch in tuple(self._stopwatches):
            stopwatch.close()
        engines, self._engines = self._engines, []
        for engine in engines:
            engine.close()
        self._frequencies.clear()
        if not self.device.driver.lost:
            self.device.synchronize()
        self.kernels.close()
        self.device.close()


def _row_words(table: CUDATensor, rows: CUDATensor, part: CUDATensor) -> int:
    """32-bit words of a row, once the shapes are found to fit."""
    fits = len(table.shape) == 2 and rows.dtype is DataType.INT32 and part.shape == (*rows.shape, table.shape[1])
    size = table.shape[-1] * table.dtype.numpy.itemsize
    if not fits or part.dtype is not table.dtype or size % 4:
        raise ValueError(
            f"rows {rows.shape} of {table.dtype.value} {table.shape} and {part.dtype.value} {part.shape} were asked; "
            "want [M] of [N,D] and [M,D] of one type, D a multiple of four bytes."
        )
    return size // 4
