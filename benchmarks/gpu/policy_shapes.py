"""Policies to measure: published shapes with random weights, and tiny ones of the same kinds to try the way there."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = 11
TASK = "pick up the red cube and put it into the bowl."
Files = Mapping[str, Mapping[str, Any]]  # by their paths in a checkpoint


@dataclass(frozen=True)
class PolicyShape:
    """``picture``: height and width of what a camera gives; ``must`` and ``aim``: ms of a chunk on an H200 in fp16.

    ``words`` are said before each chunk that is timed. ``cut`` tells in what the shape is smaller than what it is of.
    """

    name: str
    files: Files
    tiny: Files  # that take the place of those, for the tiny one
    picture: tuple[int, int]
    task: str
    must: float
    aim: float
    peer: str = ""
    words: int = 0
    cut: str = ""

    def checkpoint(self, folder: Path, *, tiny: bool = False) -> Path:
        """Write the files of a checkpoint without weights; the folder."""
        for place, content in {**self.files, **(self.tiny if tiny else {})}.items():
            path = folder / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content), encoding="utf-8")
        return folder


def _features(cameras: int, size: int, state: int, action: int) -> dict[str, Any]:
    views = {
        f"observation.images.camera{number}": {"type": "VISUAL", "shape": [3, size, size]}
        for number in range(1, cameras + 1)
    }
    return {
        "input_features": {"observation.state": {"type": "STATE", "shape": [state]}, **views},
        "output_features": {"action": {"type": "ACTION", "shape": [action]}},
    }


_SMOLVLA = {
    "type": "smolvla", **_features(2, 256, 6, 7), "chunk_size": 50, "n_action_steps": 50,
    "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}, "max_state_dim": 32,
    "max_action_dim": 32, "resize_imgs_with_padding": [512, 512], "empty_cameras": 0, "tokenizer_max_length": 48,
    "num_steps": 10, "vlm_model_name": "HuggingFaceTB/SmolVLM2-500M-Video-Instruct", "add_image_special_tokens": False,
    "adapt_to_pi_aloha": False, "use_delta_joint_actions_aloha": False, "attention_mode": "cross_attn",
    "num_vlm_layers": 16, "num_expert_layers": 0, "self_attn_every_n_layers": 2, "expert_width_multiplier": 0.75,
    "min_period": 0.004, "max_period": 4.0,
}  # fmt: skip
_TINY_SMOLVLM = {
    "model_type": "smolvlm", "architectures": ["SmolVLMForConditionalGeneration"], "scale_factor": 2,
    "image_token_id": 300,
    "text_config": {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0, "max_position_embeddings": 512,
    },
    "vision_config": {
        "model_type": "smolvlm_vision", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 64, "patch_size": 16,
    },
}  # fmt: skip
_PI05 = {
    "type": "pi05", **_features(2, 224, 8, 7), "paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m",
    "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "QUANTILES", "ACTION": "QUANTILES"}, "chunk_size": 10,
    "n_action_steps": 10, "max_state_dim": 32, "max_action_dim": 32, "num_inference_steps": 10, "min_period": 0.004,
    "max_period": 4.0, "image_resolution": [224, 224], "tokenizer_max_length": 200,
}  # fmt: skip
_TINY_PALIGEMMA = {
    "model_type": "paligemma", "architectures": ["PaliGemmaForConditionalGeneration"],
    "text_config": {
        "model_type": "gemma", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512, "rms_norm_eps": 1e-6,
    },
    "vision_config": {
        "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "patch_size": 14, "image_size": 56, "projection_dim": 64,
    },
}  # fmt: skip
_GROOT = {
    "architectures": ["Gr00tN1d7"], "model_type": "Gr00tN1d7", "model_name": "nvidia/Cosmos-Reason2-2B",
    "action_horizon": 40, "add_pos_embed": True, "backbone_embedding_dim": 2048, "hidden_size": 1024,
    "input_embedding_dim": 1536, "max_action_dim": 132, "max_state_dim": 132, "max_num_embodiments": 1,
    "max_seq_len": 1024, "num_inference_timesteps": 4, "num_timestep_buckets": 1000, "select_layer": 16,
    "use_alternate_vl_dit": True, "use_vlln": True, "state_history_length": 1, "attend_text_every_n_blocks": 2,
    "diffusion_model_cfg": {
        "attention_head_dim": 48, "interleave_self_attention": True, "norm_type": "ada_norm",
        "num_attention_heads": 32, "num_layers": 32, "output_dim": 1024, "positional_embeddings": None,
    },
    "vl_self_attention_cfg": {
        "attention_head_dim": 64, "num_attention_heads": 32, "num_layers": 4, "positional_embeddings": None,
    },
}  # fmt: skip
_TINY_GROOT = {
    **_GROOT, "backbone_embedding_dim": 128, "hidden_size": 32, "input_embedding_dim": 64, "select_layer": 2,
    "diffusion_model_cfg": {
        **_GROOT["diffusion_model_cfg"], "attention_head_dim": 16, "num_attention_heads": 4, "num_layers": 4,  # type: ignore[dict-item]
        "output_dim": 32,
    },
    "vl_self_attention_cfg": {
        "attention_head_dim": 64, "num_attention_heads": 2, "num_layers": 1, "positional_embeddings": None,
    },
}  # fmt: skip
_TINY_QWEN = {
    "model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 400,
    "video_token_id": 401, "vision_start_token_id": 402, "vision_end_token_id": 403, "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_vl_text", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "vocab_size": 512, "max_position_embeddings": 2048, "rope_theta": 5000000,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default"},
    },
    "vision_config": {
        "model_type": "qwen3_vl", "depth": 3, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2,
        "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 128,
        "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1],
    },
}  # fmt: skip
_NUMBERS = {"joints": {"min": [-1.0] * 7, "max": [1.0] * 7}}
_ROBOT = {
    "processor_class": "Gr00tN1d7Processor",
    "processor_kwargs": {
        "modality_configs": {
            "bench": {
                "video": {"delta_indices": [0], "modality_keys": ["head"]},
                "state": {"delta_indices": [0], "modality_keys": ["joints"]},
                "action": {"delta_indices": list(range(16)), "modality_keys": ["joints"]},
            }
        },
        "shortest_image_edge": 256, "crop_fraction": 0.95, "use_albumentations": True, "letter_box_transform": False,
        "use_mean_std": False, "exclude_state": False, "formalize_language": True,
    },
}  # fmt: skip


def _alpamayo(start: int, bins: int, layers: int, heads: int, width: int, **tiny: Any) -> dict[str, Any]:
    """Its language model has ``start`` tokens without trajectories, which have ``bins`` each way."""
    size = 2 * bins
    marks = {"history": 15, "future": 16, "history_start": 5, "future_start": 12, "history_end": 7, "future_end": 14}
    return {
        "architectures": ["AlpamayoR1"], "model_type": "alpamayo_r1", "vocab_size": start + size + 64,
        "vlm_name_or_path": "Qwen/Qwen3-VL-8B-Instruct", "add_special_tokens": True,
        "expert_non_causal_attention": True,
        "expert_cfg": {"hidden_size": width, "intermediate_size": 8256, "num_attention_heads": heads,
                       "num_hidden_layers": layers},
        "action_space_cfg": {"n_waypoints": 64, "dt": 0.1},
        "action_in_proj_cfg": {"hidden_size": 512, "max_freq": 100.0, "num_enc_layers": 4, "num_fourier_feats": 20},
        "diffusion_cfg": {"int_method": "euler", "num_inference_steps": 10}, "tokens_per_history_traj": 48,
        "traj_vocab_size": size, "traj_token_start_idx": start, "hist_traj_tokenizer_cfg": {"num_bins": bins},
        "traj_token_ids": {name: start + size + place for name, place in marks.items()},
        "traj_tokenizer_cfg": {"num_bins": bins}, **tiny,
    }  # fmt: skip


def _qwen(text: Mapping[str, Any], vision: Mapping[str, Any]) -> dict[str, Any]:
    """Qwen3-VL-8B but for what is given; the ids of marks lie at the end of a vocabulary that fits the text's."""
    ids = text["vocab_size"] - 4
    return {
        "model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": ids,
        "video_token_id": ids + 1, "vision_start_token_id": ids + 2, "vision_end_token_id": ids + 3,
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_vl_text", "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "hidden_act": "silu",
            "max_position_embeddings": 262144, "rope_theta": 5000000,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}, **text,
        },
        "vision_config": {
            "model_type": "qwen3_vl", "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16,
            "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 4096,
            "num_position_embeddings": 2304, **vision,
        },
    }  # fmt: skip


