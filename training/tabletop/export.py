"""Write a trained checkpoint in lerobot's SmolVLA layout, in bfloat16.

    python -m training.tabletop.export CHECKPOINT FOLDER

``model.safetensors`` has lerobot's tensor names, ``config.json`` its fields; statistics lie beside the processors'
JSON, names and units in ``policy_settings.yaml``.
``vlm/`` holds what lerobot looks up by a model's name: sizes, tokenizer, chat template and picture settings.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from edgellm_ros.tabletop.cameras import CAMERA_NAMES, IMAGE_SIZE
from edgellm_ros.tabletop.checkpoint_files import FOLDER as SHIPPED
from training.tabletop.checkpoints import load
from training.tabletop.sizes import Sizes
from training.tabletop.text import END, END_OF_TEXT, IMAGE, START, Codec

FOLDER = Path(__file__).resolve().parent
TASK_TOKENS = 48


def policy_config(sizes: Sizes) -> dict[str, Any]:
    """Lerobot's config.json."""
    cameras = {
        f"observation.images.{name}": {"type": "VISUAL", "shape": [3, IMAGE_SIZE, IMAGE_SIZE]} for name in CAMERA_NAMES
    }
    return {
        "type": "smolvla",
        "n_obs_steps": 1,
        "input_features": {"observation.state": {"type": "STATE", "shape": [sizes.state]}, **cameras},
        "output_features": {"action": {"type": "ACTION", "shape": [sizes.action]}},
        "device": "cpu",
        "use_amp": False,
        "push_to_hub": False,
        "license": "apache-2.0",
        "chunk_size": sizes.horizon,
        "n_action_steps": sizes.horizon,
        "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"},
        "max_state_dim": sizes.state,
        "max_action_dim": sizes.action,
        "resize_imgs_with_padding": [sizes.image, sizes.image],
        "empty_cameras": 0,
        "adapt_to_pi_aloha": False,
        "use_delta_joint_actions_aloha": False,
        "tokenizer_max_length": TASK_TOKENS,
        "num_steps": 10,
        "use_cache": True,
        "freeze_vision_encoder": False,
        "train_expert_only": False,
        "train_state_proj": True,
        "vlm_model_name": "vlm",
        "load_vlm_weights": False,
        "add_image_special_tokens": False,
        "attention_mode": "cross_attn",
        "prefix_length": 0,
        "pad_language_to": "longest",
        "num_expert_layers": 0,
        "num_vlm_layers": sizes.layers,
        "self_attn_every_n_layers": 2,
        "expert_width_multiplier": sizes.expert_multiplier,
        "min_period": sizes.min_period,
        "max_period": sizes.max_period,
        "rtc_config": None,
    }


def processors(sizes: Sizes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Lerobot's policy_preprocessor.json and policy_postprocessor.json."""
    config = policy_config(sizes)
    features = config["input_features"] | config["output_features"]
    normalise = {
        "eps": 1e-8,
        "features": features,
        "norm_map": config["normalization_mapping"],
    }
    before = [
        {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
        {"registry_name": "to_batch_processor", "config": {}},
        {"registry_name": "smolvla_new_line_processor", "config": {}},
        {
            "registry_name": "tokenizer_processor",
            "config": {
                "max_length": TASK_TOKENS,
                "task_key": "task",
                "padding_side": "right",
                "padding": "longest",
                "truncation": True,
                "tokenizer_name": "vlm",
            },
        },
        {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}},
        {
            "registry_name": "normalizer_processor",
            "config": normalise,
            "state_file": "policy_preprocessor_step_5_normalizer_processor.safetensors",
        },
    ]
    after = [
        {
            "registry_name": "unnormalizer_processor",
            "config": {**normalise, "features": config["output_features"]},
            "state_file": "policy_postprocessor_step_0_unnormalizer_processor.safetensors",
        },
        {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}},
    ]
    return (
        {"name": "policy_preprocessor", "steps": before},
        {"name": "policy_postprocessor", "steps": after},
    )


