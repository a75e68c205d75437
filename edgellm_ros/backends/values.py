"""Plain values that cross the seam: element types, descriptions of tensors, engines, caches and rope kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np


class DataType(str, Enum):
    """Element types that cross the seam (``bfloat16`` travels as uint16 on the host)."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    UINT64 = "uint64"
    INT32 = "int32"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The host dtype of this element type."""
        return np.dtype("uint16" if self is DataType.BFLOAT16 else self.value)


@dataclass(frozen=True)
class TensorSpec:
    """Name, element type and shape of an engine's tensor; -1 marks a dimension that varies from run to run."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]


class TokenSpan(NamedTuple):
    """Rows ``start .. stop`` of a prompt that belong to one image, and how many of them to keep."""

    start: int
    stop: int
    quota: int


@dataclass(frozen=True)
class EngineCapabilities:
    """What an engine can do, found by a probe when it is loaded, never from a version number."""

    ragged_chunks: bool  # rows of one call may hold different numbers of valid positions (``query_length``)
    interval_mask: bool  # takes ``attend_start`` / ``attend_end``; False: causal only
    tree_mask: bool = False
    capture: bool = False  # a step may be recorded with Backend.capture and replayed
    cache_dtypes: tuple[DataType, ...] = (DataType.FLOAT32,)
    window: int = 0  # sliding window that the engine bakes in; 0: none
    adapters: int = 0  # adapter slots, without slot 0
    mixed_positions: int = (
        0  # B*S up to which decode rows and a prompt's chunk are cheaper in one call; 0: not possible
    )
    details: Mapping[str, str] = field(default_factory=dict)  # what the probe saw, for diagnostics


@dataclass(frozen=True)
class SamplingRow:
    """How one row picks its next token. Greedy when ``temperature`` is 0 or ``top_k`` is 1.

    Order of work: repetition, presence and frequency penalties (as in transformers and the OpenAI API: counts of
    generated tokens for presence and frequency, prompt included for repetition), logit bias, token mask,
    temperature, top-k, top-p, min-p, draw. ``position`` of a draw is prompt length + tokens generated so far, so a
    draw depends on (seed, position) alone and never on the row or the batch.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0  # uint64
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    num_logprobs: int = 0


@dataclass(frozen=True)
class RopeKind:
    """One rotary embedding, all scaling resolved: angle = position * inverse_frequency[i]; tables times ``scale``."""

    name: str
    inverse_frequency: tuple[float, ...]  # head_dim/2 values; a partial rotation has fewer
    scale: float = 1.0


@dataclass(frozen=True)
class CacheLayout:
    """What a cache must hold: one (num_kv_heads, head_dim) per layer."""

    layers: tuple[tuple[int, int], ...]
    dtype: DataType = DataType.FLOAT32
