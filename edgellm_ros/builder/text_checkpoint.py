"""The text part of a vision-language checkpoint, seen as a checkpoint of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .checkpoint import Checkpoint, stored_names
from .families.text_part import text_configuration, text_tensor_name, whole_of


class TextCheckpoint:
    """See the module; ``whole`` stays the owner of its files, and is closed with this."""

    def __init__(self, whole: Checkpoint, source: str) -> None:
        self._whole = whole
        self.config: Mapping[str, Any] = text_configuration(whole.config)
        self._names = stored_names(whole.shapes, text_tensor_name)
        self.shapes = {text: whole.shapes[name] for text, name in self._names.items()}
        self.source = source
        self.licence = whole.licence
        self.eos_token_ids = whole.eos_token_ids or _eos_token_ids(self.config.get("eos_token_id"))
        self.weight_bytes = whole.weight_bytes

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """See ``Checkpoint.read_rows``."""
        return self._whole.read_rows(self._names[name], start, stop)

    def read_int8_blocks(self, name: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray] | None:
        """See ``Checkpoint.read_int8_blocks``."""
        return self._whole.read_int8_blocks(self._names[name], start, stop)

    def tokenizer_files(self) -> Mapping[str, bytes]:
        """See ``Checkpoint.tokenizer_files``."""
        return self._whole.tokenizer_files()

    def processor_files(self) -> Mapping[str, bytes]:
        """See ``Checkpoint.processor_files``."""
        return self._whole.processor_files()

    def digest(self, progress: Callable[[int], None] | None = None) -> str:
        """See ``Checkpoint.digest``."""
        return self._whole.digest(progress)

    def close(self) -> None:
        """Close the files."""
        self._whole.close()


def _eos_token_ids(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(token for token in values if type(token) is int and token >= 0)


def text_checkpoint(checkpoint: Checkpoint, *, whole: bool = False) -> Checkpoint:
    """The checkpoint itself where it is a text model, else its text part; ``whole``: the rest is built beside it."""
    if whole_of(checkpoint.config) is None:
        return checkpoint
    return TextCheckpoint(checkpoint, checkpoint.source if whole else f"{checkpoint.source}, its text part")
