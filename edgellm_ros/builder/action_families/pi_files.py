"""Files of pi0 and pi0.5: lerobot's configuration, statistics and tensor names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...action.action_engine import ACTION_GRAPH_FILE, PREFIX_GRAPH_FILE, TIME_GRAPH_FILE
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
from ..policy_checkpoint import PartCheckpoint, PolicyCheckpoint, stored_under
from ..policy_settings import PolicySettings
from ..vision_families.base import Tower
from ..vision_families.siglip import parse_paligemma
from . import pi
from .base import LanguagePart, PolicyFamily
from .lerobot import camera_keys, dimensions

PALIGEMMA = "paligemma_with_expert.paligemma."
LANGUAGE = f"{PALIGEMMA}model.language_model."
HEAD = f"{PALIGEMMA}lm_head.weight"
GEMMA_EXPERT = "paligemma_with_expert.gemma_expert."
_PREFIXES = {pi.TEXT: LANGUAGE, pi.EXPERT: f"{GEMMA_EXPERT}model.", "": ""}
PROMPT, TASK = "Task: {task}, State: {state};\nAction: ", "{task}\n"

_SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
    "num_attention_heads": 16, "patch_size": 14, "image_size": 224,
}  # fmt: skip


def _variant(width: int, inner: int) -> Mapping[str, Any]:
    text = {
        "model_type": "gemma", "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": 18,
        "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 257152, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    return {
        "model_type": "paligemma",
        "architectures": ["PaliGemmaForConditionalGeneration"],
        "text_config": text,
        "vision_config": {**_SIGLIP, "projection_dim": width},
    }


KNOWN_VARIANTS = {"gemma_2b": _variant(2048, 16384), "gemma_300m": _variant(1024, 4096)}


def _language(checkpoint: PolicyCheckpoint) -> Mapping[str, Any]:
    return checkpoint.language_config(KNOWN_VARIANTS, "paligemma_variant")


def _text(checkpoint: PolicyCheckpoint) -> Mapping[str, Any]:
    return checkpoint.text_config(KNOWN_VARIANTS, "paligemma_variant")


def stored_name(root: str, name: str) -> str:
    """See ``PolicyFamily``."""
    return stored_under(_PREFIXES, root, name)


def may_be_left_out(stored: str) -> bool:
    """See ``PolicyFamily``: the rest of PaliGemma, and the expert's own unused tokens."""
    unused = (f"{GEMMA_EXPERT}lm_head.", f"{GEMMA_EXPERT}model.embed_tokens.")
    if stored.startswith(unused):
        return True
    return stored.startswith(PALIGEMMA) and not stored.startswith(f"{LANGUAGE}layers.")


def read_model(checkpoint: PolicyCheckpoint, config: Mapping[str, Any]) -> pi.PiConfig:
    """The dimensions of a checkpoint whose own sizes ``config`` has, by lerobot's keys.

    :raises CheckpointError: see ``pi.parse``.
    """
    root, shapes = checkpoint.root, {}
    for name, shape in checkpoint.shapes.items():
        own = name.removeprefix(root)
        prefix = next((prefix for prefix in (pi.TEXT, pi.EXPERT) if own.startswith(_PREFIXES[prefix])), None)
        shapes[own if prefix is None else prefix + own.removeprefix(_PREFIXES[prefix])] = shape
    return pi.parse(config, _text(checkpoint), shapes)


def parse(checkpoint: PolicyCheckpoint, settings: PolicySettings) -> pi.PiConfig:
    """See ``PolicyFamily``."""
    model = read_model(checkpoint, checkpoint.config)
    wanted = "pi05" if model.adaptive else "pi0"
    if checkpoint.kind != wanted:
        raise CheckpointError(
            f"config.json says that the policy is {checkpoint.kind!r}; its tensors are those of {wanted!r}."
        )
    return model


