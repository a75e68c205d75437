"""Policy checkpoints for tests: the stored reference, and random ones of any size in lerobot's layout."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import ml_dtypes  # noqa: F401 - the reader of safetensors knows bfloat16 only with it
import numpy as np
from safetensors.numpy import save_file

from edgellm_ros.action.observation import Observation
from edgellm_ros.builder.build import build_engine

REFERENCE = Path(__file__).parent / "reference"


def reference(family):
    """Folder, arrays and cases of a stored reference."""
    folder = REFERENCE / family
    return folder, np.load(folder / "reference.npz"), json.loads((folder / "reference.json").read_text())


def build_references(root, families):
    """The engine directories of stored references, by family."""
    (root / "robot.yaml").write_text("embodiment: libero_sim\n")
    return {
        family: build_engine(
            REFERENCE / family, root / family, policy_settings=root / "robot.yaml" if family == "groot" else None
        )
        for family in families
    }


def observation(arrays, case, cameras, stamp=0):
    return Observation({name: arrays[f"image_{name}"] for name in cameras}, arrays[f"{case}_state"], stamp)


def scaled_error(found, wanted):
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def random_smolvla(
    folder,
    *,
    hidden=32,
    heads=4,
    kv_heads=1,
    layers=3,
    every=3,
    width=0.5,
    cameras=("left", "right"),
    state=3,
    action=6,
):
    """A checkpoint of another size than the reference, with the reference's tokenizer."""
    rng = np.random.default_rng(5)
    head_dim, inner, vision = 16, 48, 16
    expert = int(hidden * width)
    gated = -(-4 * int(2 * expert / 3) // 256) * 256
    language = {
        "model_type": "smolvlm",
        "architectures": ["SmolVLMForConditionalGeneration"],
        "scale_factor": 2,
        "image_token_id": 3,
        "text_config": {
            "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers + 1,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "vocab_size": 300,
            "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "max_position_embeddings": 256,
        },
        "vision_config": {
            "model_type": "smolvlm_vision", "hidden_size": vision, "intermediate_size": 24, "num_hidden_layers": 1,
            "num_attention_heads": 2, "image_size": 32, "patch_size": 8,
        },
    }  # fmt: skip
    queries, keys = heads * head_dim, kv_heads * head_dim
    shapes = {"state_proj": (hidden, 8), "action_in_proj": (expert, 10), "action_out_proj": (10, expert),
              "action_time_mlp_in": (expert, 2 * expert), "action_time_mlp_out": (expert, expert)}  # fmt: skip
    tensors = {}
    for name, shape in shapes.items():
        tensors[f"model.{name}.weight"], tensors[f"model.{name}.bias"] = shape, shape[:1]
    both = (
        ("model.vlm_with_expert.vlm.model.text_model.", hidden, inner),
        ("model.vlm_with_expert.lm_expert.", expert, gated),
    )
    for root, size, middle in both:
        for layer in range(layers):
            crossing = root.endswith("expert.") and layer % every
            given = keys if crossing else size
            prefix = f"{root}layers.{layer}."
            tensors |= {
                f"{prefix}self_attn.q_proj.weight": (queries, size),
                f"{prefix}self_attn.k_proj.weight": (keys, given),
                f"{prefix}self_attn.v_proj.weight": (keys, given),
                f"{prefix}self_attn.o_proj.weight": (size, queries),
                f"{prefix}mlp.gate_proj.weight": (middle, size),
                f"{prefix}mlp.up_proj.weight": (middle, size),
                f"{prefix}mlp.down_proj.weight": (size, middle),
                f"{prefix}input_layernorm.weight": (size,),
                f"{prefix}post_attention_layernorm.weight": (size,),
            }
        tensors[f"{root}norm.weight"] = (size,)
    vlm = "model.vlm_with_expert.vlm."
    tensors |= {
        f"{vlm}lm_head.weight": (300, hidden),
        f"{vlm}model.text_model.embed_tokens.weight": (300, hidden),
        f"{vlm}model.connector.modality_projection.proj.weight": (hidden, 4 * vision),
        f"{vlm}model.vision_model.embeddings.patch_embedding.weight": (vision, 3, 8, 8),
        f"{vlm}model.vision_model.embeddings.patch_embedding.bias": (vision,),
        f"{vlm}model.vision_model.embeddings.position_embedding.weight": (16, vision),
    }
    block = f"{vlm}model.vision_model.encoder.layers.0."
    linears = {**{f"self_attn.{part}_proj": (vision, vision) for part in ("q", "k", "v", "out")},
               "mlp.fc1": (24, vision), "mlp.fc2": (vision, 24)}  # fmt: skip
    for name, shape in linears.items():
        tensors[f"{block}{name}.weight"], tensors[f"{block}{name}.bias"] = shape, shape[:1]
    for name in (f"{block}layer_norm1", f"{block}layer_norm2", f"{vlm}model.vision_model.post_layernorm"):
        tensors[f"{name}.weight"] = tensors[f"{name}.bias"] = (vision,)
    visual = {f"observation.images.{name}": {"type": "VISUAL", "shape": [3, 24, 32]} for name in cameras}
    config = {
        "type": "smolvla",
        "input_features": {"observation.state": {"type": "STATE", "shape": [state]}, **visual},
        "output_features": {"action": {"type": "ACTION", "shape": [action]}},
        "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"},
        "chunk_size": 5, "n_action_steps": 5, "max_state_dim": 8, "max_action_dim": 10,
        "resize_imgs_with_padding": [32, 32], "empty_cameras": 0, "tokenizer_max_length": 16, "num_steps": 3,
        "vlm_model_name": "elsewhere", "attention_mode": "cross_attn", "num_vlm_layers": layers,
        "num_expert_layers": -1,
        "self_attn_every_n_layers": every, "expert_width_multiplier": width, "min_period": 0.004, "max_period": 4.0,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(REFERENCE / "smolvla" / "vlm", folder / "vlm", dirs_exist_ok=True)
    (folder / "vlm" / "config.json").write_text(json.dumps(language))
    (folder / "config.json").write_text(json.dumps(config))
    weights = {}
    for name, shape in tensors.items():
        values = rng.standard_normal(shape) / np.sqrt(shape[-1])
        weights[name] = (1 + 0.1 * values if "norm" in name and name.endswith("weight") else values).astype(np.float32)
    # statistics the way checkpoints kept them before there were pipelines
    for owner, feature, size in (
        ("normalize_inputs", "observation_state", state),
        ("unnormalize_outputs", "action", action),
    ):
        weights[f"{owner}.buffer_{feature}.mean"] = rng.standard_normal(size).astype(np.float32)
        weights[f"{owner}.buffer_{feature}.std"] = rng.uniform(0.5, 2, size).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    return folder
