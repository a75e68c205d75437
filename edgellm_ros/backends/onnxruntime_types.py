"""ONNX Runtime's names of element types, descriptions of its tensors and the first line of its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import BackendError
from .values import DataType, TensorSpec

_TYPES = {
    "tensor(float)": DataType.FLOAT32,
    "tensor(float16)": DataType.FLOAT16,
    "tensor(bfloat16)": DataType.BFLOAT16,
    "tensor(int64)": DataType.INT64,
    "tensor(uint64)": DataType.UINT64,
    "tensor(int32)": DataType.INT32,
    "tensor(int8)": DataType.INT8,
    "tensor(uint8)": DataType.UINT8,
    "tensor(bool)": DataType.BOOL,
}
_BFLOAT16 = 16  # of ONNX; NumPy has no such type


def binding_type(dtype: DataType) -> Any:
    """How the element type of memory is told to an ``IOBinding``."""
    return _BFLOAT16 if dtype is DataType.BFLOAT16 else dtype.numpy.type


def tensor_spec(path: Path, node: Any) -> TensorSpec:
    """Of an input or output of a session. :raises BackendError: an element type that the seam does not have."""
    if node.type not in _TYPES:
        raise BackendError(f"{path}: {node.name!r} is {node.type}; want one of {', '.join(_TYPES)}.")
    return TensorSpec(node.name, _TYPES[node.type], tuple(d if isinstance(d, int) else -1 for d in node.shape))


def first_line(error: Exception | None) -> str:
    """What an error says, short enough to end a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
