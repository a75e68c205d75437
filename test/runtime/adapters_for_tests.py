"""PEFT folders of random adapters, and checkpoints with such an adapter merged in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from edgellm_ros.adapter_format import AdapterFormat

PREFIX = "base_model.model."


def everything(module: str) -> bool:
    return True


def write_adapter(
    path: Path,
    form: AdapterFormat,
    rank: int,
    seed: int,
    *,
    targets: Callable[[str], bool] = everything,
    extra: dict[str, np.ndarray] | None = None,
    **config: Any,
) -> Path:
    """A folder as PEFT saves it, of weights large enough to change every answer."""
    random = np.random.default_rng(seed)
    tensors = dict(extra or {})
    for stack in form.stacks:
        for target in stack.targets:
            if targets(target.module):
                for side, shape in (("A", (rank, stack.columns)), ("B", (target.rows, rank))):
                    values = random.normal(0.0, 0.3, shape).astype(np.float32)
                    tensors[f"{PREFIX}{target.module}.lora_{side}.weight"] = values
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none", "target_modules": ["q_proj"]}
    (path / "adapter_config.json").write_text(json.dumps({**settings, **config}))
    return path


def merged(tensors: dict[str, np.ndarray], adapter: Path) -> dict[str, np.ndarray]:
    """The weights of a checkpoint plus what an adapter adds to them."""
    from safetensors.numpy import load_file

    config = json.loads((adapter / "adapter_config.json").read_text())
    scaling = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    weights = load_file(adapter / "adapter_model.safetensors")
    result = dict(tensors)
    for name, down in weights.items():
        if name.endswith("lora_A.weight"):
            module = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
            up = weights[name.replace("lora_A", "lora_B")]
            result[f"{module}.weight"] = (tensors[f"{module}.weight"] + scaling * (up @ down)).astype(np.float32)
    return result
