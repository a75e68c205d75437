"""Which image tokens the reference of pruned prompts leaves out."""

from __future__ import annotations

from collections.abc import Sequence

FAMILIES = ("smolvlm", "internvl", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "paligemma")


def dropped(prompt: Sequence[int], image_token: int) -> list[int]:
    """Places of image tokens: about half, in no pattern that rows or columns have."""
    visual = [place for place, token in enumerate(prompt) if token == image_token]
    return [place for index, place in enumerate(visual) if (index * index + index // 3) % 5 in (1, 2)]
