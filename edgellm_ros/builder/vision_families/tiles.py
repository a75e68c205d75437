"""What towers over squares of one size have in common: patches row by row, squares of which become tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .base import divided


@dataclass(frozen=True, kw_only=True)
class TileTower:
    """Images are [N,channels,image_size,image_size]; ``block`` times ``block`` patches become one token."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    patch_size: int
    image_size: int
    channels: int
    epsilon: float
    activation: str
    block: int
    out_size: int

    def __post_init__(self) -> None:
        divided("vision hidden_size", self.hidden_size, "num_attention_heads", self.heads)
        divided("patches of an image side", self.side, "a token's side", self.block)

    @property
    def side(self) -> int:
        """Patches along a side; what is left of an image beyond them is not seen."""
        return self.image_size // self.patch_size

    @property
    def tokens(self) -> int:
        """Tokens of a tile."""
        return (self.side // self.block) ** 2

    def settings(self) -> dict[str, Any]:
        """See ``Tower``."""
        return {
            "model_type": self.model_type,
            "layout": "tiles",
            "image_size": self.image_size,
            "num_channels": self.channels,
            "patch_size": self.patch_size,
            "tokens_per_tile": self.tokens,
            "hidden_size": self.out_size,
        }
