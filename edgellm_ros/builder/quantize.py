"""Weights as stored numbers: which precision keeps what, one band of rows at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..errors import CheckpointError
from .elements import ELEMENTS, LARGEST, encode
from .weights import Weight

BLOCK = 32  # of int8
BLOCKS = (32, 64)  # of int4
# keep eight bits where the rest has four: heads, and the small matrices of attention (the values need it most)
_EIGHT_BITS = re.compile(r"\b(embed_tokens|lm_head|self_attn\.[qkvo]_proj)\b")


@dataclass(frozen=True)
class Precision:
    """How matrices are stored; everything else is ``element``: weights of other kinds, activations and caches.

    ``block`` weights along the columns share a scale. Matrices whose names begin with one of ``careful`` keep eight
    bits.
    """

    name: str
    bits: int  # 32 and 16: as elements
    block: int = BLOCK
    careful: tuple[str, ...] = ()

    def stored_bits(self, weight: str) -> int:
        """Bits of a matrix by its name."""
        if self.bits < 8 and (_EIGHT_BITS.search(weight) or weight.startswith(self.careful)):
            return 8
        return self.bits

    @property
    def embedding(self) -> str:
        """NumPy name of what token embeddings are stored as."""
        return self.element if self.bits >= 16 else "float16"

    @property
    def element(self) -> str:
        """NumPy name of what is computed with."""
        return ELEMENTS.get(self.name, "float32")


PRECISIONS = {
    name: Precision(name, bits) for name, bits in (("fp32", 32), ("fp16", 16), ("bf16", 16), ("int8", 8), ("int4", 4))
}


def precision(name: str, block: int | None = None) -> Precision:
    """The precision of that name, with its usual block or another one.

    :raises CheckpointError: unknown, or a block that it does not have; the sentence lists those there are.
    """
    if name not in PRECISIONS:
        raise CheckpointError(f"precision is {name!r}; want one of {', '.join(PRECISIONS)}.")
    found = PRECISIONS[name]
    if block is None or block == found.block:
        return found
    if found.bits != 4 or block not in BLOCKS:
        wanted = " or ".join(map(str, BLOCKS if found.bits == 4 else (found.block,)))
        raise CheckpointError(f"block_size is {block!r}; {name} has blocks of {wanted}.")
    return replace(found, block=block)


def quantize_int8(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric blocks of 32 along the last axis, the last one filled up with zeros.

    float32 [n, columns] becomes int8 [n, ceil(columns/32), 32] in -127..127 and float32 scales [n, ceil(columns/32)].
    Weights that are such a grid already (of a scale whose largest step is 127) come out bit for bit.
    """
    rows, columns = values.shape
    blocks = -(-columns // BLOCK)
    if columns % BLOCK:
        values = np.pad(values, ((0, 0), (0, blocks * BLOCK - columns)))
    values = values.reshape(rows, blocks, BLOCK)
    largest = np.abs(values).max(axis=2)
    scales = largest / np.float32(127)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(scales > 0, np.float32(1) / scales, np.float32(0))
    # a block of denormals has a scale whose inverse overflows; its weights are zero for all purposes
    inverse = np.where(np.isfinite(inverse), inverse, np.float32(0))
    integers = np.rint(values * inverse[:, :, None])
    return np.clip(integers, -127, 127, out=integers).astype(np.int8), scales


def int8_bands(weight: Weight) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The matrix as bands of (int8 blocks, scales); the file's own blocks where it has them, else quantised."""
    for start, stop in weight.bands():
        stored = weight.read_int8(start, stop)
        if stored is not None and weight.shape[1] % BLOCK == 0:
            if not np.isfinite(stored[1]).all():
                raise CheckpointError(
                    f"tensor {weight.name!r} holds values that are not finite; fetch the checkpoint again."
                )
            yield stored
        else:
            yield quantize_int8(weight.read_checked(start, stop))


def element_bands(weight: Weight, element: str = "float32") -> Iterator[np.ndarray]:
    """The tensor as bands of rows of elements, in their ``stored_dtype``.

    :raises CheckpointError: a value is beyond the range of the element type.
    """
    largest = LARGEST[element]
    for start, stop in weight.bands():
        band = weight.read_checked(start, stop)
        if element != "float32" and band.size and float(np.abs(band).max()) > largest:
            raise CheckpointError(
                f"tensor {weight.name!r} holds values beyond {largest:g}, the end of {element}; build it as fp32."
            )
        yield encode(band, element)