def vlm_config(sizes: Sizes, codec: Codec) -> dict[str, Any]:
    """The SmolVLM configuration that lerobot would look up by ``vlm_model_name``."""
    return {
        "architectures": ["SmolVLMForConditionalGeneration"],
        "model_type": "smolvlm",
        "image_token_id": codec.ids[IMAGE],
        "pad_token_id": codec.ids[END_OF_TEXT],
        "scale_factor": sizes.shuffle,
        "tie_word_embeddings": False,
        "vocab_size": sizes.vocabulary,
        "text_config": {
            "model_type": "llama",
            "vocab_size": sizes.vocabulary,
            "hidden_size": sizes.width,
            "intermediate_size": sizes.mlp,
            "num_hidden_layers": sizes.layers,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.kv_heads,
            "head_dim": sizes.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "attention_bias": False,
            "mlp_bias": False,
            "pad_token_id": codec.ids[END_OF_TEXT],
            "bos_token_id": codec.ids[START],
            "eos_token_id": codec.ids[END],
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        },
        "vision_config": {
            "model_type": "smolvlm_vision",
            "hidden_size": sizes.vision_width,
            "intermediate_size": sizes.vision_mlp,
            "num_hidden_layers": sizes.vision_layers,
            "num_attention_heads": sizes.vision_heads,
            "num_channels": 3,
            "image_size": sizes.image,
            "patch_size": sizes.patch,
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": 1e-6,
        },
        "torch_dtype": "bfloat16",
    }


def picture_config(sizes: Sizes) -> dict[str, Any]:
    """preprocessor_config.json: one picture of the model's own size, never split."""
    return {
        "image_processor_type": "SmolVLMImageProcessor",
        "processor_class": "SmolVLMProcessor",
        "do_convert_rgb": True,
        "do_image_splitting": False,
        "do_normalize": True,
        "do_pad": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "max_image_size": {"longest_edge": sizes.image},
        "resample": 1,
        "rescale_factor": 1.0 / 255.0,
        "size": {"longest_edge": sizes.image},
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file with a final line feed."""
    path.write_text(json.dumps(value, indent=2) + "\n")


def export(checkpoint: Path, folder: Path) -> None:
    """Write the running mean of a checkpoint's weights as a lerobot checkpoint."""
    sizes = Sizes()
    state = load(checkpoint)
    codec = Codec(FOLDER / "tokenizer", sizes.image_tokens)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name.removeprefix("policy."): value.to(torch.bfloat16).contiguous()
        for name, value in state["mean"].items()
        if name.startswith("policy.")
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", policy_config(sizes))
    before, after = processors(sizes)
    write_json(folder / "policy_preprocessor.json", before)
    write_json(folder / "policy_postprocessor.json", after)
    statistics = json.loads((FOLDER / "statistics.json").read_text())
    tensors = {
        f"{feature}.{key}": torch.tensor(statistics[f"{name}_{key}"])
        for feature, name in (("observation.state", "state"), ("action", "action"))
        for key in ("mean", "std")
    }
    for document in (before, after):
        for step in document["steps"]:
            if "state_file" in step:
                save_file(tensors, folder / step["state_file"])
    vlm = folder / "vlm"
    vlm.mkdir(exist_ok=True)
    for file in (FOLDER / "tokenizer").iterdir():
        shutil.copyfile(file, vlm / file.name)
    write_json(vlm / "config.json", vlm_config(sizes, codec))
    write_json(vlm / "preprocessor_config.json", picture_config(sizes))
    processor = {"image_seq_len": sizes.image_tokens, "processor_class": "SmolVLMProcessor"}
    write_json(vlm / "processor_config.json", processor)
    names = {"bos_token_id": START, "eos_token_id": END, "pad_token_id": END_OF_TEXT}
    write_json(vlm / "generation_config.json", {key: codec.ids[token] for key, token in names.items()})
    if folder.resolve() != SHIPPED:  # what a checkpoint of lerobot cannot say: names, units and the time of a step
        shutil.copyfile(SHIPPED / "policy_settings.yaml", folder / "policy_settings.yaml")
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
