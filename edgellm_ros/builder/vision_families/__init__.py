"""One file a kind of image tower: how the configuration of a vision-language model becomes its graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..families import read_config
from ..families.text_part import whole_of
from .base import Tower
from .internvl import parse_internvl, parse_internvl_chat
from .qwen_vl import parse_qwen2_5_vl, parse_qwen2_vl, parse_qwen3_vl
from .siglip import parse_gemma3, parse_idefics3, parse_paligemma

Parse = Callable[[Mapping[str, Any], int], Tower]  # the configuration of the whole, and the text model's width

TOWERS: dict[str, Parse] = {
    "Qwen2VLForConditionalGeneration": parse_qwen2_vl,
    "Qwen2_5_VLForConditionalGeneration": parse_qwen2_5_vl,
    "Qwen3VLForConditionalGeneration": parse_qwen3_vl,
    "Idefics3ForConditionalGeneration": parse_idefics3,
    "SmolVLMForConditionalGeneration": parse_idefics3,
    "PaliGemmaForConditionalGeneration": parse_paligemma,
    "Gemma3ForConditionalGeneration": parse_gemma3,
    "InternVLChatModel": parse_internvl_chat,
    "InternVLForConditionalGeneration": parse_internvl,
}


def read_tower(config: Mapping[str, Any]) -> Tower | None:
    """The tower of a vision-language configuration; None where it is that of a text model.

    :raises CheckpointError: it is not built; the sentence says why.
    """
    whole = whole_of(config)
    if whole is None or not isinstance(config.get("vision_config"), Mapping):
        return None
    return TOWERS[whole](config, read_config(config).hidden_size)
