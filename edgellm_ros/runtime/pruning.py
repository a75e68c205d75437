"""Which share of an image's tokens a vision runner may leave out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..errors import EdgeLLMError, RefusalCode
from ..json_values import shown

ALGORITHMS = ("dart",)


@dataclass(frozen=True)
class VisualPrunerConfig:
    """``reduction_ratio`` is the share that is removed, of images of at least ``min_visual_tokens``.

    :raises EdgeLLMError: an unknown algorithm or a number out of range.
    """

    enabled: bool = False
    algorithm: str = "dart"
    reduction_ratio: float = 0.25
    min_visual_tokens: int = 16
    pivot_image_tokens: int = 4
    pivot_text_tokens: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise _bad(f"enabled is {shown(self.enabled)}; want true or false.")
        if self.algorithm not in ALGORITHMS:
            raise _bad(f"algorithm is {shown(self.algorithm)}; want one of {', '.join(ALGORITHMS)}.")
        ratio = self.reduction_ratio
        if not isinstance(ratio, int | float) or isinstance(ratio, bool) or not 0 <= ratio < 1:
            raise _bad(f"reduction_ratio is {shown(ratio)}; want a number from 0 to below 1.")
        for name in ("min_visual_tokens", "pivot_image_tokens", "pivot_text_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1 << 20:
                raise _bad(f"{name} is {shown(value)}; want a whole number from 1 to {1 << 20}.")

    @classmethod
    def of(cls, value: VisualPrunerConfig | Mapping[str, Any]) -> VisualPrunerConfig:
        """The configuration itself, or one made of named values.

        :raises EdgeLLMError: an unknown name or a bad value.
        """
        if isinstance(value, VisualPrunerConfig):
            return value
        known = {entry.name for entry in fields(cls)}
        unknown = [name for name in value if name not in known]
        if unknown:
            raise _bad(f"the visual pruner has {shown(unknown[0])}; want some of {', '.join(sorted(known))}.")
        return cls(**value)


def _bad(message: str) -> EdgeLLMError:
    return EdgeLLMError(message, RefusalCode.BAD_PARAMETER)
