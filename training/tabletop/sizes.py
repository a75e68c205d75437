"""Dimensions of the tabletop model."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Sizes:
    """Dimensions of the model; they end up in ``config.json`` and ``vlm/config.json``."""

    vocabulary: int = 512
    width: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    mlp: int = 640
    vision_width: int = 256
    vision_layers: int = 6
    vision_heads: int = 4
    vision_mlp: int = 768
    image: int = 128
    patch: int = 16
    shuffle: int = 2
    expert_multiplier: float = 0.75
    horizon: int = 16
    state: int = 4
    action: int = 4
    cameras: int = 2
    min_period: float = 4e-3
    max_period: float = 4.0

    @property
    def expert_width(self) -> int:
        """Width of the action expert."""
        return int(self.width * self.expert_multiplier)

    @property
    def expert_mlp(self) -> int:
        """Inner width of the expert's MLP by lerobot's rule: two thirds of four widths, up to a multiple of 256."""
        wanted = 4 * int(2 * self.expert_width / 3)
        return 256 * ((wanted + 255) // 256)

    @property
    def image_tokens(self) -> int:
        """Tokens of one picture after the pixel shuffle."""
        return (self.image // self.patch // self.shuffle) ** 2

    def as_dict(self) -> dict[str, float | int]:
        """All fields by name."""
        return asdict(self)
