"""Writes ``pi0/`` and ``pi05/``: tiny random policies of lerobot 0.6.1, what they were shown and the chunks they gave.

Run with lerobot 0.6.1, torch and transformers 5.4 to 5.6, offline: ``python make_pi.py``. The library fixes sizes by
the name of a variant; here names stand for tiny ones, and ``vlm/config.json`` says which. Rows of the token table that
no test uses are left out of what is stored. Weights are rounded to bfloat16 before the reference runs.
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
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoProcessor, AutoTokenizer, PaliGemmaConfig, PreTrainedTokenizerFast  # noqa: F401

sys.path.extend(os.environ.get("EXTRA_PATH", "").split(":"))  # stand-ins for packages that do not install

from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.pi0 import modeling_pi0
from lerobot.policies.pi0.configuration_pi0 import PI0Config
from lerobot.policies.pi0.processor_pi0 import make_pi0_pre_post_processors
from lerobot.policies.pi05 import modeling_pi05
from lerobot.policies.pi05.configuration_pi05 import PI05Config
from lerobot.policies.pi05.processor_pi05 import make_pi05_pre_post_processors
from lerobot.processor import tokenizer_processor

HERE = Path(__file__).parent
CAMERAS = ("base", "wrist")
STATE, ACTION, HORIZON, VOCABULARY, SIDE = 4, 5, 6, 340, 32
TEXT = {"width": 32, "depth": 3, "mlp_dim": 40, "num_heads": 4, "num_kv_heads": 1, "head_dim": 8}
EXPERT = {**TEXT, "width": 24, "mlp_dim": 32}
VISION = {"hidden_size": 20, "intermediate_size": 28, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8,
          "image_size": SIDE, "projection_dim": TEXT["width"]}  # fmt: skip


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<pad>", "<eos>", "<bos>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator(["Task: put the cup in the sink, State: 128 255 0;\nAction: ", "open the drawer"], trainer)
    made.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")


def shrink(module) -> None:
    """Make the names of variants stand for tiny sizes, and the image tower small."""
    module.get_gemma_config = lambda name: module.GemmaConfig(**(TEXT if name == "gemma_2b" else EXPERT))
    original = module.PaliGemmaForConditionalGenerationWithPiGemma

    def small(config):
        for key, value in VISION.items():
            setattr(config.vision_config, key, value)
        return original(config=config)

    module.PaliGemmaForConditionalGenerationWithPiGemma = small


def write(kind: str, module, config, processors_of) -> None:
    place = HERE / kind
    shutil.rmtree(place, ignore_errors=True)
    (place / "vlm").mkdir(parents=True)
    words = tokenizer()
    words.save_pretrained(place / "vlm")
    tokenizer_processor.AutoTokenizer = type("Offline", (), {"from_pretrained": staticmethod(lambda name: words)})
    language = {
        "model_type": "paligemma", "architectures": ["PaliGemmaForConditionalGeneration"], "image_token_index": 339,
        "text_config": {
            "model_type": "gemma", "hidden_size": TEXT["width"], "intermediate_size": TEXT["mlp_dim"],
            "num_hidden_layers": TEXT["depth"], "num_attention_heads": TEXT["num_heads"],
            "num_key_value_heads": TEXT["num_kv_heads"], "head_dim": TEXT["head_dim"], "vocab_size": VOCABULARY,
            "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 512,
        },
        "vision_config": {"model_type": "siglip_vision_model", **VISION},
    }  # fmt: skip
    (place / "vlm" / "config.json").write_text(json.dumps(language, indent=1))
    shrink(module)
    torch.manual_seed(31)
    policy = getattr(module, "PI0Policy" if kind == "pi0" else "PI05Policy")(config).eval()
    with torch.no_grad():
        for name, tensor in policy.named_parameters():
            if tensor.ndim > 1:
                gain = 0.3 if ".dense." in name else 1.2
                tensor.copy_(torch.randn_like(tensor) * (gain / tensor.shape[-1] ** 0.5))
            elif "layer_norm" in name and name.endswith("weight"):
                tensor.copy_(1 + 0.2 * torch.randn_like(tensor))
            else:
                tensor.copy_(0.2 * torch.randn_like(tensor))
            tensor.copy_(tensor.bfloat16().float())
        tables = policy.model.paligemma_with_expert.paligemma
        tables.model.language_model.embed_tokens.weight.copy_(tables.lm_head.weight)
    generator = torch.Generator().manual_seed(3)
    statistics = {}
    for name, width in (("observation.state", STATE), ("action", ACTION)):
        low = torch.randn(width, generator=generator)
        statistics[name] = {
            "mean": low, "std": torch.rand(width, generator=generator) + 0.5,
            "q01": low, "q99": low + torch.rand(width, generator=generator) + 0.5,
        }  # fmt: skip
    before, after = processors_of(config, statistics)
    rng = np.random.default_rng(12)
    images = {}
    for name, (height, width) in {"base": (40, 52), "wrist": (36, 20)}.items():
        waves = 128 + 80 * np.sin(np.add.outer(np.arange(height) / 6, np.arange(width) / 4))
        images[name] = np.clip(waves[..., None] + rng.normal(0, 25, (height, width, 3)), 0, 255).astype(np.uint8)
    cases = {
        "all": (CAMERAS, "put the cup in the sink", 5),
        "missing": (("base",), "open the drawer", 5),
        "steps": (CAMERAS, "open_the drawer", 3),
    }
    stored = {f"image_{name}": image for name, image in images.items()}
    for case, (cameras, task, steps) in cases.items():
        noise = rng.standard_normal((HORIZON, config.max_action_dim)).astype(np.float32)
        low, high = statistics["observation.state"]["q01"].numpy(), statistics["observation.state"]["q99"].numpy()
        state = (low + rng.uniform(-0.1, 1.1, STATE) * (high - low)).astype(np.float32)  # some beyond the range
        batch = {"observation.state": torch.from_numpy(state), "task": task}
        for name in cameras:
            batch[f"observation.images.{name}"] = torch.from_numpy(images[name]).permute(2, 0, 1).float() / 255
        policy.config.num_inference_steps = policy.model.config.num_inference_steps = steps
        policy.model.sample_noise = lambda shape, device, given=noise: torch.from_numpy(given.copy())[None]
        actions = policy.predict_action_chunk(before(batch))
        stored |= {
            f"{case}_noise": noise, f"{case}_state": state, f"{case}_normalised": actions[0].numpy(),
            f"{case}_actions": after(actions.clone())[0].numpy(),
        }  # fmt: skip
    policy.config.num_inference_steps = 5
    np.savez_compressed(place / "reference.npz", **stored)
    texts = {case: {"cameras": list(c), "task": task, "steps": steps} for case, (c, task, steps) in cases.items()}
    (place / "reference.json").write_text(json.dumps(texts, indent=1))
    policy.config._save_pretrained(place)
    before.save_pretrained(place)
    after.save_pretrained(place)
    weights = {}
    for name, tensor in policy.state_dict().items():
        if name.endswith(("gemma_expert.lm_head.weight", "language_model.embed_tokens.weight")):
            continue  # published checkpoints have the token table under the name of the head alone
        weights[name] = (tensor[:VOCABULARY] if name.endswith("lm_head.weight") else tensor).bfloat16().contiguous()
    save_file(weights, place / "model.safetensors")


def main() -> None:
    features = {
        "input_features": {
            "observation.state": PolicyFeature(FeatureType.STATE, (STATE,)),
            **{f"observation.images.{name}": PolicyFeature(FeatureType.VISUAL, (3, 40, 52)) for name in CAMERAS},
        },
        "output_features": {"action": PolicyFeature(FeatureType.ACTION, (ACTION,))},
    }
    common = {
        "chunk_size": HORIZON, "n_action_steps": 4, "max_state_dim": 6, "max_action_dim": 7, "num_inference_steps": 5,
        "image_resolution": (SIDE, SIDE), "tokenizer_max_length": 60, "device": "cpu",
    }  # fmt: skip
    write("pi0", modeling_pi0, PI0Config(**common, **features), make_pi0_pre_post_processors)
    write("pi05", modeling_pi05, PI05Config(**common, **features), make_pi05_pre_post_processors)


main()
