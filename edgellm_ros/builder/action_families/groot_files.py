"""GR00T N1.7's files: configuration, the robots that a checkpoint knows, their statistics, tensor names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...action.action_engine import ACTION_GRAPH_FILE, PREFIX_GRAPH_FILE, TIME_GRAPH_FILE
from ...action.policy_manifest import FlowResult, Handoff, ImageFit, PolicyManifest, StateInput, SuffixMask
from ...action.solver import FlowDirection
from ...action.time_embedding import Waves
from ...errors import CheckpointError, PolicyError
from ...json_values import shown
from ..families import read_config
from ..families.config_values import MOST_HEADS, MOST_LAYERS, require, switch, whole_number
from ..families.rope_kinds import rope_settings
from ..families.text_part import text_configuration
from ..huggingface_checkpoint import read_bytes, read_json_object
from ..policy_checkpoint import LANGUAGE_FOLDER, PREPROCESSOR, PartCheckpoint, PolicyCheckpoint
from ..policy_settings import PolicySettings
from ..vision_families import read_tower
from ..vision_families.base import Tower, section
from . import groot
from .base import LanguagePart, PolicyFamily
from .groot_robot import Robot, find_robot
from .stack import StackShape

BACKBONE, HEAD, LANGUAGE = "backbone.model.model.", "action_head.", "language_model."
PROMPT = "<|im_start|>user\n{images}{task}<|im_end|>\n"
MOST_WORDS = 256  # tokens of a task; the model itself has no such limit
SLOWEST = 1e4  # how many times the fastest sine of time is faster than the slowest

# dimensions of published backbones, for checkpoints without vlm/config.json
_COSMOS_TEXT = {
    "model_type": "qwen3_vl_text", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "attention_bias": False, "rope_theta": 5000000, "vocab_size": 151936, "max_position_embeddings": 262144,
    "tie_word_embeddings": True, "eos_token_id": 151645, "bos_token_id": 151643,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
}  # fmt: skip
_COSMOS_VISION = {
    "model_type": "qwen3_vl", "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16,
    "in_channels": 3, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 2048,
    "num_position_embeddings": 2304, "deepstack_visual_indexes": [5, 11, 17], "hidden_act": "gelu_pytorch_tanh",
}  # fmt: skip
_COSMOS = {
    "model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "tie_word_embeddings": True,
    "image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652, "vision_end_token_id": 151653,
    "text_config": _COSMOS_TEXT, "vision_config": _COSMOS_VISION,
}  # fmt: skip
KNOWN_BACKBONES: Mapping[str, Mapping[str, Any]] = {"nvidia/Cosmos-Reason2-2B": _COSMOS}
_COSMOS_PIXELS = {
    "size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16, "temporal_patch_size": 2,
    "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip


def parse(checkpoint: PolicyCheckpoint, settings: PolicySettings) -> groot.GrootConfig:
    """See ``PolicyFamily``."""
    config, whole = checkpoint.config, _backbone(checkpoint)
    require(config, "use_alternate_vl_dit", True, "layers look at words and at pictures in turn")
    require(config, "use_vl_self_attention", True, "rows of the backbone see each other again where there are layers")
    require(config, "state_history_length", 1, "one state is given")
    transformer = dict(section(config, "diffusion_model_cfg"))
    require(transformer, "interleave_self_attention", True, "every second layer looks at the actions themselves")
    require(transformer, "norm_type", "ada_norm", "time sets the scale and shift of norms")
    mixer = dict(section(config, "vl_self_attention_cfg")) if config.get("vl_self_attention_cfg") else {}
    for part in (transformer, mixer):
        require(part, "positional_embeddings", None, "positions are added before the layers")
        require(part, "activation_fn", "gelu-approximate", "the feed-forward has that one")
        require(part, "attention_bias", True, "projections have a bias")
    text = read_config(text_configuration(whole))
    hidden = whole_number(config, "hidden_size")
    tower = _tower(whole)
    rope = text_configuration(whole)
    if not rope.get("mrope_interleaved"):
        raise CheckpointError("the backbone's config.json has no mrope_interleaved; want positions on three axes.")
    mixers = whole_number(mixer, "num_layers", 0, least=0, largest=MOST_LAYERS)
    mixer_heads = whole_number(mixer, "num_attention_heads", 8, largest=MOST_HEADS)
    if mixers and mixer_heads * whole_number(mixer, "attention_head_dim", 64) != text.hidden_size:
        raise CheckpointError("config.json: the heads of vl_self_attention_cfg are not as wide as the backbone.")
    heads, size = (whole_number(transformer, key) for key in ("num_attention_heads", "attention_head_dim"))
    for holder, key, wanted in (
        (config, "backbone_embedding_dim", text.hidden_size),
        (config, "input_embedding_dim", heads * size),
        (transformer, "output_dim", hidden),
    ):
        if holder.get(key) != wanted:
            raise CheckpointError(f"config.json: {key} is {holder.get(key)!r}; its neighbours want {wanted}.")
    kept = whole_number(config, "select_layer", largest=text.num_hidden_layers)
    places = whole_number(config, "max_seq_len", 1024) if switch(config, "add_pos_embed", True) else 0
    robots = whole_number(config, "max_num_embodiments", 32)
    return groot.GrootConfig(
        text=StackShape(
            groot.TEXT,
            layers=kept,
            hidden_size=text.hidden_size,
            intermediate_size=text.intermediate_size,
            heads=text.num_attention_heads,
            kv_heads=text.num_key_value_heads,
            head_dim=text.head_dim,
            epsilon=text.norm_epsilon,
            query_key_norm=True,
        ),
        rope_section=_axes(rope.get("mrope_section"), text.head_dim // 2),
        planes=min(kept, tower.settings()["deepstack_planes"]),
        normed=switch(config, "use_vlln", True),
        mixers=mixers,
        mixer_heads=mixer_heads,
        layers=whole_number(transformer, "num_layers", largest=MOST_LAYERS),
        heads=heads,
        head_dim=size,
        words_every=whole_number(config, "attend_text_every_n_blocks", 2),
        hidden=hidden,
        rows=whole_number(config, "action_horizon"),
        padded_state=whole_number(config, "max_state_dim"),
        padded_action=whole_number(config, "max_action_dim"),
        positions=places,
        embodiments=robots,
        embodiment=find_robot(checkpoint, settings, robots).number,
        steps=whole_number(config, "num_inference_timesteps", 4),
        buckets=whole_number(config, "num_timestep_buckets", 1000),
    )


def _backbone(checkpoint: PolicyCheckpoint) -> Mapping[str, Any]:
    return checkpoint.language_config(KNOWN_BACKBONES, "model_name")


def _tower(whole: Mapping[str, Any]) -> Tower:
    tower = read_tower(whole)
    if tower is None:
        raise CheckpointError("the backbone's config.json has no vision_config; want one that sees pictures.")
    return tower


def _axes(found: Any, frequencies: int) -> tuple[int, ...]:
    if (
        not isinstance(found, list)
        or not all(type(size) is int and size >= 0 for size in found)
        or len(found) != 3
        or sum(found) != frequencies
    ):
        raise CheckpointError(
            f"the backbone's config.json has the mrope_section {shown(found)}; want three whole numbers that make "
            f"{frequencies}."
        )
    return tuple(found)


def stored_name(root: str, name: str) -> str:
    """See ``PolicyFamily``."""
    text = name.startswith(groot.TEXT)
    return f"{BACKBONE}{LANGUAGE}{name.removeprefix(groot.TEXT)}" if text else f"{HEAD}{name}"


def may_be_left_out(stored: str) -> bool:
    """See ``PolicyFamily``: the rest of the backbone, and what training alone reads."""
    return stored.startswith("backbone.") or stored == f"{HEAD}mask_token"


def language(checkpoint: PolicyCheckpoint, model: groot.GrootConfig) -> LanguagePart:
    """See ``PolicyFamily``: the backbone, cut to the layers that are kept."""
    whole = dict(_backbone(checkpoint))
    whole["text_config"] = {**section(whole, "text_config"), "num_hidden_layers": model.text.layers}
    kept = tuple(f"{BACKBONE}{LANGUAGE}layers.{layer}." for layer in range(model.text.layers))
    names = {
        f"model.{name.removeprefix(BACKBONE)}": name
        for name in checkpoint.shapes
        if name.startswith(BACKBONE) and (not name.startswith(f"{BACKBONE}{LANGUAGE}layers.") or name.startswith(kept))
    }
    beside = checkpoint.path / LANGUAGE_FOLDER / PREPROCESSOR
    pixels = read_bytes(beside) if beside.is_file() else json.dumps(_COSMOS_PIXELS).encode()
    part = PartCheckpoint(checkpoint, names, whole, checkpoint.tokenizer_files(), {PREPROCESSOR: pixels})
    return LanguagePart(part, False, part, _tower(whole), levels=True)


def _pixels_of_a_token(checkpoint: PolicyCheckpoint) -> int:
    beside = checkpoint.path / LANGUAGE_FOLDER / PREPROCESSOR
    settings = read_json_object(beside) if beside.is_file() else _COSMOS_PIXELS
    return whole_number(settings, "patch_size") * whole_number(settings, "merge_size")


def manifest(checkpoint: PolicyCheckpoint, model: groot.GrootConfig, settings: PolicySettings) -> PolicyManifest:
    """See ``PolicyFamily``."""
    robot: Robot = find_robot(checkpoint, settings, model.embodiments)
    if robot.horizon > model.rows:
        raise CheckpointError(
            f"processor_config.json has {robot.horizon} actions for {robot.name}; the network gives {model.rows}."
        )
    width, half = model.width, groot.TIME_CHANNELS // 2
    waves = (
        Waves(width // 2, 1.0, SLOWEST ** (2 / width - 1)),
        Waves(half, 1.0, 1 / SLOWEST, cosines_first=True),
    )
    try:
        return PolicyManifest(
            family="groot",
            policy=checkpoint.source,
            state=robot.dimensions("state", settings, model.padded_state),
            action=robot.dimensions("action", settings, model.padded_action),
            meaning=settings.meaning,
            horizon=robot.horizon,
            execute_steps=robot.horizon,
            step_time=settings.step_time,
            cameras=settings.cameras(robot.cameras),
            image_size=(robot.edge, robot.edge),
            image_fit=ImageFit.PROCESSOR,
            image_tokens=(robot.edge // _pixels_of_a_token(checkpoint)) ** 2,
            empty_cameras=0,
            handoff=Handoff.CONTEXT,
            direction=FlowDirection.UP,
            result=FlowResult.VELOCITY,
            state_input=StateInput.SUFFIX_TOKEN,
            suffix_mask=SuffixMask.FULL,
            denoise_steps=model.steps,
            time_waves=waves,
            time_buckets=model.buckets,
            rope_theta=rope_settings(text_configuration(_backbone(checkpoint)))[0],
            rope_section=model.rope_section,
            head_dim=model.text.head_dim,
            prompt_tokens=MOST_WORDS,
            prompt_format=PROMPT,
            delta_dimensions=robot.relative,
            network_rows=model.rows,
            image_crop=robot.crop,
            plain_words=robot.plain_words,
            embodiment=robot.name,
        )
    except PolicyError as error:
        raise CheckpointError(str(error)) from None


GROOT = PolicyFamily(
    "groot",
    ("Gr00tN1d7",),
    parse,
    stored_name,
    may_be_left_out,
    {
        PREFIX_GRAPH_FILE: groot.build_prefix,
        ACTION_GRAPH_FILE: groot.build_action,
        TIME_GRAPH_FILE: groot.build_time,
    },
    manifest,
    language,
)