_PIXELS = {
    "size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16, "temporal_patch_size": 2,
    "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip
_ALPAMAYO_LAYERS, _ALPAMAYO_TOWER, _ALPAMAYO_WORDS = 6, 9, 32768

POLICY_SHAPES = {
    shape.name: shape
    for shape in (
        PolicyShape(
            "smolvla", {"config.json": _SMOLVLA},
            {"config.json": {**_SMOLVLA, "resize_imgs_with_padding": [64, 64], "num_vlm_layers": 2, "num_steps": 3},
             "vlm/config.json": _TINY_SMOLVLM},
            (480, 640), TASK, 25.0, 15.0, "SmolVLA 450M",
        ),
        PolicyShape(
            "pi05", {"config.json": _PI05},
            {"config.json": {**_PI05, "image_resolution": [56, 56], "num_inference_steps": 3},
             "vlm/config.json": _TINY_PALIGEMMA},
            (480, 640), "pick", 40.0, 22.0, "pi0.5; published: 26 to 27 ms on an RTX 4090 by kernels of its own",
        ),
        PolicyShape(
            "groot",
            {"config.json": _GROOT, "processor_config.json": _ROBOT, "embodiment_id.json": {"bench": 0},
             "statistics.json": {"bench": {"state": _NUMBERS, "action": _NUMBERS}}},
            {"config.json": _TINY_GROOT, "vlm/config.json": _TINY_QWEN},
            (256, 256), TASK, 30.0, 20.0, "GR00T N1.7; published: TensorRT on an H100, 27.9 to 29.6 ms",
        ),
        PolicyShape(
            "alpamayo",
            {"config.json": _alpamayo(_ALPAMAYO_WORDS, 1000, _ALPAMAYO_LAYERS, 16, 2048),
             "vlm/config.json": _qwen(
                 {"num_hidden_layers": _ALPAMAYO_LAYERS, "vocab_size": _ALPAMAYO_WORDS},
                 {"depth": _ALPAMAYO_TOWER, "deepstack_visual_indexes": [2, 4, 6]}),
             "vlm/preprocessor_config.json": _PIXELS},
            {"config.json": _alpamayo(
                 500, 100, 2, 4, 32, min_pixels=1024, max_pixels=2048, action_space_cfg={"n_waypoints": 8},
                 diffusion_cfg={"int_method": "euler", "num_inference_steps": 3}),
             "vlm/config.json": _qwen(
                 {"num_hidden_layers": 2, "vocab_size": 500, "hidden_size": 64, "intermediate_size": 128,
                  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 2048,
                  "rope_scaling": {"mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default"}},
                 {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64,
                  "num_position_embeddings": 16, "deepstack_visual_indexes": [0]})},
            (320, 576), TASK, float("nan"), float("nan"), "Alpamayo-R1-10B, of which this is a part", 32,
            f"{_ALPAMAYO_LAYERS} of 36 layers of both, {_ALPAMAYO_TOWER} of 27 of the tower, {_ALPAMAYO_WORDS} words",
        ),
    )
}  # fmt: skip


def engine_folder(name: str, folder: Path, *, precision: str, lowering: str, tiny: bool = False) -> Path:
    """Where ``build_policy`` builds."""
    return folder / f"policy-{'tiny-' if tiny else ''}{name}-{lowering}-{precision}"


def build_policy(name: str, folder: Path, *, precision: str, lowering: str, tiny: bool = False) -> Path:
    """An engine directory of random weights, made where it is not there yet."""
    output = engine_folder(name, folder, precision=precision, lowering=lowering, tiny=tiny)
    if (output / "manifest.json").is_file():
        return output
    from edgellm_ros.builder.build import build_engine  # needs onnx, which a machine that only runs may lack

    start = time.monotonic()
    source = POLICY_SHAPES[name].checkpoint(folder / output.name.replace("policy", "checkpoint", 1), tiny=tiny)
    build_engine(source, output, precision=precision, lowering=lowering, random_seed=SEED)
    print(f"built {output.name} in {time.monotonic() - start:.1f} s", flush=True)
    return output
