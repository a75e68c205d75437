"""One file a model family: how its configuration becomes the data of a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import CheckpointError
from .base import DecoderConfig, Family
from .gemma import GEMMA
from .gemma2 import GEMMA2
from .gemma3 import GEMMA3
from .llama import LLAMA
from .qwen2 import QWEN2
from .qwen3 import QWEN3
from .smollm3 import SMOLLM3
from .text_part import WHOLES, reason_against, text_configuration

FAMILIES: tuple[Family, ...] = (LLAMA, SMOLLM3, QWEN2, QWEN3, GEMMA, GEMMA2, GEMMA3)


def family_of(config: Mapping[str, Any]) -> Family:
    """The family that builds a text configuration.

    :raises CheckpointError: none does; the sentence names the architecture, and says why or lists those there are.
    """
    architectures = config.get("architectures")
    for family in FAMILIES:
        if isinstance(architectures, list) and any(name in family.architectures for name in architectures):
            return family
    known = ", ".join([*(name for family in FAMILIES for name in family.architectures), *WHOLES])
    reason = reason_against(config)
    if reason is not None:
        raise CheckpointError(f"config.json {reason}; want one of {known}.")
    raise CheckpointError(f"config.json has the architectures {architectures!r}; want one of {known}.")


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """A text model's configuration, or that of the text part of a vision-language model.

    :raises CheckpointError: it is not built; the sentence says why.
    """
    text = text_configuration(config)
    decoder = family_of(text).parse(text)
    kept = {key: text[key] for key in ("text_part_of", "mrope_section", "mrope_interleaved") if key in text}
    return replace(decoder, extra={**decoder.extra, **kept})
