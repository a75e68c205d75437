"""A GGUF file seen as a Hugging Face checkpoint: names, configuration, and what llama.cpp did to weights undone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError
from .checkpoint import stored_names
from .families.config_values import WIDEST_HEAD
from .gguf_architectures import ROPE_FACTORS, architecture_of, read_config
from .gguf_file import GGUFFile
from .gguf_metadata import GGUFMetadata
from .gguf_tokenizer import end_token_ids, write_tokenizer_files

_ROTATED = re.compile(r"model\.layers\.\d+\.self_attn\.([qk])_proj\.(weight|bias)")


class GGUFCheckpoint:
    """See the module; ``more`` are further pieces of a file that was cut, ``name`` is what a person calls it, and
    ``digest`` the SHA-256 that its maker states.

    :raises CheckpointError: damaged, of an unknown architecture, or a key is missing.
    """

    def __init__(self, path: Path, *more: Path, name: str | None = None, digest: str | None = None) -> None:
        self._gguf = GGUFFile(path, *more)
        self._name = name or path.name
        self._stated_digest = digest
        try:
            self._metadata = GGUFMetadata(self._gguf.metadata, str(path))
            self._architecture = architecture_of(self._metadata)
            entries = self._gguf.entries
            names = (name for name in entries if name != ROPE_FACTORS)
            self._names = stored_names(names, self._architecture.huggingface_name)
            factors = None
            if ROPE_FACTORS in entries:
                shape = entries[ROPE_FACTORS].shape
                if len(shape) != 1 or shape[0] > WIDEST_HEAD:
                    raise CheckpointError(
                        f"tensor {ROPE_FACTORS!r} in {path} has the shape {list(shape)}; want one number for two of a "
                        "head: fetch the file again."
                    )
                factors = self._gguf.read_rows(ROPE_FACTORS, 0, shape[0]).tolist()
            self.config: Mapping[str, Any] = read_config(self._metadata, entries, factors)
            self.eos_token_ids = end_token_ids(self._metadata)
        except BaseException:
            self._gguf.close()
            raise
        self.shapes = {name: entries[stored].shape for name, stored in self._names.items()}

    @property
    def source(self) -> str:
        """The model's name from the metadata, and the file's name."""
        return f"{self._metadata.text('general.name', 'unnamed model')} ({self._name})"

    @property
    def licence(self) -> str:
        """From the metadata, else ``unknown``."""
        return self._metadata.text("general.license", "unknown")

    @property
    def weight_bytes(self) -> int:
        """Size of the file."""
        return self._gguf.file.size

    def _row_order(self, name: str, start: int, stop: int) -> tuple[int, int, np.ndarray | slice]:
        """Rows to read from the file, and where among them each wanted row lies."""
        if not self._architecture.interleaved or _ROTATED.fullmatch(name) is None:
            return start, stop, slice(None)
        head_dim = self.config["head_dim"]
        first = start // head_dim * head_dim
        last = min(-(-stop // head_dim) * head_dim, self.shapes[name][0])
        row = np.arange(start, stop)
        within = row % head_dim
        stored = row - within + within % (head_dim // 2) * 2 + within // (head_dim // 2)
        return first, last, stored - first

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """See ``Checkpoint.read_rows``."""
        first, last, order = self._row_order(name, start, stop)
        rows = self._gguf.read_rows(self._names[name], first, last)[order]
        if self._architecture.norm_offset and rows.ndim == 1 and name.endswith("norm.weight"):
            rows = rows - np.float32(self._architecture.norm_offset)
        return rows

    def read_int8_blocks(self, name: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray] | None:
        """See ``Checkpoint.read_int8_blocks``; for tensors of types with one scale for 32 weights."""
        stored = self._names[name]
        to_int8 = self._gguf.entries[stored].type.to_int8
        if to_int8 is None:
            return None
        first, last, order = self._row_order(name, start, stop)
        integers, scales = to_int8(self._gguf.read_blocks(stored, first, last))
        rows = last - first
        return integers.reshape(rows, -1, 32)[order], scales.reshape(rows, -1)[order]

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """See ``Checkpoint.tokenizer_files``; written from the metadata."""
        return write_tokenizer_files(self._metadata)

    def processor_files(self) -> Mapping[str, bytes]:
        """None: these files hold text models."""
        return {}

    def digest(self, progress: Callable[[int], None] | None = None) -> str:
        """See ``Checkpoint.digest``. :raises CheckpointError: it is not the one that the maker states."""
        found = self._gguf.file.digest(progress)
        if self._stated_digest not in (None, found):
            raise CheckpointError(
                f"{self._gguf.file.path} has the SHA-256 {found}; its maker states {self._stated_digest}: install it "
                "again."
            )
        return found

    def close(self) -> None:
        """Close the file."""
        self._gguf.close()
