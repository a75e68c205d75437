"""One view of a checkpoint, whatever its file format: names, shapes and configuration in Hugging Face terms."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import CheckpointError
from ..json_values import is_folder, is_there
from .wheel_models import WHEEL_MODELS


class Checkpoint(Protocol):
    """Weights read tensor by tensor. One thread owns it; ``close`` closes its files."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The keys of a Hugging Face ``config.json``."""
        ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor, by Hugging Face name."""
        ...

    @property
    def source(self) -> str:
        """Where the weights come from, as a person would say it."""
        ...

    @property
    def licence(self) -> str:
        """Name of the licence of the weights, or ``unknown``."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer, the primary one first; may be empty."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Size of the weight files, for progress."""
        ...

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows ``start`` to ``stop`` of a tensor along its first axis, float32, exact.

        :raises CheckpointError: the file is damaged or has an element type that is not read.
        """
        ...

    def read_int8_blocks(self, name: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray] | None:
        """The same rows where blocks of 32 integers with one scale hold them (nearly) exactly, else None.

        int8 [rows, columns/32, 32] and float32 [rows, columns/32]; weight = scale * integer.
        """
        ...

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """Content of ``tokenizer.json`` and its companions, by file name.

        :raises CheckpointError: there is no tokenizer, or one of an unknown kind.
        """
        ...

    def processor_files(self) -> Mapping[str, bytes]:
        """Content of the image processor's JSON files, by file name; none where there are none."""
        ...

    def digest(self, progress: Callable[[int], None] | None = None) -> str:
        """SHA-256 over all that determines the result: weights, configuration, tokenizer."""
        ...

    def close(self) -> None:
        """Close the files."""
        ...


def stored_names(names: Iterable[str], rename: Callable[[str], str | None]) -> dict[str, str]:
    """The stored name of every tensor by the one that ``rename`` gives it; without those to which it gives None.

    :raises CheckpointError: two get one name, so that nobody knows which is meant.
    """
    found: dict[str, str] = {}
    for name in names:
        known = rename(name)
        if known is not None and found.setdefault(known, name) != name:
            raise CheckpointError(
                f"the checkpoint holds the tensors {name!r} and {found[known]!r}, which both are {known!r}; "
                "fetch it again."
            )
    return found


def open_checkpoint(source: Path | str) -> Checkpoint:
    """Open a Hugging Face folder, a ``.gguf`` file, or a model that installed packages carry, by its name.

    :raises CheckpointError: neither, or damaged; the sentence names the file.
    """
    from .gguf_checkpoint import GGUFCheckpoint
    from .huggingface_checkpoint import HuggingFaceCheckpoint
    from .policy_checkpoint import PolicyCheckpoint, is_policy

    if str(source) in WHEEL_MODELS:
        model = WHEEL_MODELS[str(source)]
        files = model.files()
        return GGUFCheckpoint(*files, name=model.name_of(files[0]), digest=model.digest())
    path = Path(source)
    if is_folder(path):
        if not os.access(path, os.R_OK | os.X_OK):
            raise CheckpointError(f"{path} cannot be read (Permission denied); check its permissions.")
        return PolicyCheckpoint(path) if is_policy(path) else HuggingFaceCheckpoint(path)
    if path.suffix == ".gguf" and is_there(path):
        return GGUFCheckpoint(path)
    found = "a file that is not GGUF" if is_there(path) else "nothing"
    raise CheckpointError(
        f"{path} holds {found}; want a Hugging Face folder, a .gguf file or one of the words "
        f"{', '.join(WHEEL_MODELS)}: check the path."
    )
