"""Engine directories to measure: the shapes of published models with random weights, and SmolLM2 with its own."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgellm_ros.engine_format import BuilderLimits

CAPACITY = 1024
SEED = 11


@dataclass(frozen=True)
class Shape:
    """One model shape; ``layers`` 0 keeps the published number of layers."""

    name: str
    config: Mapping[str, Any]
    layers: int = 0

    @property
    def full_config(self) -> dict[str, Any]:
        """Content of ``config.json``."""
        config = dict(self.config)
        if self.layers:
            config["num_hidden_layers"] = self.layers
        return config


def _llama(hidden: int, inner: int, layers: int, heads: int, kv_heads: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "vocab_size": 49152, "rms_norm_eps": 1e-5, "rope_theta": 100000.0,
        "max_position_embeddings": 8192, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("SmolLM2-135M", _llama(576, 1536, 30, 9, 3)),
        Shape("SmolLM2-360M", _llama(960, 2560, 32, 15, 5)),
        Shape(
            "Qwen2.5-1.5B",
            {
                "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
                "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
                "num_key_value_heads": 2, "vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
                "max_position_embeddings": 32768, "tie_word_embeddings": True, "bos_token_id": 151643,
                "eos_token_id": 151645, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 21,
            },
        ),
        Shape("SmolLM2-135M, 4 layers", _llama(576, 1536, 30, 9, 3), 4),
        Shape("tiny", {**_llama(128, 256, 2, 4, 2), "vocab_size": 512}),
    )
}  # fmt: skip


def build_shape(
    name: str, folder: Path, *, precision: str, lowering: str, max_batch: int = 1, capacity: int = CAPACITY
) -> Path:
    """An engine directory of random weights, made where it is not there yet."""
    shape = SHAPES[name]
    label = name.replace(" ", "").replace(",", "-")
    output = folder / f"{label}-{lowering}-{precision}-b{max_batch}-c{capacity}"
    if output.is_dir():
        return output
    config = folder / f"{label}.json"
    folder.mkdir(parents=True, exist_ok=True)
    config.write_text(json.dumps(shape.full_config), encoding="utf-8")
    from edgellm_ros.builder.build import build_engine  # needs onnx, which a machine that only runs may lack

    start = time.monotonic()
    limits = BuilderLimits(max_batch, min(512, capacity), capacity)
    build_engine(config, output, precision=precision, limits=limits, lowering=lowering, random_seed=SEED)
    print(f"built {output.name} in {time.monotonic() - start:.1f} s", flush=True)
    return output


def build_smollm2(gguf: Path, folder: Path, *, precision: str, lowering: str) -> Path:
    """SmolLM2-135M-Instruct with its own weights, from the GGUF file."""
    from edgellm_ros.builder.build import build_engine

    output = folder / f"smollm2-{lowering}-{precision}"
    start = time.monotonic()
    build_engine(gguf, output, precision=precision, limits=BuilderLimits(1, 512, CAPACITY), lowering=lowering)
    print(f"{output.name} stands after {time.monotonic() - start:.1f} s", flush=True)
    return output
