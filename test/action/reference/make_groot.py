"""Writes ``groot/``: a tiny random GR00T N1.7 in its published layout, what it was shown and the chunks it gave.

Run with lerobot 0.6.1, torch, diffusers and transformers 5.4 to 5.6, offline: ``python make_groot.py``. The network and
both pipelines are the library's own; its table of the backbone's dimensions is replaced by tiny ones, which also stand
in ``vlm/config.json``. Weights are rounded to bfloat16 before the reference runs.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

sys.path.extend(os.environ.get("EXTRA_PATH", "").split(":"))  # stand-ins for packages that do not install

from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.groot import groot_n1_7, processor_groot
from lerobot.policies.groot.configuration_groot import GrootConfig
from lerobot.policies.groot.processor_groot import make_groot_pre_post_processors

HERE = Path(__file__).parent / "groot"
WIDTH, LAYERS, KEPT, EDGE, HORIZON, VALID, STATE_WIDTH, ACTION_WIDTH = 32, 4, 3, 32, 7, 5, 10, 9
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
           "<|video_pad|>"]  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
)
PIXELS = {"size": {"shortest_edge": 64, "longest_edge": 4096}, "patch_size": 4, "temporal_patch_size": 2,
          "merge_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}  # fmt: skip
KEYS = {"libero_sim": {"x": 1, "yaw": 1, "gripper": 2}, "other_arm": {"joints": 3}}
ACTIONS = {"libero_sim": {"x": 1, "yaw": 1, "gripper": 1}, "other_arm": {"joints": 3}}
IDS = {"libero_sim": 2, "other_arm": 0}


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    made.train_from_iterator(["put the cup in the sink", "open the drawer of the cabinet"], trainer)
    words = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    words.chat_template = TEMPLATE
    return words


class PatchProcessor:
    """Text and pictures as the whole processor of the backbone makes them, over the image processor of Pillow."""

    def __init__(self, words: PreTrainedTokenizerFast) -> None:
        self._words, self._images = words, Qwen2VLImageProcessorPil(**PIXELS)
        self.apply_chat_template = words.apply_chat_template

    def __call__(self, text, images, **options):
        pixels = self._images(images=images, return_tensors="pt")
        grids = iter(pixels["image_grid_thw"].tolist())
        found = []
        for row in text:
            parts = row.split("<|image_pad|>")
            counts = [int(np.prod(next(grids))) // 4 for _ in parts[1:]]
            rest = ("<|image_pad|>" * n + part for n, part in zip(counts, parts[1:], strict=True))
            found.append(parts[0] + "".join(rest))
        return {**self._words(found, return_tensors="pt"), **pixels}


def backbone(words: PreTrainedTokenizerFast) -> dict:
    text = {
        "model_type": "qwen3_vl_text", "hidden_size": WIDTH, "intermediate_size": 40, "num_hidden_layers": LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "vocab_size": len(words), "max_position_embeddings": 512, "rope_theta": 5000000, "tie_word_embeddings": True,
        "attention_bias": False, "eos_token_id": words.eos_token_id,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [3, 3, 2], "rope_type": "default"},
    }  # fmt: skip
    vision = {
        "model_type": "qwen3_vl", "depth": 3, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2,
        "in_channels": 3, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": WIDTH,
        "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1], "hidden_act": "gelu_pytorch_tanh",
    }  # fmt: skip
    ids = {f"{name}_token_id": words.convert_tokens_to_ids(f"<|{token}|>") for name, token in
           (("image", "image_pad"), ("video", "video_pad"), ("vision_start", "vision_start"),
            ("vision_end", "vision_end"))}  # fmt: skip
    return {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], **ids,
            "tie_word_embeddings": True, "text_config": text, "vision_config": vision}  # fmt: skip


def modality(keys: dict[str, int], steps: int, actions: bool = False) -> dict:
    kind = {"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None}
    return {
        "delta_indices": list(range(steps)), "modality_keys": list(keys), "sin_cos_embedding_keys": None,
        "mean_std_embedding_keys": None, "action_configs": [kind] * len(keys) if actions else None,
    }  # fmt: skip


def files(words: PreTrainedTokenizerFast) -> dict:
    rng = np.random.default_rng(9)

    def statistics(keys: dict[str, int]) -> dict:
        found = {}
        for name, width in keys.items():
            low, size = rng.normal(size=width), rng.uniform(0.5, 2, width)
            if name == "yaw":
                size = size * 0  # a dimension that never varies
            found[name] = {"min": list(low - 0.2), "max": list(low + size + 0.3), "mean": list(low + size / 2),
                           "std": list(size / 4), "q01": list(low), "q99": list(low + size)}  # fmt: skip
        return found

    video = {name: modality({"observation.images.rgb.head": 1, "observation.images.rgb.wrist": 1}, 1) for name in KEYS}
    kwargs = {
        "modality_configs": {
            name: {"video": video[name], "state": modality(KEYS[name], 1),
                   "action": modality(ACTIONS[name], VALID, actions=True),
                   "language": modality({"annotation.task": 1}, 1)} for name in KEYS
        },
        "image_crop_size": [28, 28], "image_target_size": [EDGE, EDGE], "use_albumentations": True,
        "shortest_image_edge": EDGE, "crop_fraction": 0.9, "letter_box_transform": False, "formalize_language": True,
        "max_state_dim": STATE_WIDTH, "max_action_dim": ACTION_WIDTH, "max_action_horizon": HORIZON,
        "use_percentiles": True, "use_mean_std": False, "clip_outliers": True, "apply_sincos_state_encoding": True,
        "use_relative_action": True, "exclude_state": False, "state_dropout_prob": 0.0, "model_type": "qwen",
        "model_name": "nvidia/Cosmos-Reason2-2B",
    }  # fmt: skip
    config = {
        "architectures": ["Gr00tN1d7"], "model_type": "Gr00tN1d7", "model_name": "nvidia/Cosmos-Reason2-2B",
        "action_horizon": HORIZON, "add_pos_embed": True, "backbone_embedding_dim": WIDTH, "hidden_size": 20,
        "input_embedding_dim": 24, "max_action_dim": ACTION_WIDTH, "max_state_dim": STATE_WIDTH,
        "max_num_embodiments": 4, "max_seq_len": 16, "num_inference_timesteps": 4, "num_timestep_buckets": 1000,
        "select_layer": KEPT, "use_alternate_vl_dit": True, "use_vlln": True, "state_history_length": 1,
        "attend_text_every_n_blocks": 2, "dtype": "float32", "model_dtype": "float32",
        "diffusion_model_cfg": {
            "attention_head_dim": 6, "dropout": 0.2, "final_dropout": True, "interleave_self_attention": True,
            "norm_type": "ada_norm", "num_attention_heads": 4, "num_layers": 6, "output_dim": 20,
            "positional_embeddings": None,
        },
        "vl_self_attention_cfg": {
            "attention_head_dim": 8, "dropout": 0.2, "final_dropout": True, "num_attention_heads": 4, "num_layers": 2,
            "positional_embeddings": None,
        },
    }  # fmt: skip
    return {
        "config.json": config, "embodiment_id.json": IDS,
        "processor_config.json": {"processor_class": "Gr00tN1d7Processor", "processor_kwargs": kwargs},
        "statistics.json": {name: {"state": statistics(KEYS[name]), "action": statistics(ACTIONS[name])}
                            for name in KEYS},
        "vlm/config.json": backbone(words), "vlm/preprocessor_config.json": PIXELS,
    }  # fmt: skip


def network(config: dict, words: PreTrainedTokenizerFast) -> torch.nn.Module:
    given = {key: value for key, value in backbone(words).items() if key not in ("model_type", "architectures")}
    groot_n1_7._cosmos_reason2_qwen3_vl_config = lambda: Qwen3VLConfig(**given)
    torch.manual_seed(13)
    made = groot_n1_7.GR00TN17(groot_n1_7.GR00TN17Config(**config), load_backbone_weights=False).eval().float()
    with torch.no_grad():
        for name, tensor in made.named_parameters():
            if name.endswith("weight") and tensor.ndim == 1:
                tensor.copy_(1 + 0.2 * torch.randn_like(tensor))
            elif tensor.ndim == 1 or name.endswith(".b"):
                tensor.copy_(0.2 * torch.randn_like(tensor))
            else:
                inputs = tensor.shape[1] if name.endswith((".W", "pos_embed.weight")) else tensor[0].numel()
                gain = 0.5 if "norm1.linear" in name else 1.2
                tensor.copy_(torch.randn_like(tensor) * (gain / inputs**0.5))
            tensor.copy_(tensor.bfloat16().float())
    return made


def save(made: torch.nn.Module) -> None:
    parts: list[dict[str, torch.Tensor]] = [{}, {}]
    for name, tensor in made.state_dict().items():
        if not name.endswith("lm_head.weight"):
            parts[name.startswith("action_head.")][name] = tensor.bfloat16().contiguous()
    index = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file(part, HERE / file)
        index |= dict.fromkeys(part, file)
    content = {"metadata": {}, "weight_map": index}
    (HERE / "model.safetensors.index.json").write_text(json.dumps(content, indent=0))


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    (HERE / "vlm").mkdir(parents=True)
    words = tokenizer()
    words.save_pretrained(HERE / "vlm")
    for name, content in files(words).items():
        (HERE / name).write_text(json.dumps(content, indent=1))
    processor_groot._build_n1_7_processor = lambda name: PatchProcessor(words)
    made = network(files(words)["config.json"], words)
    save(made)
    rng = np.random.default_rng(12)
    images = {}
    for name, (height, width) in {"head": (40, 52), "wrist": (40, 52)}.items():
        waves = 128 + 80 * np.sin(np.add.outer(np.arange(height) / 6, np.arange(width) / 4))
        images[name] = np.clip(waves[..., None] + rng.normal(0, 25, (height, width, 3)), 0, 255).astype(np.uint8)
    stored = {f"image_{name}": image for name, image in images.items()}
    cases = {
        "all": ("libero_sim", "Put the cup, in the sink!", 4),
        "steps": ("libero_sim", "open the drawer of the cabinet", 3),
        "other": ("other_arm", "Open the drawer", 4),
    }
    statistics = json.loads((HERE / "statistics.json").read_text())
    for case, (embodiment, task, steps) in cases.items():
        rows = statistics[embodiment]["state"].values()
        low, high = (np.concatenate([row[name] for row in rows]) for name in ("q01", "q99"))
        state = (low + rng.uniform(-0.2, 1.2, low.size) * (high - low)).astype(np.float32)  # some beyond the range
        width = sum(ACTIONS[embodiment].values())
        config = GrootConfig(
            base_model_path=str(HERE), embodiment_tag=embodiment, max_state_dim=STATE_WIDTH,
            max_action_dim=ACTION_WIDTH, chunk_size=VALID, n_action_steps=VALID, device="cpu",
            action_decode_transform="none",
            input_features={"observation.state": PolicyFeature(FeatureType.STATE, (low.size,))},
            output_features={"action": PolicyFeature(FeatureType.ACTION, (width,))},
        )  # fmt: skip
        before, after = make_groot_pre_post_processors(config)
        batch = {"observation.state": torch.from_numpy(state), "task": task}
        for name, image in images.items():
            batch[f"observation.images.rgb.{name}"] = torch.from_numpy(image).permute(2, 0, 1).float() / 255
        given = before(batch)
        noise = rng.standard_normal((HORIZON, ACTION_WIDTH)).astype(np.float32)
        groot_n1_7.torch.randn = lambda size, dtype, device, x=noise: torch.from_numpy(x.copy())[None]
        made.action_head.num_inference_timesteps = steps
        names = ("input_ids", "attention_mask", "pixel_values", "image_grid_thw", "embodiment_id")
        inputs = {name: given[name] for name in names} | {"state": given["observation.state" if "observation.state"
                  in given and "state" not in given else "state"]}  # fmt: skip
        with torch.no_grad():
            found = made.get_action(inputs)["action_pred"]
        actions = after(found[:, :VALID].clone())
        stored |= {
            f"{case}_noise": noise, f"{case}_state": state, f"{case}_ids": given["input_ids"][0].numpy(),
            f"{case}_normalised": found[0, :VALID, :width].numpy(), f"{case}_actions": actions[0].numpy(),
        }  # fmt: skip
    np.savez_compressed(HERE / "reference.npz", **stored)
    texts = {case: {"embodiment": e, "cameras": list(images), "task": task, "steps": steps}
             for case, (e, task, steps) in cases.items()}  # fmt: skip
    (HERE / "reference.json").write_text(json.dumps(texts, indent=1))


main()
