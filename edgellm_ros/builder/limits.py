"""How many sequences, and of what length, an engine is built for."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine_format import BuilderLimits
from ..errors import CheckpointError
from .families.base import DecoderConfig

DEFAULT_BATCH, DEFAULT_INPUT, DEFAULT_CAPACITY = 4, 1024, 4096


@dataclass(frozen=True)
class WantedLimits:
    """Some of ``BuilderLimits``; what is None is chosen for the model."""

    max_batch_size: int | None = None
    max_input_len: int | None = None
    max_kv_cache_capacity: int | None = None


def choose_limits(
    config: DecoderConfig, wanted: BuilderLimits | WantedLimits | None, usual: BuilderLimits | None = None
) -> BuilderLimits:
    """The limits that are wanted, and for the others the ``usual`` ones, cut to what the model was trained for.

    :raises CheckpointError: the cache would hold more positions than that.
    :raises EngineDirectoryError: a number that is no limit.
    """
    maximum = config.max_position_embeddings
    wanted = wanted or WantedLimits()
    usual = usual or BuilderLimits(DEFAULT_BATCH, DEFAULT_INPUT, DEFAULT_CAPACITY)
    capacity, length, batch = wanted.max_kv_cache_capacity, wanted.max_input_len, wanted.max_batch_size
    capacity = min(usual.max_kv_cache_capacity, maximum) if capacity is None else capacity
    length = min(usual.max_input_len, max(1, capacity)) if length is None else length
    limits = BuilderLimits(usual.max_batch_size if batch is None else batch, length, capacity)
    if limits.max_kv_cache_capacity > maximum:
        raise CheckpointError(
            f"max_kv_cache_capacity is {limits.max_kv_cache_capacity}; the model was trained for {maximum} positions: "
            "ask for no more."
        )
    return limits
