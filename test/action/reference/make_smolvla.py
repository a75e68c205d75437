"""Writes ``smolvla/``: a tiny random SmolVLA of lerobot 0.6.1, what it was shown and the chunks that it gave.

Run with lerobot 0.6.1, torch and transformers 5.4 to 5.6, offline: ``python make_smolvla.py``. The weights are rounded
to bfloat16 before the reference runs, so the stored ones are exactly those that made the chunks.
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
from transformers import AutoConfig, AutoProcessor, PreTrainedTokenizerFast, SmolVLMConfig  # noqa: F401

sys.path.extend(os.environ.get("EXTRA_PATH", "").split(":"))  # stand-ins for packages that do not install

from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.smolvla import smolvlm_with_expert
from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
from lerobot.policies.smolvla.processor_smolvla import make_smolvla_pre_post_processors

PLACE = Path(__file__).parent / "smolvla"
CAMERAS = ("top", "wrist", "side")
STATE, ACTION, HORIZON = 5, 4, 7
DROPPED = [0, 2, 3, 5, 9, 10]  # of the twelve image tokens; no camera loses all


class Tokens:
    """As much of a processor as the policy asks for."""

    fake_image_token_id, global_image_token_id = 1, 2


class Processor:
    tokenizer = Tokens()


def write_language_model(folder: Path) -> None:
    folder.mkdir(parents=True)
    config = SmolVLMConfig(
        text_config={
            "model_type": "llama", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 5,
            "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 300, "rms_norm_eps": 1e-5,
            "rope_theta": 100000.0, "max_position_embeddings": 512,
        },
        vision_config={
            "model_type": "smolvlm_vision", "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
            "num_attention_heads": 3, "image_size": 48, "patch_size": 8,
        },
        scale_factor=3, image_token_id=3, pad_token_id=0,
    )  # fmt: skip
    config.architectures = ["SmolVLMForConditionalGeneration"]
    config.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<pad>", "<fake>", "<global>", "<image>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(
        ["put the red cube on the blue disc", "touch the ring", "push the cube left"], trainer
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>").save_pretrained(folder)


def leave_out(policy: SmolVLAPolicy, dropped: list[int]) -> None:
    """From now on nobody attends to these image tokens; every other token keeps its position."""
    model = policy.model
    embed, forward = model.embed_prefix, model.vlm_with_expert.forward
    whole = torch.empty(0)

    def embed_prefix(*values, **named):
        nonlocal whole
        embeds, pad, attend = embed(*values, **named)
        whole, pad = pad, pad.clone()
        pad[:, dropped] = False
        return embeds, pad, attend

    def run(position_ids, past_key_values, **named):
        moved = position_ids + len(dropped) if past_key_values is not None else torch.cumsum(whole, dim=1) - 1
        return forward(position_ids=moved, past_key_values=past_key_values, **named)

    model.embed_prefix, model.vlm_with_expert.forward = embed_prefix, run


def main() -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    write_language_model(PLACE / "vlm")
    smolvlm_with_expert.AutoProcessor = type("Offline", (), {"from_pretrained": staticmethod(lambda name: Processor())})
    torch.manual_seed(20)
    visual = {f"observation.images.{name}": PolicyFeature(FeatureType.VISUAL, (3, 40, 64)) for name in CAMERAS}
    config = SmolVLAConfig(
        input_features={"observation.state": PolicyFeature(FeatureType.STATE, (STATE,)), **visual},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTION,))},
        chunk_size=HORIZON, n_action_steps=5, max_state_dim=9, max_action_dim=8, resize_imgs_with_padding=(48, 48),
        empty_cameras=1, tokenizer_max_length=24, num_steps=4, vlm_model_name=str(PLACE / "vlm"),
        load_vlm_weights=False,
        num_vlm_layers=4, num_expert_layers=0, expert_width_multiplier=0.75, self_attn_every_n_layers=2,
        pad_language_to="max_length", device="cpu",
    )  # fmt: skip
    policy = SmolVLAPolicy(config).eval()
    with torch.no_grad():
        for name, tensor in policy.named_parameters():
            if tensor.ndim > 1:
                tensor.copy_(torch.randn_like(tensor) * (1.3 / tensor.shape[-1] ** 0.5))
            elif "norm" in name:
                tensor.copy_(1 + 0.2 * torch.randn_like(tensor))
            else:
                tensor.copy_(0.2 * torch.randn_like(tensor))
            tensor.copy_(tensor.bfloat16().float())
    generator = torch.Generator().manual_seed(3)
    statistics = {
        "observation.state": {
            "mean": torch.randn(STATE, generator=generator), "std": torch.rand(STATE, generator=generator) + 0.5
        },
        "action": {
            "mean": torch.randn(ACTION, generator=generator), "std": torch.rand(ACTION, generator=generator) + 0.5
        },
    }  # fmt: skip
    before, after = make_smolvla_pre_post_processors(config, statistics)

    rng = np.random.default_rng(11)
    shapes = {"top": (40, 64), "wrist": (48, 36), "side": (31, 31)}
    images = {}
    for name, (height, width) in shapes.items():
        waves = 128 + 90 * np.sin(np.add.outer(np.arange(height) / 7, np.arange(width) / 5))
        noisy = waves[..., None] + rng.normal(0, 20, (height, width, 3))
        images[name] = np.clip(noisy, 0, 255).astype(np.uint8)
    cases = {
        "all": (CAMERAS, "put the red cube on the blue disc", 4),
        "missing": (("top", "wrist"), "touch the ring", 4),
        "steps": (CAMERAS, "push the cube left", 9),
        "long": (CAMERAS, "put the red cube on the blue disc and then push it to the ring and touch the cube again", 1),
    }
    stored = {f"image_{name}": image for name, image in images.items()}
    texts = {}
    for case, (cameras, task, steps) in cases.items():
        noise = rng.standard_normal((HORIZON, config.max_action_dim)).astype(np.float32)
        state = rng.normal(0, 1, STATE).astype(np.float32)
        batch = {"observation.state": torch.from_numpy(state), "task": task}
        for name in cameras:
            batch[f"observation.images.{name}"] = torch.from_numpy(images[name]).permute(2, 0, 1).float() / 255
        policy.config.num_steps = policy.model.config.num_steps = steps
        actions = policy.predict_action_chunk(before(batch), noise=torch.from_numpy(noise)[None])
        stored |= {
            f"{case}_noise": noise, f"{case}_state": state, f"{case}_normalised": actions[0].numpy(),
            f"{case}_actions": after(actions.clone())[0].numpy(),
        }  # fmt: skip
        texts[case] = {"cameras": list(cameras), "task": task, "steps": steps}
    policy.config.num_steps = 4
    policy.model.config.num_steps = 4
    leave_out(policy, DROPPED)
    noise = rng.standard_normal((HORIZON, config.max_action_dim)).astype(np.float32)
    state = rng.normal(0, 1, STATE).astype(np.float32)
    batch = {"observation.state": torch.from_numpy(state), "task": "touch the ring"}
    for name in CAMERAS:
        batch[f"observation.images.{name}"] = torch.from_numpy(images[name]).permute(2, 0, 1).float() / 255
    actions = policy.predict_action_chunk(before(batch), noise=torch.from_numpy(noise)[None])
    stored |= {
        "pruned_noise": noise, "pruned_state": state, "pruned_normalised": actions[0].numpy(),
        "pruned_actions": after(actions.clone())[0].numpy(), "pruned_dropped": np.array(DROPPED),
    }  # fmt: skip
    np.savez_compressed(PLACE / "reference.npz", **stored)
    (PLACE / "reference.json").write_text(json.dumps(texts, indent=1))
    policy.config.vlm_model_name = "tiny"
    policy.config._save_pretrained(PLACE)
    before.save_pretrained(PLACE)
    after.save_pretrained(PLACE)
    weights = {name: tensor.bfloat16().contiguous() for name, tensor in policy.state_dict().items()}
    save_file(weights, PLACE / "model.safetensors")
    for file in PLACE.glob("*.json"):
        file.write_text(file.read_text().replace(str(PLACE / "vlm"), "tiny"))


main()
