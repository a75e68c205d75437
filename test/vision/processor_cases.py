"""Image processors of published checkpoints, and small relatives of them, with the pictures each is tried on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

HALF = [0.5, 0.5, 0.5]
CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SAMPLES = 4096  # of the values that one case compares with the reference


@dataclass(frozen=True)
class Case:
    """``reference``: the class of transformers; ``image``: its settings; ``sizes``: height and width of pictures."""

    name: str
    reference: str
    config: dict[str, Any]
    image: dict[str, Any]
    sizes: tuple[tuple[int, int], ...]
    processor: dict[str, Any] = field(default_factory=dict)


def _smolvlm(tile: int, longest: int, split: bool = True, resample: int = 1) -> dict[str, Any]:
    return {
        "do_image_splitting": split,
        "image_mean": HALF,
        "image_std": HALF,
        "max_image_size": {"longest_edge": tile},
        "resample": resample,
        "rescale_factor": 0.00392156862745098,
        "size": {"longest_edge": longest},
    }


def _qwen(patch: int, mean: list[float], std: list[float], **limits: Any) -> dict[str, Any]:
    sizes = {"patch_size": patch, "temporal_patch_size": 2, "merge_size": 2}
    return {**sizes, "image_mean": mean, "image_std": std, **limits}


_TEN = ((30, 40), (64, 64), (23, 91), (97, 31), (5, 7), (128, 96))

CASES = (
    Case("smolvlm-published", "SmolVLM", {"model_type": "smolvlm"}, _smolvlm(512, 2048), ((480, 640), (720, 1280)),
         {"image_seq_len": 64}),
    Case("smolvlm-single", "SmolVLM", {"model_type": "smolvlm"}, _smolvlm(512, 2048, split=False),
         ((480, 640), (300, 200)), {"image_seq_len": 64}),
    Case("smolvlm-small", "SmolVLM", {"model_type": "smolvlm"}, _smolvlm(32, 96), _TEN, {"image_seq_len": 4}),
    Case("smolvlm-one-tile", "SmolVLM", {"model_type": "smolvlm"}, _smolvlm(32, 32), _TEN, {"image_seq_len": 4}),
    Case("idefics3-bicubic", "Idefics3",
         {"model_type": "idefics3", "scale_factor": 2, "vision_config": {"image_size": 28, "patch_size": 7}},
         _smolvlm(28, 100, resample=3), _TEN),
    Case("qwen2-vl", "Qwen2VL", {"model_type": "qwen2_vl"},
         _qwen(14, CLIP_MEAN, CLIP_STD, min_pixels=3136, max_pixels=12845056),
         ((30, 40), (480, 640), (200, 33), (9, 1000))),
    Case("qwen2.5-vl-limited", "Qwen2VL", {"model_type": "qwen2_5_vl"},
         _qwen(14, CLIP_MEAN, CLIP_STD, min_pixels=3136, max_pixels=50176), ((480, 640), (540, 960), (56, 56))),
    Case("qwen3-vl", "Qwen2VL", {"model_type": "qwen3_vl"},
         _qwen(16, HALF, HALF, size={"shortest_edge": 65536, "longest_edge": 16777216}), ((100, 80), (480, 640))),
    Case("qwen3-vl-small", "Qwen2VL", {"model_type": "qwen3_vl"},
         _qwen(4, HALF, HALF, size={"shortest_edge": 256, "longest_edge": 2048}), _TEN),
    Case("internvl3", "GotOcr2",
         {"model_type": "internvl_chat", "min_dynamic_patch": 1, "max_dynamic_patch": 12, "downsample_ratio": 0.5,
          "vision_config": {"patch_size": 14}},
         {"image_mean": IMAGENET_MEAN, "image_std": IMAGENET_STD, "resample": 3, "size": 448},
         ((480, 640), (720, 1280))),
    Case("internvl3-small", "GotOcr2",
         {"model_type": "internvl", "downsample_ratio": 0.5, "vision_config": {"patch_size": [7, 7]}},
         {"image_mean": IMAGENET_MEAN, "image_std": IMAGENET_STD, "resample": 3, "size": {"height": 28, "width": 28},
          "min_patches": 1, "max_patches": 6}, _TEN),
    Case("paligemma", "Siglip", {"model_type": "paligemma"},
         {"image_mean": HALF, "image_std": HALF, "resample": 3, "size": {"height": 224, "width": 224},
          "image_seq_length": 256}, ((480, 640), (100, 100), (224, 224))),
    Case("siglip-bilinear", "Siglip", {"model_type": "paligemma", "vision_config": {"patch_size": 8}},
         {"image_mean": HALF, "image_std": HALF, "resample": 2, "size": {"height": 48, "width": 64}}, _TEN),
)  # fmt: skip

# name of a case whose processor takes videos, their limits, and frames, height and width of some
_FRAMES = (
    (2, 30, 40),
    (3, 64, 64),
    (5, 97, 31),
    (7, 200, 150),
    (8, 128, 96),
    (4, 5, 7),
    (6, 9, 90),
    (2, 5, 150),
    (16, 60, 80),
)
VIDEOS = (
    ("qwen2.5-vl-limited", {"min_pixels": 4 * 784, "max_pixels": 12 * 784}, _FRAMES),
    ("qwen3-vl-small", {"size": {"shortest_edge": 1024, "longest_edge": 16384}}, _FRAMES),
)

# name, config.json of the policy, height and width of the result, whether padding is on both sides, pictures
LETTERBOXES = (
    ("smolvla", {"type": "smolvla", "resize_imgs_with_padding": [512, 384]}, (384, 512), False,
     ((480, 640), (300, 100), (384, 512), (50, 400))),
    ("pi0", {"type": "pi0", "image_resolution": [224, 224]}, (224, 224), True,
     ((480, 640), (300, 101), (224, 224), (51, 400))),
)  # fmt: skip
