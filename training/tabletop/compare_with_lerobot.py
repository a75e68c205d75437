"""Compare this model with lerobot's own SmolVLA code and with transformers' SmolVLM, on a written checkpoint.

    python -m training.tabletop.compare_with_lerobot CHECKPOINT LEROBOT

LEROBOT is the folder ``lerobot`` of an unpacked lerobot 0.6 wheel. Only four of its files are read; what they import of
the rest of lerobot is stood in for here, so that none of its dependencies but torch and transformers are needed.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import DynamicCache, SmolVLMConfig, SmolVLMForConditionalGeneration

from training.tabletop.model import SmolVla
from training.tabletop.sizes import Sizes
from training.tabletop.text import IMAGE, Codec

TOLERANCE = 1e-4


def stand_in(name: str, **values: Any) -> None:
    """A module of lerobot with just these names."""
    module = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(values)
    sys.modules[name] = module


def load_module(root: Path, name: str) -> Any:
    """A file of lerobot as the module of its own name."""
    path = root.joinpath(*name.split(".")[1:]).with_suffix(".py")
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def lerobot_policy(root: Path, config: dict[str, Any], vlm: SmolVLMConfig, codec: Codec) -> Any:
    """The class VLAFlowMatching of lerobot for this configuration, without weights."""
    for name in ("", ".utils", ".policies", ".policies.common", ".policies.smolvla", ".policies.rtc"):
        stand_in(f"lerobot{name}")
    stand_in("lerobot.utils.import_utils", _transformers_available=True, require_package=lambda *_, **__: None)
    names = ("ACTION", "OBS_LANGUAGE_ATTENTION_MASK", "OBS_LANGUAGE_TOKENS", "OBS_STATE")
    stand_in("lerobot.utils.constants", OPENPI_ATTENTION_MASK_VALUE=-1e9, **{name: name for name in names})
    stand_in("lerobot.utils.device_utils", get_safe_dtype=lambda dtype, _: dtype)
    stand_in("lerobot.policies.pretrained", PreTrainedPolicy=object)
    stand_in("lerobot.policies.rtc.modeling_rtc", RTCProcessor=object)
    stand_in("lerobot.policies.utils", populate_queues=None)
    stand_in("lerobot.policies.smolvla.configuration_smolvla", SmolVLAConfig=object)
    for name in ("flow_matching", "vla_utils"):
        load_module(root, f"lerobot.policies.common.{name}")
    expert = load_module(root, "lerobot.policies.smolvla.smolvlm_with_expert")
    policy = load_module(root, "lerobot.policies.smolvla.modeling_smolvla")
    ids = types.SimpleNamespace(
        fake_image_token_id=codec.ids["<fake_token_around_image>"], global_image_token_id=codec.ids["<global-img>"]
    )
    expert.AutoConfig = types.SimpleNamespace(from_pretrained=lambda _: vlm)
    expert.AutoProcessor = types.SimpleNamespace(from_pretrained=lambda _: types.SimpleNamespace(tokenizer=ids))
    DynamicCache.crop = crop  # newer versions of transformers take only negative numbers
    return policy.VLAFlowMatching(types.SimpleNamespace(**config, compile_model=False)).float().eval()


def crop(cache: DynamicCache, length: int) -> None:
    """Keep the first ``length`` tokens."""
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, :length], layer.values[:, :, :length]


@torch.no_grad()
def main(checkpoint: Path, root: Path) -> int:
    sizes, codec = Sizes(), Codec(checkpoint / "vlm", Sizes().image_tokens)
    weights = {name: value.float() for name, value in load_file(checkpoint / "model.safetensors").items()}
    ours = SmolVla(sizes).eval()
    ours.load_state_dict(weights)
    vlm_config = SmolVLMConfig(**json.loads((checkpoint / "vlm" / "config.json").read_text()))
    theirs = lerobot_policy(root, json.loads((checkpoint / "config.json").read_text()), vlm_config, codec)
    theirs.load_state_dict({name.removeprefix("model."): value for name, value in weights.items()})
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(2, 2, 3, sizes.image, sizes.image, generator=generator) * 2.0 - 1.0
    task = torch.tensor([codec.task("touch the red cube") + (0,) * 4, codec.task("put the red cube on the blue ring")])
    mask = torch.arange(task.shape[1])[None] < torch.tensor([[5], [9]])
    state, noise = (torch.randn(shape, generator=generator) for shape in ((2, 4), (2, sizes.horizon, sizes.action)))
    seen = [torch.ones(2, dtype=torch.bool)] * 2
    chunk = theirs.sample_actions([pixels[:, 0], pixels[:, 1]], seen, task, mask, state, noise=noise)
    acting = (ours.act(pixels, task, mask, state, noise, 10) - chunk).abs().max().item()
    vlm = SmolVLMForConditionalGeneration(vlm_config).float().eval()
    root_name = "model.vlm_with_expert.vlm."
    vlm.load_state_dict({name.removeprefix(root_name): v for name, v in weights.items() if name.startswith(root_name)})
    ids = torch.tensor([codec.dialogue("what is on the table?", None)[0]])
    logits = vlm(input_ids=ids, pixel_values=pixels[:1], attention_mask=torch.ones_like(ids)).logits
    images = ours.image_tokens(ours.patches(pixels[:1]))
    answering = (ours.logits(images, ids, codec.ids[IMAGE]) - logits).abs().max().item()
    print(f"chunks differ by {acting:.1e} at most (scale {chunk.abs().max():.1f})")
    print(f"logits differ by {answering:.1e} at most (scale {logits.abs().max():.1f})")
    return int(max(acting, answering) > TOLERANCE)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2])))
