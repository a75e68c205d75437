"""Our own engine of the harness, with guides and adapters: what they cost beside plain decoding in the same round."""

from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from .grammars import SCHEMA
from .ours import Runtime

ADAPTER = "adapter"


class ShapedRuntime(Runtime):
    """One engine directory; with room for adapters where ``adapter_decode`` is asked."""

    def guided_decode(self, prompt_tokens: int, tokens: int) -> dict[str, float]:
        """Greedy decoding of JSON by a schema, against free decoding before and after it."""
        from edgellm_ros.runtime.guide_grammar import Guide

        free = self._timed(prompt_tokens, tokens)
        guided = self._timed(prompt_tokens, tokens, guided_decoding=Guide.json_schema(SCHEMA), ignore_eos=False)
        again = self._timed(prompt_tokens, tokens)
        plain = [(one + other) / 2 for one, other in zip(free, again, strict=True)]
        return {
            "guided_cost": 100 * (guided[0] / plain[0] - 1),
            "guide_time": 1e6 * (guided[1] - plain[1]),
            "guided_decode_rate": 1 / guided[0],
        }

    def adapter_decode(self, prompt_tokens: int, tokens: int, rank: int, targets: list[str]) -> dict[str, float]:
        """Decoding with an adapter on some projections, against the same engine without one, before and after it."""
        if not self._runtime.rank.adapters.names:
            with TemporaryDirectory() as folder:
                self._runtime.rank.load_lora_weights(ADAPTER, self._write_adapter(Path(folder), rank, tuple(targets)))
        free = self._timed(prompt_tokens, tokens)
        used = self._timed(prompt_tokens, tokens, lora_weights_name=ADAPTER)
        again = self._timed(prompt_tokens, tokens)
        plain = (free[0] + again[0]) / 2
        return {"adapter_cost": 100 * (used[0] / plain - 1), "adapter_decode_rate": 1 / used[0]}

    def _timed(self, prompt_tokens: int, tokens: int, **fields: Any) -> tuple[float, float]:
        """Seconds of a step, and those of them that are outside ONNX Runtime."""
        request = self._greedy(prompt_tokens, tokens)
        request.requests = [dataclasses.replace(request.requests[0], **fields)]
        self._spans.clear()
        times = self._run(request)
        seconds = times.last_token - times.first_token
        inside = sum(end - start for start, end in self._spans if start >= times.first_token)
        return seconds / (tokens - 1), (seconds - inside) / (tokens - 1)

    def _write_adapter(self, folder: Path, rank: int, targets: tuple[str, ...]) -> Path:
        """Small random weights for the projections whose names end so."""
        random, tensors = np.random.default_rng(0), {}
        form = self._runtime.rank.executor.adapters.form  # type: ignore[union-attr]  # built with room
        for stack in form.stacks:
            for target in (target for target in stack.targets if target.module.endswith(targets)):
                for side, shape in (("A", (rank, stack.columns)), ("B", (target.rows, rank))):
                    tensors[f"{target.module}.lora_{side}.weight"] = random.normal(0, 1e-3, shape).astype("<f4")
        header, offset = {}, 0
        for name, values in tensors.items():
            place = [offset, offset := offset + values.nbytes]
            header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": place}
        text = json.dumps(header).encode()
        content = b"".join([struct.pack("<Q", len(text)), text, *(values.tobytes() for values in tensors.values())])
        (folder / "adapter_model.safetensors").write_bytes(content)
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))
        return folder
