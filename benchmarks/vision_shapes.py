"""Published vision-language models as shapes for random weights, whole or with fewer layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


@dataclass(frozen=True)
class VisionShape:
    """``text_layers`` and ``vision_layers`` 0 keep the published numbers; ``picture``: height and width of a frame."""

    name: str
    config: Mapping[str, Any]
    processor: Mapping[str, Any]
    picture: tuple[int, int]
    text_layers: int = 0
    vision_layers: int = 0

    @property
    def label(self) -> str:
        """Name with the layers that are left."""
        parts = ((self.text_layers, "t"), (self.vision_layers, "v"))
        return self.name + "".join(f"-{count}{letter}" for count, letter in parts if count)

    def with_layers(self, text: int = 0, vision: int = 0) -> VisionShape:
        """The same with so many layers."""
        return replace(self, text_layers=text, vision_layers=vision)

    def write(self, folder: Path) -> Path:
        """Write its configuration files; a builder fills in random weights."""
        config = json.loads(json.dumps(self.config))
        text, vision = config.get("text_config", config), config["vision_config"]
        if self.text_layers:
            text["num_hidden_layers"] = self.text_layers
        if self.vision_layers:
            vision["depth" if "depth" in vision else "num_hidden_layers"] = self.vision_layers
            if "fullatt_block_indexes" in vision:
                kept = [layer for layer in vision["fullatt_block_indexes"] if layer < self.vision_layers]
                vision["fullatt_block_indexes"] = kept
        folder.mkdir(parents=True, exist_ok=True)
        files = {
            "config.json": config,
            "preprocessor_config.json": dict(self.processor),
            "processor_config.json": {"image_seq_len": 64},
        }
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
        return folder


SMOLVLM = VisionShape(
    "SmolVLM-256M",
    {
        "architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3", "scale_factor": 4,
        "image_token_id": 49190, "tie_word_embeddings": False,
        "text_config": {
            "architectures": ["VLlama3ForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 576,
            "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
            "head_dim": 64, "vocab_size": 49280, "rms_norm_eps": 1e-5, "rope_theta": 100000.0,
            "max_position_embeddings": 8192, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
        },
        "vision_config": {
            "model_type": "idefics3", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
            "num_attention_heads": 12, "num_channels": 3, "image_size": 512, "patch_size": 16, "layer_norm_eps": 1e-6,
            "hidden_act": "gelu_pytorch_tanh",
        },
    },
    {**HALF, "resample": 1, "max_image_size": {"longest_edge": 512}, "size": {"longest_edge": 512}},
    (480, 640),
)  # fmt: skip

QWEN25_VL = VisionShape(
    "Qwen2.5-VL-3B",
    {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "hidden_act": "silu",
        "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 2, "vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "max_position_embeddings": 8192, "max_window_layers": 70, "sliding_window": 32768, "use_sliding_window": False,
        "tie_word_embeddings": True, "bos_token_id": 151643, "eos_token_id": 151645, "image_token_id": 151655,
        "video_token_id": 151656, "vision_start_token_id": 151652, "vision_end_token_id": 151653,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vision_config": {
            "depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
            "in_chans": 3, "out_hidden_size": 2048, "patch_size": 14, "spatial_merge_size": 2, "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2, "temporal_patch_size": 2,
        },
    },
    {**HALF, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "min_pixels": 3136, "max_pixels": 12845056},
    (1260, 1260),  # 2,025 tokens
)  # fmt: skip
