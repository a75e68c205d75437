"""The weights of an engine that leaves them in its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..backends.base import DataType
from ..backends.safetensors_map import checkpoint_identity, map_tensor, read_header, weight_files
from ..engine_format import (
    BINDINGS_KEY,
    EMBEDDING_BINDING_KEY,
    EMBEDDING_FILE,
    IDENTITY_KEY,
    EngineDirectory,
)
from ..errors import EngineDirectoryError


@dataclass(frozen=True)
class WeightSource:
    """Where an executor finds what the engine directory may not hold itself."""

    embedding_file: Path
    embedding_tensor: str = "embedding"
    weights: Mapping[str, np.ndarray] | None = field(default=None, repr=False)  # None: in the directory

    @classmethod
    def of(cls, directory: EngineDirectory, checkpoint_dir: Path | str | None) -> WeightSource:
        """The directory itself, or the checkpoint that its engine was built of.

        Tensors that the graph takes as they are stay in their file until they are used; the others are made now.

        :raises EngineDirectoryError: an engine without weights and no checkpoint, or the other way round, another
            checkpoint, or a tensor that it lacks.
        """
        extra = directory.config.extra
        weightless = BINDINGS_KEY in extra
        if checkpoint_dir is None or not weightless:
            if not weightless and checkpoint_dir is None:
                return cls(directory.path / EMBEDDING_FILE)
            found = "holds no weights and no checkpoint_dir is given; give the folder that it was built of"
            if not weightless:
                found = f"holds its own weights and checkpoint_dir is {checkpoint_dir}; leave that out"
            raise EngineDirectoryError(f"{directory.path} {found}.")
        folder = Path(checkpoint_dir)
        if checkpoint_identity(folder) != extra[IDENTITY_KEY]:
            raise EngineDirectoryError(
                f"{folder} is not the checkpoint that {directory.path} was built of; give that one, or build again."
            )
        tensors = _Tensors(folder)
        weights = {name: tensors.made_of(parts) for name, parts in dict(extra[BINDINGS_KEY]).items()}
        embedding = str(extra[EMBEDDING_BINDING_KEY])
        return cls(tensors.file_of(embedding), embedding, weights)


class _Tensors:
    """Tensors of a checkpoint's folder by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._headers = {path: read_header(path) for path in weight_files(folder)}
        self._files = {name: path for path, (header, _) in self._headers.items() for name in header}

    def file_of(self, name: str) -> Path:
        """:raises EngineDirectoryError: the checkpoint lacks it."""
        if name not in self._files:
            raise EngineDirectoryError(f"{self._folder} lacks tensor {name!r}; fetch the checkpoint again.")
        return self._files[name]

    def made_of(self, parts: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """float32: every part after its steps, one below the other."""
        values = [self._part(part) for part in parts]
        return values[0] if len(values) == 1 else np.concatenate(values)

    def _part(self, part: Mapping[str, Any]) -> np.ndarray:
        path = self.file_of(str(part["tensor"]))
        stored, dtype = map_tensor(path, str(part["tensor"]), *self._headers[path])
        values = stored.view(np.ndarray)
        if dtype is DataType.BFLOAT16:
            values = (values.astype(np.uint32) << 16).view(np.float32)
        elif dtype is not DataType.FLOAT32:
            values = values.astype(np.float32)
        for step, number in part["steps"]:
            with_number = np.multiply if step == "multiply" else np.add
            values = with_number(values, np.float32(number), dtype=np.float32)
        return values
