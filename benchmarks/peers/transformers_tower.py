"""The image tower of SmolVLM in transformers on torch: random weights, eager or with torch's own attention."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any


class TransformersTower:
    """``config`` is a config.json of SmolVLM or Idefics3; ``precision`` is fp32 or bf16."""

    def __init__(self, config: Mapping[str, Any], *, threads: int, precision: str = "fp32") -> None:
        import torch
        from transformers import Idefics3Config, Idefics3Model

        torch.set_num_threads(threads)
        text = {**config["text_config"], "num_hidden_layers": 1}
        settings = Idefics3Config(**{**config, "text_config": text})
        self._torch = torch
        self._dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
        torch.manual_seed(0)
        self._model = Idefics3Model(settings).eval().to(self._dtype)
        self._side = config["vision_config"]["image_size"]

    def versions(self) -> dict[str, str]:
        """Versions of torch and transformers."""
        import transformers

        return {"torch": self._torch.__version__, "transformers": transformers.__version__}

    def tower(self) -> dict[str, float]:
        """Milliseconds from pixel values of one tile to its rows for the language model."""
        torch = self._torch
        pixels = torch.randn(1, 1, 3, self._side, self._side, dtype=self._dtype)
        mask = torch.ones(1, 1, self._side, self._side, dtype=torch.bool)
        with torch.inference_mode():
            start = time.monotonic()
            self._model.get_image_features(pixels, mask)
            return {"tower_time": 1e3 * (time.monotonic() - start)}

    def close(self) -> None:
        """Free the model."""
        del self._model
