"""Checked access to the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import CheckpointError
from ..json_values import shown


class GGUFMetadata:
    """Keys of one file; ``path`` is named in every message."""

    def __init__(self, values: Mapping[str, Any], path: str) -> None:
        self.values = values
        self.path = path

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def fail(self, key: str, wanted: str) -> CheckpointError:
        """The error that names a key, what it holds, and what was wanted."""
        value = self.values.get(key)
        found = f"a list of {len(value)} values" if isinstance(value, list) else shown(value)
        found = found if key in self.values else "missing"
        return CheckpointError(f"{self.path}: {key} is {found}; want {wanted}: fetch the file again.")

    def text(self, key: str, default: str) -> str:
        """:raises CheckpointError: no text."""
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, "text")
        return value

    def number(self, key: str, default: int | None = None) -> int:
        """A whole number. :raises CheckpointError: absent without a default, or another value."""
        value = self.values.get(key, default)
        if type(value) is not int:
            raise self.fail(key, "a whole number")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        """A whole number above 0. :raises CheckpointError: as ``number``."""
        value = self.number(key, default)
        if value < 1:
            raise self.fail(key, "a positive number")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A number, as short as it was before it became float32 (1e-05, not 9.999999747378752e-06).

        :raises CheckpointError: absent without a default, or another value.
        """
        value = self.values.get(key, default)
        if type(value) not in (int, float):
            raise self.fail(key, "a number")
        return float(str(np.float32(value)))

    def switch(self, key: str, default: bool) -> bool:
        """:raises CheckpointError: neither true nor false."""
        value = self.values.get(key, default)
        if type(value) is not bool:
            raise self.fail(key, "true or false")
        return value

    def items(self, key: str, kind: type) -> list[Any]:
        """A list of values of one type. :raises CheckpointError: absent, or another value."""
        value = self.values.get(key)
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            raise self.fail(key, f"a list of {kind.__name__}")
        return value
