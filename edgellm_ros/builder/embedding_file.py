"""embedding.safetensors: the token embeddings, streamed, with data that start on a page of the file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from .elements import SAFETENSORS_NAMES, stored_dtype
from .onnx_writer import PAGE
from .quantize import element_bands
from .weights import Weight


def embedding_header(shape: tuple[int, ...], element: str = "float32") -> bytes:
    """The file up to its data: tensor ``embedding`` [V,D], padded with blanks as the format allows."""
    entry = {"dtype": SAFETENSORS_NAMES[element], "shape": list(shape), "data_offsets": [0, _data_size(shape, element)]}
    header = json.dumps({"embedding": entry}).encode()
    header = header.ljust(PAGE - 8)
    return len(header).to_bytes(8, "little") + header


def _data_size(shape: tuple[int, ...], element: str) -> int:
    return stored_dtype(element).itemsize * shape[0] * shape[1]


def embedding_size(shape: tuple[int, ...], element: str = "float32") -> int:
    """Bytes of the whole file."""
    return len(embedding_header(shape, element)) + _data_size(shape, element)


def write_embedding(weight: Weight, path: Path, progress: Callable[[int], None], element: str = "float32") -> None:
    """Stream the matrix [V,D]. :raises CheckpointError: it cannot be read or is not finite."""
    with path.open("wb") as file:
        file.write(embedding_header(weight.shape, element))
        for band in element_bands(weight, element):
            file.write(band.data)
            progress(band.nbytes)
        file.flush()
        os.fsync(file.fileno())
