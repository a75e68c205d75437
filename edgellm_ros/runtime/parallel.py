"""Where one rank stands among several, and the refusal of more than one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import prod
from typing import Any

from ..errors import EdgeLLMError, RefusalCode
from ..json_values import shown

DIMENSIONS = ("pipeline", "expert", "context", "tensor")  # the last one varies fastest with the rank
_LAUNCHES = ("thread", "process")


@dataclass(frozen=True)
class ParallelMapping:
    """Sizes of every parallel dimension, and this rank's place: ``rank`` counts its coordinates, tensor fastest.

    :raises EdgeLLMError: a size or coordinate out of range, or a world that is not the product of its dimensions.
    """

    world_size: int = 1
    rank: int = 0
    tensor_parallel_size: int = 1
    context_parallel_size: int = 1
    expert_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    launch: str = "thread"  # or process
    device_index: int = 0
    collective_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("world_size", *(f"{dimension}_parallel_size" for dimension in DIMENSIONS)):
            self._check(name, 1, 1 << 16)
        self._check("rank", 0, self.world_size - 1)
        self._check("device_index", 0, 1 << 16)
        if self.launch not in _LAUNCHES:
            raise _bad(f"launch is {shown(self.launch)}; want one of {', '.join(_LAUNCHES)}.")
        product = prod(self._size(dimension) for dimension in DIMENSIONS)
        if product != self.world_size:
            raise _bad(
                f"world_size is {self.world_size} and the sizes of its dimensions give {product}; want the same."
            )

    def _check(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _bad(f"{name} is {shown(value)}; want a whole number from {low} to {high}.")

    def _size(self, dimension: str) -> int:
        return int(getattr(self, f"{dimension}_parallel_size"))

    def coordinate(self, dimension: str) -> int:
        """Place of this rank along one of ``DIMENSIONS``."""
        faster = DIMENSIONS[DIMENSIONS.index(dimension) + 1 :]
        return self.rank // prod(self._size(other) for other in faster) % self._size(dimension)

    @classmethod
    def of(cls, value: ParallelMapping | Mapping[str, Any] | None) -> ParallelMapping:
        """The mapping itself, one made of named values, or that of a single rank.

        :raises EdgeLLMError: an unknown name or a bad value.
        """
        if value is None or isinstance(value, ParallelMapping):
            return value or cls()
        if not isinstance(value, Mapping):
            raise _bad(f"mapping is {shown(value)}; want a ParallelMapping, or named values.")
        known = {entry.name for entry in fields(cls)}
        unknown = [name for name in value if name not in known]
        if unknown:
            raise _bad(f"mapping has {shown(unknown[0])}; want some of {', '.join(sorted(known))}.")
        return cls(**value)

    def check_single_rank(self) -> None:
        """:raises EdgeLLMError: there are several ranks."""
        if self.world_size > 1:
            raise EdgeLLMError(
                f"mapping has world_size {self.world_size}; this version runs one rank: leave it out.",
                RefusalCode.UNSUPPORTED,
            )


def _bad(message: str) -> EdgeLLMError:
    return EdgeLLMError(message, RefusalCode.BAD_PARAMETER)
