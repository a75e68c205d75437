"""Safetensors files as read-only views: nothing is read before it is used."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import EngineDirectoryError
from ..json_values import LARGEST_FILE, MAX_OBJECT_BYTES, whole_number, without_repeats
from .base import DataType

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_TYPES = {
    "F32": DataType.FLOAT32,
    "F16": DataType.FLOAT16,
    "BF16": DataType.BFLOAT16,
    "I8": DataType.INT8,
}


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file and the offset of its data.

    :raises EngineDirectoryError: it cannot be read, or is no such file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= min(size - 8, MAX_OBJECT_BYTES):
                raise EngineDirectoryError(f"{path} is not a safetensors file; build the engine directory again.")
            header = json.loads(file.read(length), object_pairs_hook=without_repeats)
    except OSError as error:
        raise EngineDirectoryError(
            f"{path} cannot be read ({error.strerror}); build the engine directory again."
        ) from None
    except (ValueError, RecursionError):
        raise EngineDirectoryError(f"{path} has a damaged header; build the engine directory again.") from None
    if not isinstance(header, dict):
        raise EngineDirectoryError(f"{path} has a damaged header; build the engine directory again.")
    return header, 8 + length


def map_tensor(path: Path, name: str, header: Mapping[str, Any], start: int) -> tuple[np.ndarray, DataType]:
    """A read-only view of one tensor of the file; bfloat16 as uint16.

    :raises EngineDirectoryError: no such tensor, or one that does not fit the file.
    """
    try:
        entry = header[name]
        dtype = _TYPES[entry["dtype"]]
        shape = tuple(whole_number("a dimension", size, 1) for size in entry["shape"])
        first, last = (whole_number("an offset", offset, 0, LARGEST_FILE) for offset in entry["data_offsets"])
    except KeyError as error:
        raise EngineDirectoryError(
            f"{path} has no usable tensor {name!r} ({error.args[0]}); want one of {', '.join(sorted(_TYPES))}."
        ) from None
    except (TypeError, ValueError):
        raise EngineDirectoryError(f"{path} describes {name!r} wrongly; build the engine directory again.") from None
    wanted = math.prod(shape) * dtype.numpy.itemsize
    if last - first != wanted or start + last > path.stat().st_size:
        raise EngineDirectoryError(
            f"{path} holds {last - first} bytes for {name!r} {shape}; want {wanted}: build the engine directory again."
        )
    return np.memmap(path, dtype=dtype.numpy, mode="r", offset=start + first, shape=shape), dtype


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a Hugging Face folder, by name.

    :raises EngineDirectoryError: there are none.
    """
    try:
        if (folder / INDEX_FILE).is_file():
            shards = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))["weight_map"].values()
            return [folder / Path(name).name for name in sorted(set(shards))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise EngineDirectoryError(f"{folder / INDEX_FILE} is damaged; fetch the checkpoint again.") from None
    if not (folder / SINGLE_FILE).is_file():
        raise EngineDirectoryError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}; want a checkpoint's folder.")
    return [folder / SINGLE_FILE]


def checkpoint_identity(folder: Path) -> str:
    """A digest of names, sizes and headers of a checkpoint's weight files; cheap, for it reads no weights.

    :raises EngineDirectoryError: there are none, or one is damaged.
    """
    checksum = hashlib.sha256()
    for path in weight_files(folder):
        header, start = read_header(path)
        header.pop("__metadata__", None)
        row = [path.name, path.stat().st_size, start, sorted((name, entry) for name, entry in header.items())]
        checksum.update(json.dumps(row, sort_keys=True).encode())
    return checksum.hexdigest()
