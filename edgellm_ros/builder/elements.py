"""What graphs compute with: the element types, in memory and on disk.

bfloat16 travels as its bits in uint16, as everywhere above a device; only constants inside a graph are written in
NumPy's own type for it, which comes with the package onnx.
"""

from __future__ import annotations

from typing import Any

import numpy as np

ELEMENTS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}  # of precisions; of all others float32
SAFETENSORS_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
LARGEST = {"float32": float(np.finfo(np.float32).max), "float16": 65504.0, "bfloat16": 3.3895313892515355e38}


def stored_dtype(element: str) -> np.dtype[Any]:
    """The NumPy type that the bytes of elements are read and written as."""
    return np.dtype("uint16" if element == "bfloat16" else element)


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """float32 as the bits of the nearest bfloat16 (ties to even), uint16; finite values of at most ``LARGEST``."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded: np.ndarray = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> 16).astype(
        np.uint16
    )
    return rounded


def encode(values: np.ndarray, element: str) -> np.ndarray:
    """float32 as elements, in ``stored_dtype``."""
    return bfloat16_bits(values) if element == "bfloat16" else values.astype(element, copy=False)


def scalar(number: float, element: str) -> np.ndarray:
    """A constant of a graph, shape []."""
    if element != "bfloat16":
        return np.array(number, dtype=element)
    import ml_dtypes

    return np.array(number, dtype=ml_dtypes.bfloat16)
