"""embedding.safetensors: the token embeddings, streamed, with data that start on a page of the file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from .onnx_writer import PAGE
from .quantize import float32_bands
from .weights import Weight


def embedding_header(shape: tuple[int, ...]) -> bytes:
    """The file up to its data: tensor ``embedding``, float32 [V,D], padded with blanks as the format allows."""
    size = 4 * shape[0] * shape[1]
    header = json.dumps({"embedding": {"dtype": "F32", "shape": list(shape), "data_offsets": [0, size]}}).encode()
    header = header.ljust(PAGE - 8)
    return len(header).to_bytes(8, "little") + header


def embedding_size(shape: tuple[int, ...]) -> int:
    """Bytes of the whole file."""
    return len(embedding_header(shape)) + 4 * shape[0] * shape[1]


def write_embedding(weight: Weight, path: Path, progress: Callable[[int], None]) -> None:
    """Stream the matrix [V,D]. :raises CheckpointError: it cannot be read or is not finite."""
    with path.open("wb") as file:
        file.write(embedding_header(weight.shape))
        for band in float32_bands(weight):
            file.write(band.data)
            progress(band.nbytes)
        file.flush()
        os.fsync(file.fileno())
