"""The text model inside a vision-language checkpoint, and the architectures that are refused with a reason.

The text part answers text alone exactly as the whole does: Qwen's three-axis positions are all equal there. Its
tensors go by several names, depending on the version of transformers that saved them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import CheckpointError
from .base import DecoderConfig

# architecture of the whole -> (key of the text configuration or None where it lies flat, architecture of the text part)
WHOLES: dict[str, tuple[str | None, str]] = {
    "Qwen2VLForConditionalGeneration": (None, "Qwen2ForCausalLM"),
    "Qwen2_5_VLForConditionalGeneration": (None, "Qwen2ForCausalLM"),
    "Qwen3VLForConditionalGeneration": ("text_config", "Qwen3ForCausalLM"),
    "PaliGemmaForConditionalGeneration": ("text_config", "GemmaForCausalLM"),
    "Gemma3ForConditionalGeneration": ("text_config", "Gemma3ForCausalLM"),
    "Idefics3ForConditionalGeneration": ("text_config", "LlamaForCausalLM"),
    "SmolVLMForConditionalGeneration": ("text_config", "LlamaForCausalLM"),
    "InternVLChatModel": ("llm_config", "Qwen2ForCausalLM"),
    "InternVLForConditionalGeneration": ("text_config", "Qwen2ForCausalLM"),
}

PALIGEMMA = "PaliGemmaForConditionalGeneration"

_DRAFT = "it is a draft head for speculative decoding, which cannot answer without its base model"
_POLICY = "it is an action model or a part of one, whose layers or answers are not those of a text model"
REASONS: dict[str, str] = {
    "LlamaForCausalLMEagle3": _DRAFT,
    "DFlashDraftModel": _DRAFT,
    "PEagleDraftModel": _DRAFT,
    "OpenVLAForActionPrediction": _POLICY,
    "Alpamayo1_5": _POLICY,
    "Gr00tN1d7": _POLICY,
    "Eagle2ChatModel": _POLICY,
    "Eagle2_5_VLForConditionalGeneration": _POLICY,
    "Eagle3_VLForConditionalGeneration": _POLICY,
}

_SHARED_KEYS = ("tie_word_embeddings", "quantization_config", "bos_token_id", "eos_token_id", "pad_token_id")
_TEXT_PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.text_model.", "model."),
)
_OTHER_PREFIXES = (
    "visual.", "model.visual.", "vision_tower.", "model.vision_tower.", "vision_model.", "model.vision_model.",
    "multi_modal_projector.", "model.multi_modal_projector.", "model.connector.", "connector.", "mlp1.",
)  # fmt: skip


def whole_of(config: Mapping[str, Any]) -> str | None:
    """The architecture of a vision-language configuration that has a text part here; None for another."""
    architectures = config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    return next((name for name in names if isinstance(name, str) and name in WHOLES), None)


def text_configuration(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of the text model: ``config`` itself where it is one.

    :raises CheckpointError: a text configuration is missing where the architecture has one.
    """
    whole = whole_of(config)
    if whole is None:
        return config
    key, architecture = WHOLES[whole]
    if key is None and isinstance(config.get("text_config"), Mapping):
        key = "text_config"  # the flat ones are nested since transformers 5
    part = config if key is None else config.get(key)
    if not isinstance(part, Mapping):
        raise CheckpointError(f"config.json: {key} is {part!r}; want the object of {whole}: fetch it again.")
    text = {**{name: config[name] for name in _SHARED_KEYS if config.get(name) is not None}, **part}
    if config.get("tie_word_embeddings") is not None:
        text["tie_word_embeddings"] = config["tie_word_embeddings"]
    for name in ("rope_scaling", "rope_parameters"):
        scaling = text.get(name)
        if isinstance(scaling, Mapping) and "mrope_section" in scaling:
            kept = {key: value for key, value in scaling.items() if not key.startswith("mrope") and key != "type"}
            text[name] = {**kept, "rope_type": "default"} if kept.get("rope_type") in (None, "mrope") else kept
            text["mrope_section"] = scaling["mrope_section"]
            if scaling.get("mrope_interleaved"):
                text["mrope_interleaved"] = True
    if whole == PALIGEMMA:
        text.pop("use_bidirectional_attention", None)  # the builder knows: prompts see all of themselves
        if text.get("model_type") == "gemma2":
            architecture = "Gemma2ForCausalLM"
    return {**text, "architectures": [architecture], "text_part_of": whole}


def check_text_alone(config: DecoderConfig) -> None:
    """:raises CheckpointError: a text part that does not answer text as the whole does."""
    if config.extra.get("text_part_of") == PALIGEMMA:
        raise CheckpointError(
            f"config.json has the architecture {PALIGEMMA!r}, whose prompts see each other in both directions; build "
            "it with its image tower."
        )


def text_tensor_name(name: str) -> str | None:
    """The name that a tensor of the whole has in the text model; None for one that it does not have."""
    for prefix, replacement in _TEXT_PREFIXES:
        if name.startswith(prefix):
            return replacement + name[len(prefix) :]
    return None if name.startswith(_OTHER_PREFIXES) else name


def reason_against(config: Mapping[str, Any]) -> str | None:
    """Why a configuration is refused by name, as a clause; None where no reason is known."""
    architectures = config.get("architectures")
    for name in architectures if isinstance(architectures, list) else []:
        if isinstance(name, str) and name in REASONS:
            return f"has the architecture {name!r}, which is not built, because {REASONS[name]}"
    if architectures is None and isinstance(config.get("type"), str):
        return f"is that of a policy of the type {config['type']!r}, which is not a text model"
    return None
