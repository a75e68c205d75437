"""Element types of GGUF files and their exact conversion to float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import gguf_int8
from .gguf_k_types import halves, q4_k, q5_k, q6_k

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class BlockType:
    """``elements`` weights in ``bytes`` bytes; ``decode`` turns uint8 [n, bytes] into float32 [n, elements].

    ``to_int8`` gives int8 [n * elements / 32, 32] and a float32 scale for each, for types that this loses nothing of.
    """

    name: str
    elements: int
    bytes: int
    decode: Callable[[Array], Array]
    to_int8: Callable[[Array], tuple[Array, Array]] | None = None


def _nibbles(packed: Array) -> Array:
    """uint8 [n, m] as [n, 2m]: all low halves, then all high halves."""
    return np.concatenate((packed & 15, packed >> 4), axis=1)


def _fifth_bits(blocks: Array, start: int) -> Array:
    """The 32 high bits of a five-bit block, as uint8 16 or 0, [n, 32]."""
    bits = np.unpackbits(np.ascontiguousarray(blocks[:, start : start + 4]), axis=1, bitorder="little")
    return bits << 4


def _f32(blocks: Array) -> Array:
    return np.ascontiguousarray(blocks).view("<f4").astype(np.float32)


def _f16(blocks: Array) -> Array:
    return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)


def _bf16(blocks: Array) -> Array:
    return (np.ascontiguousarray(blocks).view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Array) -> Array:
    return np.multiply(halves(blocks, 0), _nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Array) -> Array:
    return halves(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + halves(blocks, 2)


def _q5_0(blocks: Array) -> Array:
    values = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return halves(blocks, 0) * (values.astype(np.float32) - 16)


def _q5_1(blocks: Array) -> Array:
    values = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return halves(blocks, 0) * values.astype(np.float32) + halves(blocks, 2)


def _q8_0(blocks: Array) -> Array:
    integers, scales = gguf_int8.q8_0(blocks)
    return scales[:, None] * integers.astype(np.float32)


# the number in the file -> type; the numbers are GGUF's own
TYPES: dict[int, BlockType] = {
    0: BlockType("F32", 1, 4, _f32),
    1: BlockType("F16", 1, 2, _f16),
    2: BlockType("Q4_0", 32, 18, _q4_0, gguf_int8.q4_0),
    3: BlockType("Q4_1", 32, 20, _q4_1, gguf_int8.q4_1),
    6: BlockType("Q5_0", 32, 22, _q5_0, gguf_int8.q5_0),
    7: BlockType("Q5_1", 32, 24, _q5_1, gguf_int8.q5_1),
    8: BlockType("Q8_0", 32, 34, _q8_0, gguf_int8.q8_0),
    12: BlockType("Q4_K", 256, 144, q4_k, gguf_int8.q4_k),
    13: BlockType("Q5_K", 256, 176, q5_k, gguf_int8.q5_k),
    14: BlockType("Q6_K", 256, 210, q6_k),
    30: BlockType("BF16", 1, 2, _bf16),
}

# read by name only, to say which type a file has that this builder does not take
OTHER_TYPES: dict[int, str] = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS",
    18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32",
    27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
