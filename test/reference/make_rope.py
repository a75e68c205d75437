"""Write rope.json: inverse frequencies that transformers gives for published configurations.

    PYTHONPATH=. python test/reference/make_rope.py CONFIG_FOLDER      (needs torch, transformers)

CONFIG_FOLDER holds one folder per model with its ``config.json``. Only the numbers that decide the frequencies and
the frequencies themselves are recorded. No published text model of the set uses YaRN, so the recipe that Qwen
documents (factor 4 over 32,768 positions) is laid over real configurations.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from reference_files import HERE, write
from transformers.models.gemma2.modeling_gemma2 import Gemma2RotaryEmbedding
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding
from transformers.models.smollm3.modeling_smollm3 import SmolLM3RotaryEmbedding

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LINEAR = {"rope_type": "linear", "factor": 2.5}

# name -> (folder, section, class of configuration, rotary embedding, scaling laid over the file's)
MODELS: dict[str, tuple[str, str, Any, Any, dict[str, Any] | None]] = {
    "SmolLM2-135M": ("HuggingFaceTB__SmolLM2-135M", "", transformers.LlamaConfig, LlamaRotaryEmbedding, None),
    "Llama-3.1-8B": ("meta-llama__Llama-3.1-8B", "", transformers.LlamaConfig, LlamaRotaryEmbedding, None),
    "Llama-3.2-1B": ("meta-llama__Llama-3.2-1B-Instruct", "", transformers.LlamaConfig, LlamaRotaryEmbedding, None),
    "Llama-3.2-3B": ("meta-llama__Llama-3.2-3B__shard-copy", "", transformers.LlamaConfig, LlamaRotaryEmbedding, None),
    "SmolLM3-3B": ("HuggingFaceTB__SmolLM3-3B", "", transformers.SmolLM3Config, SmolLM3RotaryEmbedding, None),
    "Qwen2.5-0.5B": ("Qwen__Qwen2.5-0.5B-Instruct", "", transformers.Qwen2Config, Qwen2RotaryEmbedding, None),
    "Qwen2.5-7B, YaRN": ("Qwen__Qwen2.5-7B-Instruct", "", transformers.Qwen2Config, Qwen2RotaryEmbedding, YARN),
    "Qwen3-0.6B": ("Qwen__Qwen3-0.6B", "", transformers.Qwen3Config, Qwen3RotaryEmbedding, None),
    "Qwen3-8B, YaRN": ("Qwen__Qwen3-8B", "", transformers.Qwen3Config, Qwen3RotaryEmbedding, YARN),
    "Gemma-2-2B": ("google__gemma-2-2b-it", "", transformers.Gemma2Config, Gemma2RotaryEmbedding, None),
    "Gemma-3-270M": ("google__gemma-3-270m-it", "", transformers.Gemma3TextConfig, Gemma3RotaryEmbedding, None),
    "Gemma-3-1B": ("google__gemma-3-1b-it", "", transformers.Gemma3TextConfig, Gemma3RotaryEmbedding, None),
    "Gemma-3-4B": ("google__gemma-3-4b-it", "text_config", transformers.Gemma3TextConfig, Gemma3RotaryEmbedding, None),
    "SmolLM-1.7B, linear": ("HuggingFaceTB__SmolLM-1.7B", "", transformers.LlamaConfig, LlamaRotaryEmbedding, LINEAR),
}
KEYS = (
    "model_type", "hidden_size", "num_attention_heads", "head_dim", "max_position_embeddings", "rope_theta",
    "rope_local_base_freq", "rope_scaling", "rope_parameters", "partial_rotary_factor",
)  # fmt: skip


def embeddings(config: Any, rotary: Any) -> dict[str, dict[str, Any]]:
    """By rope kind: base and scaling as the configuration class resolves them, frequencies and scale.

    A model with one kind calls it ``default``.
    """
    module = rotary(config)
    kinds = sorted(set(config.layer_types)) if isinstance(module, Gemma3RotaryEmbedding) else [""]
    result = {}
    for kind in kinds:
        parameters = dict(config.rope_parameters[kind] if kind else config.rope_parameters)
        prefix = f"{kind}_" if kind else ""
        frequencies = getattr(module, f"{prefix}inv_freq")
        result[kind or "default"] = {
            "rope_theta": parameters.pop("rope_theta"),
            "rope_scaling": parameters,
            "inverse_frequency": [float(f"{value:.9g}") for value in frequencies.to(torch.float64).tolist()],
            "scale": float(getattr(module, f"{prefix}attention_scaling")),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configurations", type=Path)
    parser.add_argument("--output", type=Path, default=HERE)
    arguments = parser.parse_args()
    models = []
    for name, (folder, section, config_class, rotary, scaling) in MODELS.items():
        content = json.loads((arguments.configurations / folder / "config.json").read_text(encoding="utf-8"))
        content = content[section] if section else content
        if scaling is not None:
            content["rope_scaling"] = scaling
        kept = copy.deepcopy({key: content[key] for key in KEYS if content.get(key) is not None})
        config = config_class(**content)
        models.append(
            {
                "name": name,
                "config": kept,  # as published
                "head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
                "max_position_embeddings": config.max_position_embeddings,
                "rope": embeddings(config, rotary),
            }
        )
        print(name, {kind: rope["scale"] for kind, rope in models[-1]["rope"].items()})
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    write(arguments.output / "rope.json", {"made_with": versions, "models": models})


if __name__ == "__main__":
    main()
