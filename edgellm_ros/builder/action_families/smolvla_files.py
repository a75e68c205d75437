"""SmolVLA's files: lerobot's configuration, statistics and tensor names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...action.action_engine import ACTION_GRAPH_FILE, PREFIX_GRAPH_FILE
from ...action.policy_manifest import (
    FlowResult,
    Handoff,
    ImageFit,
    PolicyManifest,
    StateInput,
    SuffixMask,
)
from ...action.solver import FlowDirection
from ...action.time_embedding import Waves
from ...errors import CheckpointError, PolicyError
from ..families.config_values import whole_number
from ..policy_checkpoint import PolicyCheckpoint, stored_under
from ..policy_settings import PolicySettings
from ..vision_families import read_tower
from ..vision_families.base import Tower
from . import smolvla
from .base import LanguagePart, PolicyFamily
from .lerobot import camera_keys, dimensions

LANGUAGE = "vlm_with_expert.vlm."
_PREFIXES = {
    smolvla.TEXT: f"{LANGUAGE}model.text_model.",
    smolvla.EXPERT: "vlm_with_expert.lm_expert.",
    "": "",
}

# dimensions of published language models, for checkpoints without vlm/config.json
_SMOLVLM2_TEXT = {
    "model_type": "llama", "hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32,
    "num_attention_heads": 15, "num_key_value_heads": 5, "head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 100000,
    "vocab_size": 49280, "max_position_embeddings": 8192,
}  # fmt: skip
_SMOLVLM2_VISION = {
    "model_type": "smolvlm_vision", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "image_size": 512, "patch_size": 16,
}  # fmt: skip
KNOWN_LANGUAGE_MODELS: Mapping[str, Mapping[str, Any]] = {
    "HuggingFaceTB/SmolVLM2-500M-Video-Instruct": {
        "model_type": "smolvlm", "architectures": ["SmolVLMForConditionalGeneration"], "scale_factor": 4,
        "image_token_id": 49190, "text_config": _SMOLVLM2_TEXT, "vision_config": _SMOLVLM2_VISION,
    },
}  # fmt: skip


def parse(checkpoint: PolicyCheckpoint, settings: PolicySettings) -> smolvla.SmolVLAConfig:
    """See ``PolicyFamily``."""
    return smolvla.parse(checkpoint.config, _text(checkpoint))


def _language(checkpoint: PolicyCheckpoint) -> Mapping[str, Any]:
    return checkpoint.language_config(KNOWN_LANGUAGE_MODELS, "vlm_model_name")


def _text(checkpoint: PolicyCheckpoint) -> Mapping[str, Any]:
    return checkpoint.text_config(KNOWN_LANGUAGE_MODELS, "vlm_model_name")


def stored_name(root: str, name: str) -> str:
    """See ``PolicyFamily``."""
    return stored_under(_PREFIXES, root, name)


def may_be_left_out(stored: str) -> bool:
    """See ``PolicyFamily``: the rest of the language model, and statistics that old checkpoints keep here."""
    layers = f"{LANGUAGE}model.text_model.layers."
    if stored.startswith(layers):
        return False
    return stored.startswith((LANGUAGE, "normalize_inputs.", "normalize_targets.", "unnormalize_outputs."))


def language(checkpoint: PolicyCheckpoint, model: smolvla.SmolVLAConfig) -> LanguagePart:
    """See ``PolicyFamily``: cut to the layers that were kept; whole where none was taken away."""
    config, text = dict(_language(checkpoint)), dict(_text(checkpoint))
    whole = text.get("num_hidden_layers") == model.text.layers
    config["text_config"] = {**text, "num_hidden_layers": model.text.layers}
    part = checkpoint.part(checkpoint.root + LANGUAGE, config)
    return LanguagePart(part, whole, part, _tower(config))


def _tower(config: Mapping[str, Any]) -> Tower:
    tower = read_tower(config)
    if tower is None:
        raise CheckpointError("the language model's config.json has no vision_config; want one that sees pictures.")
    return tower


def manifest(checkpoint: PolicyCheckpoint, model: smolvla.SmolVLAConfig, settings: PolicySettings) -> PolicyManifest:
    """See ``PolicyFamily``."""
    config = checkpoint.config
    cameras = camera_keys(config)
    sizes = config.get("resize_imgs_with_padding")
    tokens = _tower(_language(checkpoint)).settings()["tokens_per_tile"]
    if not isinstance(sizes, list) or len(sizes) != 2:
        raise CheckpointError(
            f"config.json has {len(cameras)} cameras and resize_imgs_with_padding {sizes!r}; want a camera and two "
            "sizes."
        )
    state, action = dimensions(checkpoint, settings, model.padded_state, model.padded_action)
    try:
        return PolicyManifest(
            family="smolvla",
            policy=checkpoint.source,
            state=state,
            action=action,
            meaning=settings.meaning,
            horizon=model.horizon,
            execute_steps=whole_number(config, "n_action_steps", model.horizon),
            step_time=settings.step_time,
            cameras=settings.cameras(cameras),
            image_size=(sizes[1], sizes[0]),  # the file has width first
            image_fit=ImageFit.PAD_LEFT_TOP,
            image_tokens=tokens,
            empty_cameras=whole_number(config, "empty_cameras", 0, least=0),
            handoff=Handoff.PREFIX_KV,
            direction=FlowDirection.DOWN,
            result=FlowResult.VELOCITY,
            state_input=StateInput.PREFIX_TOKEN,
            suffix_mask=SuffixMask.CAUSAL,
            denoise_steps=model.steps,
            time_waves=(Waves.of_periods(model.expert.hidden_size, model.min_period, model.max_period),),
            rope_theta=smolvla.ROPE_THETA,
            head_dim=model.expert.head_dim,
            prompt_tokens=whole_number(config, "tokenizer_max_length"),
        )
    except PolicyError as error:
        raise CheckpointError(str(error)) from None


SMOLVLA = PolicyFamily(
    "smolvla",
    ("smolvla",),
    parse,
    stored_name,
    may_be_left_out,
    {PREFIX_GRAPH_FILE: smolvla.build_prefix, ACTION_GRAPH_FILE: smolvla.build_action},
    manifest,
    language,
)
