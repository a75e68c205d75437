"""The embedding table in device memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..base import DataType
from ..host_embeddings import TENSOR_NAME, HostEmbeddingTable
from .device import Device
from .kernels import Kernels
from .tensor import CUDAMemory, CUDATensor

_THREADS = 256
_KERNELS = {
    DataType.FLOAT32: "gather_float32",
    DataType.FLOAT16: "gather_float16",
    DataType.BFLOAT16: "gather_bfloat16",
    DataType.INT8: "gather_int8",
}


class CUDAEmbeddingTable:
    """Rows of float32, float16, bfloat16, or int8 with one float32 scale a row; gathered as float32.

    :raises EngineDirectoryError: the file is missing, damaged, or of an element type this runtime cannot read.
    :raises BackendError: out of memory.
    """

    def __init__(self, device: Device, path: Path, scale: float = 1.0, tensor: str = TENSOR_NAME) -> None:
        host = HostEmbeddingTable(path, scale, tensor)
        self._shape, self._dtype, self._scale = host.shape, host.dtype, scale
        values, row_scales = host.values, host.row_scales
        self._values = CUDAMemory(device, values.nbytes, zero=False, kind="embeddings")
        device.write(self._values.address, values)
        self._row_scales: CUDAMemory | None = None
        if row_scales is not None:
            self._row_scales = CUDAMemory(device, row_scales.nbytes, zero=False, kind="embeddings")
            device.write(self._row_scales.address, np.ascontiguousarray(row_scales))

    @property
    def shape(self) -> tuple[int, int]:
        """[V, D]."""
        return self._shape

    @property
    def dtype(self) -> DataType:
        """Element type in the file and on the device."""
        return self._dtype

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._values.size + (self._row_scales.size if self._row_scales else 0)

    def gather(self, kernels: Kernels, token_ids: CUDATensor, out: CUDATensor) -> None:
        """Fill out float32 [..., D] with scale * rows of ``token_ids`` int32 [...]; ids outside give zeros."""
        vocabulary, width = self._shape
        count = token_ids.nbytes // 4
        kernels[_KERNELS[self._dtype]].launch(
            (count, 1, 1), _THREADS, self._values.address, self._row_scales.address if self._row_scales else 0,
            token_ids.address, out.address, vocabulary, width, self._scale,
        )  # fmt: skip
