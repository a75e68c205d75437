"""SmolVLA's files: lerobot's configuration, statistics and tensor names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...action.policy_manifest import (
    CameraSlot,
    Dimensions,
    FlowResult,
    Handoff,
    ImageFit,
    PolicyManifest,
    StateInput,
)
from ...action.solver import FlowDirection
from ...errors import CheckpointError, PolicyError
from ..checkpoint import Checkpoint
from ..families.config_values import whole_number
from ..policy_checkpoint import PolicyCheckpoint
from ..policy_settings import PolicySettings
from ..vision_families import read_tower
from . import smolvla
from .base import PolicyFamily

STATE, ACTION, EMPTY = "observation.state", "action", "observation.images.empty_camera_"
LANGUAGE = "model.vlm_with_expert.vlm."
_PREFIXES = {
    smolvla.TEXT: f"{LANGUAGE}model.text_model.",
    smolvla.EXPERT: "model.vlm_with_expert.lm_expert.",
    "": "model.",
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


def parse(checkpoint: PolicyCheckpoint) -> smolvla.SmolVLAConfig:
    """See ``PolicyFamily``."""
    return smolvla.parse(checkpoint.config, _text(checkpoint))


def _language(checkpoint: PolicyCheckpoint) -> Mapping[str, Any]:
    return checkpoint.language_config(KNOWN_LANGUAGE_MODELS)


def _text(checkpoint: PolicyCheckpoint) -> Mapping[str, Any]:
    text = _language(checkpoint).get("text_config")
    if not isinstance(text, dict):
        raise CheckpointError(f"the language model's config.json has the text_config {text!r}; want its dimensions.")
    return text


def stored_name(name: str) -> str:
    """See ``PolicyFamily``."""
    prefix = next(prefix for prefix in _PREFIXES if name.startswith(prefix))
    return _PREFIXES[prefix] + name.removeprefix(prefix)


def may_be_left_out(stored: str) -> bool:
    """See ``PolicyFamily``: the rest of the language model, and statistics that old checkpoints keep here."""
    layers = f"{LANGUAGE}model.text_model.layers."
    if stored.startswith(layers):
        return False
    return stored.startswith((LANGUAGE, "normalize_inputs.", "normalize_targets.", "unnormalize_outputs."))


def language(checkpoint: PolicyCheckpoint, model: smolvla.SmolVLAConfig) -> tuple[Checkpoint, bool]:
    """See ``PolicyFamily``: cut to the layers that were kept; whole where none was taken away."""
    config, text = dict(_language(checkpoint)), dict(_text(checkpoint))
    whole = text.get("num_hidden_layers") == model.text.layers
    config["text_config"] = {**text, "num_hidden_layers": model.text.layers}
    return checkpoint.language(LANGUAGE, config), whole


def manifest(checkpoint: PolicyCheckpoint, model: smolvla.SmolVLAConfig, settings: PolicySettings) -> PolicyManifest:
    """See ``PolicyFamily``."""
    from ..policy_build import features

    config = checkpoint.config
    cameras = [name for name in features(config, "input_features", "VISUAL") if not name.startswith(EMPTY)]
    sizes = config.get("resize_imgs_with_padding")
    tower = read_tower(_language(checkpoint))
    tokens = tower.settings()["tokens_per_tile"] if tower is not None else 0
    if not cameras or not isinstance(sizes, list) or len(sizes) != 2 or not tokens:
        raise CheckpointError(
            f"config.json has {len(cameras)} cameras and resize_imgs_with_padding {sizes!r}; want a camera and two "
            "sizes."
        )
    parts = {}
    for part, group, feature, kind, padded in (
        ("state", "input_features", STATE, "STATE", model.padded_state),
        ("action", "output_features", ACTION, "ACTION", model.padded_action),
    ):
        shape = features(config, group, kind).get(feature)
        if shape is None or len(shape) != 1:
            raise CheckpointError(
                f"config.json: {group} has {feature!r} with shape {shape!r}; want one number of dimensions."
            )
        names, units = settings.names_and_units(part, shape[0])
        parts[part] = Dimensions(names, units, padded, checkpoint.normalization(feature, kind, shape[0]))
    try:
        return PolicyManifest(
            family="smolvla",
            policy=checkpoint.source,
            state=parts["state"],
            action=parts["action"],
            meaning=settings.meaning,
            horizon=model.horizon,
            execute_steps=whole_number(config, "n_action_steps", model.horizon),
            step_time=settings.step_time,
            cameras=tuple(CameraSlot(name) for name in cameras),
            image_size=(sizes[1], sizes[0]),  # the file has width first
            image_fit=ImageFit.PAD_LEFT_TOP,
            image_tokens=tokens,
            empty_cameras=whole_number(config, "empty_cameras", 0, least=0),
            handoff=Handoff.PREFIX_KV,
            direction=FlowDirection.DOWN,
            result=FlowResult.VELOCITY,
            state_input=StateInput.PREFIX_TOKEN,
            denoise_steps=model.steps,
            time_width=model.expert.hidden_size,
            time_periods=(model.min_period, model.max_period),
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
    smolvla.build_prefix,
    smolvla.build_action,
    manifest,
    language,
)
