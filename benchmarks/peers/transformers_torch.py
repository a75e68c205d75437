"""Transformers on torch, float32, eager, with its own cache and a plain greedy loop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ..prompts import prompt_ids
from .gguf_llama import load_transformers


class TransformersTorch:
    """A ``LlamaForCausalLM`` with the weights of a GGUF file, dequantised."""

    def __init__(self, model: str, *, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._torch = torch
        self._model = load_transformers(Path(model))
        self._variant = 0

    def versions(self) -> dict[str, str]:
        """Versions of torch and transformers."""
        import transformers

        return {"torch": self._torch.__version__, "transformers": transformers.__version__}

    def decode(self, prompt_tokens: int, tokens: int) -> dict[str, float]:
        """Greedy decoding of ``tokens`` after a prompt."""
        with self._torch.inference_mode():
            token, cache = self._prompt(prompt_tokens)
            start = time.monotonic()
            for _ in range(tokens - 1):
                token, cache = self._step([token], cache)
            return {"decode_rate": (tokens - 1) / (time.monotonic() - start)}

    def prefill(self, prompt_tokens: int) -> dict[str, float]:
        """Rate from the start of the prompt to its first token."""
        with self._torch.inference_mode():
            start = time.monotonic()
            self._prompt(prompt_tokens)
            return {"prefill_rate": prompt_tokens / (time.monotonic() - start)}

    def close(self) -> None:
        """Free the model."""
        del self._model

    def _prompt(self, prompt_tokens: int) -> tuple[int, Any]:
        self._variant += 1
        return self._step(prompt_ids(prompt_tokens, self._variant), None)

    def _step(self, ids: list[int], cache: Any) -> tuple[int, Any]:
        output = self._model(
            input_ids=self._torch.tensor([ids]), past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        return int(output.logits[0, -1].argmax()), output.past_key_values
