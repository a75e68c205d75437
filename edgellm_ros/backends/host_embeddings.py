"""Token embeddings read straight from a memory-mapped safetensors file: only rows that are used take memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import EngineDirectoryError
from .base import DataType
from .safetensors_map import map_tensor, read_header

TENSOR_NAME = "embedding"
SCALE_NAME = "embedding_row_scale"  # float32 [V]; wanted when the embedding is int8


class HostEmbeddingTable:
    """Rows of float32, float16, bfloat16, or int8 with one float32 scale a row; gathered as float32."""

    def __init__(self, path: Path, scale: float = 1.0, tensor: str = TENSOR_NAME) -> None:
        header, start = read_header(path)
        values, self._dtype = map_tensor(path, tensor, header, start)
        if values.ndim != 2:
            raise EngineDirectoryError(f"{path}: {tensor!r} has shape {values.shape}; want [V, D].")
        # The plain view: indexing np.memmap itself costs several microseconds in its subclass hooks.
        self._values = values.view(np.ndarray)
        self._row_scales: np.ndarray | None = None
        if self._dtype is DataType.INT8:
            scales, scale_dtype = map_tensor(path, SCALE_NAME, header, start)
            if scales.size != values.shape[0] or scale_dtype is not DataType.FLOAT32:
                raise EngineDirectoryError(
                    f"{path}: {SCALE_NAME!r} is {scale_dtype.value} {scales.shape}; want float32 ({values.shape[0]},)."
                )
            self._row_scales = scales.view(np.ndarray).reshape(-1)
        self._scale = np.float32(scale)

    @property
    def shape(self) -> tuple[int, int]:
        """[V, D]."""
        return (int(self._values.shape[0]), int(self._values.shape[1]))

    @property
    def dtype(self) -> DataType:
        """Element type in the file."""
        return self._dtype

    @property
    def values(self) -> np.ndarray:
        """The table [V, D] as the file holds it."""
        return self._values

    @property
    def row_scales(self) -> np.ndarray | None:
        """float32 [V] of an int8 table."""
        return self._row_scales

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take in the file."""
        return int(self._values.nbytes)

    def gather(self, token_ids: np.ndarray, out: np.ndarray) -> None:
        """Fill out float32 [..., D] with scale * rows of ``token_ids`` [...]; ids outside the vocabulary give zeros."""
        ids = token_ids.reshape(-1)
        rows = out.reshape(ids.size, self._values.shape[1])
        outside = None
        if ids.size and (ids.min() < 0 or ids.max() >= self._values.shape[0]):
            outside = (ids < 0) | (ids >= self._values.shape[0])
            ids = np.where(outside, 0, ids)
        if self._dtype is DataType.FLOAT32:
            np.take(self._values, ids, axis=0, out=rows, mode="clip")  # "clip" skips a copy; ids are in range here
        elif self._dtype is DataType.BFLOAT16:
            bits = rows.view(np.uint32)
            bits[...] = self._values[ids]
            np.left_shift(bits, 16, out=bits)
        else:
            rows[...] = self._values[ids]
            if self._row_scales is not None:
                rows *= self._row_scales[ids][:, None]
        if self._scale != 1.0:
            rows *= self._scale
        if outside is not None:
            rows[outside] = 0.0
