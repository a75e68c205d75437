"""SmolVLA at its published size, and what it is shown: for ours and for its peer, which may live in another Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VIEWS, HEIGHT, WIDTH = 2, 480, 640  # pictures of an observation
SIDE, IMAGE_TOKENS = 512, 64  # of a picture as the tower sees it
TEXT_TOKENS = 12
TASK = "touch a cup"  # as many bytes, the line's end beside
HORIZON, PADDED, STEPS, JOINTS = 50, 32, 10, 6
PREFIX_TOKENS = VIEWS * IMAGE_TOKENS + TEXT_TOKENS + 1  # and the state

LANGUAGE_MODEL: dict[str, Any] = {
    "model_type": "smolvlm", "architectures": ["SmolVLMForConditionalGeneration"], "scale_factor": 4,
    "image_token_id": 49190,
    "text_config": {
        "model_type": "llama", "hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32,
        "num_attention_heads": 15, "num_key_value_heads": 5, "head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 100000,
        "vocab_size": 49280, "max_position_embeddings": 8192,
    },
    "vision_config": {
        "model_type": "smolvlm_vision", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "image_size": SIDE, "patch_size": 16,
    },
}  # fmt: skip
POLICY: dict[str, Any] = {
    "type": "smolvla",
    "input_features": {
        "observation.state": {"type": "STATE", "shape": [JOINTS]},
        **{f"observation.images.camera{view}": {"type": "VISUAL", "shape": [3, HEIGHT, WIDTH]} for view in (0, 1)},
    },
    "output_features": {"action": {"type": "ACTION", "shape": [JOINTS]}},
    "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"},
    "chunk_size": HORIZON, "n_action_steps": HORIZON, "max_state_dim": PADDED, "max_action_dim": PADDED,
    "resize_imgs_with_padding": [SIDE, SIDE], "empty_cameras": 0, "tokenizer_max_length": 48, "num_steps": STEPS,
    "vlm_model_name": "vlm", "attention_mode": "cross_attn", "num_vlm_layers": 16, "num_expert_layers": 0,
    "self_attn_every_n_layers": 2, "expert_width_multiplier": 0.75, "min_period": 0.004, "max_period": 4.0,
}  # fmt: skip

FACTS: dict[str, Any] = {
    "model": "SmolVLA, 450 M parameters, random weights", "views": VIEWS, "view_size": [HEIGHT, WIDTH],
    "prefix_tokens": PREFIX_TOKENS, "horizon": HORIZON, "steps": STEPS,
}  # fmt: skip


def write_smolvla_shape(folder: Path) -> Path:
    """The policy's ``config.json`` and its language model's below ``vlm``; returns the folder."""
    (folder / "vlm").mkdir(parents=True, exist_ok=True)
    for name, content in (("config.json", POLICY), ("vlm/config.json", LANGUAGE_MODEL)):
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    return folder
