"""Tiny configurations of vision-language models, and the images and prompts that they are asked about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

IMAGE, VIDEO, START, END = 262, 263, 264, 265  # token ids
VOCABULARY = 269
IMAGE_SEEDS = (0, 1, 2)
GRIDS = {0: (1, 6, 8), 1: (1, 4, 4), 2: (1, 8, 6), 3: (3, 4, 12)}  # of patches, where images have their own
VIDEO_SEED = 3
SECONDS_PER_PATCH = 0.5  # so that time runs behind the columns, where versions of transformers agree
PROMPTS: tuple[tuple[list[int], tuple[int, ...]], ...] = (
    ([72, 101, 108, 108, 111, 35, 12, 91], ()),
    ([17, 43, IMAGE, 9, 88, 21], (0,)),
    ([99, IMAGE, 13, 14, IMAGE, IMAGE, 77, 120, 33, 54, 200], (2, 0, 1)),
)
WITH_VIDEO: tuple[list[int], tuple[int, ...]] = ([31, VIDEO, 72, IMAGE, 29, 61], (VIDEO_SEED, 1))  # where there are any

TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 192,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": True,
}  # fmt: skip
QWEN_TEXT = {**TEXT, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
ROPE = {"rope_type": "default", "rope_theta": 300.0}
TILES = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 4,
    "image_size": 24, "layer_norm_eps": 3e-6,
}  # fmt: skip
PATCHES = {"num_heads": 2, "patch_size": 3, "temporal_patch_size": 2, "spatial_merge_size": 2}
QWEN_IDS = {
    "image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": START, "vision_end_token_id": END,
    "tie_word_embeddings": True,
}  # fmt: skip
SIGLIP = {**TILES, "model_type": "siglip_vision_model", "vision_use_head": False}


@dataclass(frozen=True)
class Kind:
    """Prefix of its classes in transformers, its configuration, tokens of an image or ``grids`` of its own."""

    classes: str
    config: dict[str, Any] = field(default_factory=dict)
    tokens: int = 0
    grids: bool = False


FAMILIES: dict[str, Kind] = {
    "qwen2_vl": Kind(
        "Qwen2VL",
        {
            **QWEN_IDS,
            "text_config": {**QWEN_TEXT, "rope_parameters": {**ROPE, "mrope_section": [2, 3, 3]}},
            "vision_config": {**PATCHES, "depth": 2, "embed_dim": 24, "hidden_size": 32, "mlp_ratio": 2},
        },
        grids=True,
    ),
    "qwen2_5_vl": Kind(
        "Qwen2_5_VL",
        {
            **QWEN_IDS,
            "text_config": {**QWEN_TEXT, "rope_parameters": {**ROPE, "mrope_section": [2, 3, 3]}},
            "vision_config": {
                **PATCHES, "depth": 3, "hidden_size": 24, "intermediate_size": 28, "out_hidden_size": 32,
                "window_size": 12, "fullatt_block_indexes": [1],
            },
        },
        grids=True,
    ),
    "qwen3_vl": Kind(
        "Qwen3VL",
        {
            **QWEN_IDS,
            "text_config": {
                **QWEN_TEXT, "rope_parameters": {**ROPE, "mrope_section": [3, 3, 2], "mrope_interleaved": True},
            },
            "vision_config": {
                **PATCHES, "depth": 3, "hidden_size": 24, "intermediate_size": 28, "out_hidden_size": 32,
                "num_position_embeddings": 25, "deepstack_visual_indexes": [0, 2],
            },
        },
        grids=True,
    ),
    "smolvlm": Kind(
        "SmolVLM",
        {
            "text_config": {**TEXT, "model_type": "llama", "rope_parameters": ROPE}, "scale_factor": 3,
            "vision_config": {**TILES, "image_size": 36}, "image_token_id": IMAGE, "tie_word_embeddings": True,
        },
        9,
    ),
    "paligemma": Kind(
        "PaliGemma",
        {
            "text_config": {**TEXT, "model_type": "gemma", "rope_parameters": ROPE},
            "vision_config": {**SIGLIP, "image_size": 14, "projection_dim": 24}, "projection_dim": 24,
            "image_token_index": IMAGE, "hidden_size": 24,
        },
        9,
    ),
    "gemma3": Kind(
        "Gemma3",
        {
            "text_config": {
                **TEXT, "sliding_window": 6, "query_pre_attn_scalar": 7,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "rope_theta": 300.0, "factor": 4.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 90.0},
                },
            },
            "vision_config": SIGLIP, "mm_tokens_per_image": 9, "image_token_index": IMAGE, "tie_word_embeddings": True,
        },
        9,
    ),
    "internvl": Kind(
        "InternVL",
        {
            "text_config": {**TEXT, "model_type": "qwen2", "rope_parameters": ROPE},
            "vision_config": {**TILES, "patch_size": [4, 4], "image_size": [24, 24], "attention_bias": True},
            "image_token_id": IMAGE, "tie_word_embeddings": True,
        },
        9,
    ),
}  # fmt: skip


def pixel_values(family: str, seed: int) -> np.ndarray:
    """What an image processor would give for an image: float32 patches [S,values], or a tile [3,side,side]."""
    vision = FAMILIES[family].config["vision_config"]
    random = np.random.default_rng([7, seed])
    if FAMILIES[family].grids:
        frames, height, width = GRIDS[seed]
        values = 3 * vision["temporal_patch_size"] * vision["patch_size"] ** 2
        return random.standard_normal((frames * height * width, values), dtype=np.float32)
    side = vision["image_size"]
    side = side[0] if isinstance(side, list) else side
    return random.standard_normal((3, side, side), dtype=np.float32)


def token_count(family: str, seed: int) -> int:
    """Tokens that an image takes."""
    if not FAMILIES[family].grids:
        return FAMILIES[family].tokens
    frames, height, width = GRIDS[seed]
    return frames * height * width // 4


def expanded(family: str, text: list[int], seeds: tuple[int, ...]) -> list[int]:
    """The prompt with as many image tokens as each image has."""
    images = iter(seeds)
    ids: list[int] = []
    for token in text:
        if token in (IMAGE, VIDEO):
            seed = next(images)
            image = [token] * token_count(family, seed)
            frames = GRIDS[seed][0]
            if family == "qwen3_vl" and frames > 1:  # each frame by itself, behind its time
                for frame in range(frames):
                    ids += [40 + frame, START, *image[: len(image) // frames], END]
            else:
                ids += [START, *image, END] if FAMILIES[family].grids else image
        else:
            ids.append(token)
    return ids
