"""One file a model family: names of its tensors and the graph they make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import CheckpointError
from .base import Family
from .llama import LlamaFamily

FAMILIES: tuple[Family, ...] = (LlamaFamily(),)


def family_of(config: Mapping[str, Any]) -> Family:
    """The family that builds a configuration.

    :raises CheckpointError: none does; the sentence names the architecture and lists those there are.
    """
    architectures = config.get("architectures")
    for family in FAMILIES:
        if isinstance(architectures, list) and any(name in family.architectures for name in architectures):
            return family
    known = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise CheckpointError(f"config.json has the architectures {architectures!r}; want one of {known}.")