def language(checkpoint: PolicyCheckpoint, model: pi.PiConfig) -> LanguagePart:
    """See ``PolicyFamily``; published checkpoints keep the token table under the name of the head alone."""
    root, whole = checkpoint.root, _language(checkpoint)
    names = {
        f"model.{name.removeprefix(root + LANGUAGE)}": name
        for name in checkpoint.shapes
        if name.startswith(root + LANGUAGE)
    }
    if "model.embed_tokens.weight" not in names and root + HEAD in checkpoint.shapes:
        names["model.embed_tokens.weight"] = root + HEAD
    table = checkpoint.shapes.get(names.get("model.embed_tokens.weight", ""))
    if table is None:
        raise CheckpointError(f"the checkpoint has neither {root + LANGUAGE}embed_tokens.weight nor {root + HEAD}.")
    text = {
        **_text(checkpoint),
        "architectures": ["GemmaForCausalLM"],
        "vocab_size": table[0],
        "tie_word_embeddings": True,
    }
    part = PartCheckpoint(checkpoint, names, text, checkpoint.tokenizer_files(), {})
    return LanguagePart(part, False, checkpoint.part(root + PALIGEMMA, whole), tower(checkpoint, model))


def tower(checkpoint: PolicyCheckpoint, model: pi.PiConfig) -> Tower:
    """The image tower of PaliGemma."""
    return parse_paligemma(_language(checkpoint), model.text.hidden_size)


def flow_manifest(checkpoint: PolicyCheckpoint, model: pi.PiConfig, **rest: Any) -> PolicyManifest:
    """The manifest of a policy of these families; ``rest`` is what a layout of files says.

    :raises PolicyError: a value is out of range.
    """
    return PolicyManifest(
        family="pi05" if model.adaptive else "pi0",
        policy=checkpoint.source,
        horizon=model.horizon,
        image_tokens=tower(checkpoint, model).settings()["tokens_per_tile"],
        handoff=Handoff.PREFIX_KV,
        direction=FlowDirection.DOWN,
        result=FlowResult.VELOCITY,
        suffix_mask=SuffixMask.FULL if model.adaptive else SuffixMask.STATE_BLIND,
        denoise_steps=model.steps,
        time_waves=(Waves.of_periods(model.expert.hidden_size, model.min_period, model.max_period),),
        text_scale=model.text.hidden_size**0.5,
        rope_theta=pi.ROPE_THETA,
        head_dim=model.expert.head_dim,
        **rest,
    )


def manifest(checkpoint: PolicyCheckpoint, model: pi.PiConfig, settings: PolicySettings) -> PolicyManifest:
    """See ``PolicyFamily``."""
    config = checkpoint.config
    sizes = config.get("image_resolution")
    if not isinstance(sizes, list) or len(sizes) != 2:
        raise CheckpointError(f"config.json has the image_resolution {sizes!r}; want height and width.")
    state, action = dimensions(checkpoint, settings, model.padded_state, model.padded_action)
    try:
        return flow_manifest(
            checkpoint,
            model,
            state=state,
            action=action,
            meaning=settings.meaning,
            execute_steps=whole_number(config, "n_action_steps", model.horizon),
            step_time=settings.step_time,
            cameras=settings.cameras(camera_keys(config)),
            image_size=(sizes[0], sizes[1]),
            image_fit=ImageFit.PAD_CENTRE,
            empty_cameras=whole_number(config, "empty_cameras", 0, least=0),
            state_input=StateInput.PROMPT_BINS if model.adaptive else StateInput.SUFFIX_TOKEN,
            prompt_tokens=whole_number(config, "tokenizer_max_length"),
            prompt_format=PROMPT if model.adaptive else TASK,
            spaced_words=model.adaptive,
        )
    except PolicyError as error:
        raise CheckpointError(str(error)) from None


_GRAPHS = {PREFIX_GRAPH_FILE: pi.build_prefix, ACTION_GRAPH_FILE: pi.build_action}
PI0 = PolicyFamily("pi0", ("pi0",), parse, stored_name, may_be_left_out, _GRAPHS, manifest, language)
PI05 = PolicyFamily(
    "pi05",
    ("pi05",),
    parse,
    stored_name,
    may_be_left_out,
    {**_GRAPHS, TIME_GRAPH_FILE: pi.build_time},
    manifest,
    language,
)
