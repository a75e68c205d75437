"""A checkpoint that is only a shape: seeded random weights, made band by band as they are asked for."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError
from .byte_tokenizer import byte_tokenizer_files
from .families import read_config
from .families.decoder import decoder_tensors
from .huggingface_checkpoint import CONFIG, read_json_object, token_ids

_BLOCK_VALUES = 1 << 18  # numbers that one generator makes; how bands are cut does not change them


class RandomCheckpoint:
    """Weights that keep activations near one: matrices of variance 1/columns, norms near one, small biases.

    ``path`` is a ``config.json`` or the folder that holds one.

    :raises CheckpointError: it is missing, damaged, or of an architecture that is not built.
    """

    def __init__(self, path: Path, seed: int = 0) -> None:
        path = path / CONFIG if path.is_dir() else path
        self.config: Mapping[str, Any] = read_json_object(path)
        self._decoder = read_config(self.config)
        self._seed = seed
        self.shapes: Mapping[str, tuple[int, ...]] = decoder_tensors(self._decoder)
        self.source = f"random weights, seed {seed}, shape of {self._decoder.name} ({path.resolve().parent.name})"
        self.licence = "none: random numbers"
        self.eos_token_ids = token_ids(self.config.get("eos_token_id"), CONFIG)
        self.weight_bytes = 0

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """See ``Checkpoint.read_rows``."""
        shape = self.shapes[name]
        columns = int(np.prod(shape[1:], dtype=np.int64))
        step = max(1, _BLOCK_VALUES // columns)
        key = zlib.crc32(name.encode())
        blocks = []
        for block in range(start // step, -(-stop // step)):
            rows = min(step, shape[0] - block * step)
            values = np.random.default_rng([self._seed, key, block]).random((rows, *shape[1:]), dtype=np.float32)
            blocks.append(values[max(0, start - block * step) : stop - block * step])
        values = 2 * np.concatenate(blocks) - 1
        if name.endswith("norm.weight"):
            return np.asarray(0.5 * values + (1 - self._decoder.norm_offset), dtype=np.float32)
        if len(shape) == 1:
            return np.asarray(0.1 * values, dtype=np.float32)
        return np.asarray(np.float32((3 / columns) ** 0.5) * values, dtype=np.float32)

    def read_int8_blocks(self, name: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Never."""
        return None

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """See ``Checkpoint.tokenizer_files``: one token for each byte."""
        decoder = self._decoder
        return byte_tokenizer_files(
            decoder.vocab_size, eos=self.eos_token_ids, bos=decoder.bos_token_id, pad=decoder.pad_token_id
        )

    def digest(self, progress: Callable[[int], None] | None = None) -> str:
        """See ``Checkpoint.digest``."""
        content = json.dumps([self._seed, dict(self.config)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def close(self) -> None:
        """Nothing is open."""


def check_seed(seed: int) -> int:
    """:raises CheckpointError: no whole number from 0 to 2**32 - 1."""
    if not 0 <= seed < 1 << 32:
        raise CheckpointError(f"seed is {seed}; want a whole number from 0 to {(1 << 32) - 1}.")
    return seed
