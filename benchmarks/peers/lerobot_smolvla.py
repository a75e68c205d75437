"""lerobot's own SmolVLA on torch, of the same shape, random weights, offline.

``bf16`` has the language model with its tower and the expert in bfloat16 and the small layers around them in float32:
lerobot's loader leaves the former so. Packages that only stand in for others at import are looked for in the folders
of the environment variable EXTRA_PATH, behind all others.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from ..policy_shape import HEIGHT, HORIZON, JOINTS, PADDED, TEXT_TOKENS, VIEWS, WIDTH


class _Tokens:
    fake_image_token_id, global_image_token_id = 1, 2


class _Processor:
    """As much of a processor as the policy asks for."""

    tokenizer = _Tokens()

    @classmethod
    def from_pretrained(cls, name: str) -> _Processor:
        return cls()


class LerobotSmolVLA:
    """``shape`` is a folder with the policy's ``config.json`` and its language model's below ``vlm``."""

    def __init__(self, shape: str, precision: str, *, threads: int) -> None:
        import torch
        from transformers import AutoConfig, AutoProcessor  # noqa: F401  # before any stand-in can be seen

        sys.path.extend(filter(None, os.environ.get("EXTRA_PATH", "").split(os.pathsep)))
        from lerobot.configs.types import FeatureType, PolicyFeature
        from lerobot.policies.smolvla import smolvlm_with_expert
        from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
        from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy

        smolvlm_with_expert.AutoProcessor = _Processor
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self._torch = torch
        content = json.loads((Path(shape) / "config.json").read_text(encoding="utf-8"))
        content.pop("type")
        for group in ("input_features", "output_features"):
            content[group] = {
                name: PolicyFeature(FeatureType(row["type"]), tuple(row["shape"]))
                for name, row in content[group].items()
            }
        content.pop("normalization_mapping")  # lerobot's own default, and no part of what is timed
        content |= {"vlm_model_name": str(Path(shape) / "vlm"), "resize_imgs_with_padding": (512, 512)}
        self._policy = SmolVLAPolicy(SmolVLAConfig(**content, load_vlm_weights=False, device="cpu")).eval()
        if precision == "bf16":
            self._policy.model.vlm_with_expert.to(torch.bfloat16)
        self._batch = {
            "observation.state": torch.zeros(1, JOINTS),
            "observation.language.tokens": torch.arange(TEXT_TOKENS)[None],
            "observation.language.attention_mask": torch.ones(1, TEXT_TOKENS, dtype=torch.bool),
            **{f"observation.images.camera{view}": torch.rand(1, 3, HEIGHT, WIDTH) for view in range(VIEWS)},
        }
        self._noise = torch.randn(1, HORIZON, PADDED)

    def versions(self) -> dict[str, str]:
        """Versions of torch, transformers and lerobot."""
        from importlib import metadata

        return {name: metadata.version(name) for name in ("torch", "transformers", "lerobot")}

    def chunk(self) -> dict[str, float]:
        """Milliseconds of one chunk from pictures in float32 to the network's own numbers."""
        start = time.monotonic()
        with self._torch.inference_mode():
            actions = self._policy.predict_action_chunk(self._batch, noise=self._noise)
        seconds = time.monotonic() - start
        if actions.shape != (1, HORIZON, JOINTS):
            raise RuntimeError(f"lerobot gave a chunk of shape {tuple(actions.shape)}")
        return {"chunk_time": 1e3 * seconds}

    def close(self) -> None:
        """Free the model."""
        del self._policy
