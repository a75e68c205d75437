"""Alpamayo-R1's files: configuration, the tokens that it adds to its language model's, tensor names."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ...action.action_engine import ACTION_GRAPH_FILE
from ...action.dimensions import Dimensions
from ...action.driving import Driving
from ...action.kinematics import HistoryTokens
from ...action.normalization import IDENTITY, EpsilonRule, Normalization, NormalizationKind
from ...action.policy_manifest import (
    ActionMeaning,
    FlowResult,
    Handoff,
    ImageFit,
    PolicyManifest,
    StateInput,
    SuffixMask,
)
from ...action.solver import FlowDirection
from ...action.time_embedding import Waves
from ...engine_format import TOKENIZER_FILE, BuilderLimits
from ...errors import CheckpointError, PolicyError
from ...json_values import finite_number
from ..families import read_config
from ..families.config_values import numbers, real_number, require, whole_number
from ..families.rope_kinds import rope_settings
from ..families.text_part import text_configuration
from ..policy_checkpoint import PREPROCESSOR, PartCheckpoint, PolicyCheckpoint
from ..policy_settings import PolicySettings
from ..vision_families import read_tower
from ..vision_families.base import section
from . import alpamayo
from .base import LanguagePart, PolicyFamily
from .stack import StackShape

LANGUAGE = "vlm."
CAMERAS = ("cross_left", "front_wide", "cross_right", "front_tele")  # in the order of the published reference
FRAMES, POINTS = 4, 16  # of each camera, and of the way that was driven
PROMPT = (
    "<|im_start|>system\nYou are a driving assistant that generates safe and accurate actions.<|im_end|>\n"
    "<|im_start|>user\n{images}<|traj_history_start|>{history}<|traj_history_end|>{task}<|im_end|>\n"
    "<|im_start|>assistant\n<|cot_start|>"
)
TASK = "output the chain-of-thought reasoning of the driving process, then output the future trajectory."
LONGEST_PROMPT, LONGEST_CACHE = 3424, 4096  # sixteen pictures of up to 192 tokens, the words and the reasoning
MOST_WORDS = MOST_REASONING = 256
TEMPERATURE, TOP_P = 0.6, 0.98
LEAST_PIXELS, MOST_PIXELS = 163840, 196608
MARKS = (
    "prompt_start", "prompt_end", "image_start", "image_pre_tkn", "image_end", "traj_history_start",
    "traj_history_pre_tkn", "traj_history_end", "cot_start", "cot_end", "meta_action_start", "meta_action_end",
    "traj_future_start", "traj_future_pre_tkn", "traj_future_end", "traj_history", "traj_future", "image_pad",
    "vectorized_wm", "vectorized_wm_start", "vectorized_wm_end", "vectorized_wm_pre_tkn", "route_start", "route_pad",
    "route_end", "question_start", "question_end", "answer_start", "answer_end",
)  # fmt: skip


def parse(checkpoint: PolicyCheckpoint, settings: PolicySettings) -> alpamayo.AlpamayoConfig:
    """See ``PolicyFamily``."""
    config, text = checkpoint.config, read_config(text_configuration(language_config(checkpoint)))
    require(config, "expert_non_causal_attention", True, "waypoints see each other")
    require(config, "add_special_tokens", True, "the prompt is written with all marks")
    require(section(config, "diffusion_cfg"), "int_method", "euler", "steps are of equal length")
    expert, entry = {**section(config, "expert_cfg")}, section(config, "action_in_proj_cfg")
    for key, wanted in (("num_key_value_heads", text.num_key_value_heads), ("head_dim", text.head_dim)):
        if expert.get(key, wanted) != wanted:
            raise CheckpointError(
                f"config.json: expert_cfg has {key} {expert[key]!r}; the language model's cache has {wanted}."
            )
    return alpamayo.AlpamayoConfig(
        expert=StackShape(
            alpamayo.EXPERT,
            layers=whole_number(expert, "num_hidden_layers", text.num_hidden_layers, largest=text.num_hidden_layers),
            hidden_size=whole_number(expert, "hidden_size", text.hidden_size),
            intermediate_size=whole_number(expert, "intermediate_size", text.intermediate_size),
            heads=whole_number(expert, "num_attention_heads", text.num_attention_heads),
            kv_heads=text.num_key_value_heads,
            head_dim=text.head_dim,
            epsilon=text.norm_epsilon,
            query_key_norm=True,
        ),
        waypoints=whole_number(section(config, "action_space_cfg"), "n_waypoints", 64),
        entry_layers=whole_number(entry, "num_enc_layers", 4),
        entry_width=whole_number(entry, "hidden_size", 1024),
        waves=whole_number(entry, "num_fourier_feats", 20) // 2,
        fastest=real_number(entry, "max_freq", 100.0),
        steps=whole_number(section(config, "diffusion_cfg"), "num_inference_steps", 10),
    )


def language_config(checkpoint: PolicyCheckpoint) -> Mapping[str, Any]:
    """Of the language model with the policy's vocabulary. :raises CheckpointError: it is not there."""
    whole = dict(checkpoint.language_config({}, "vlm_name_or_path"))
    text = {**section(whole, "text_config"), "vocab_size": whole_number(checkpoint.config, "vocab_size")}
    return {**whole, "text_config": text}


def stored_name(root: str, name: str) -> str:
    """See ``PolicyFamily``: as they are."""
    return name


def may_be_left_out(stored: str) -> bool:
    """See ``PolicyFamily``: the language model, and numbers that follow from the configuration."""
    return stored.startswith((LANGUAGE, "action_space.", "diffusion.", "traj_tokenizer.", "hist_traj_tokenizer.")) or (
        stored.startswith("action_in_proj.") and stored.endswith(".freqs")
    )


def language(checkpoint: PolicyCheckpoint, model: alpamayo.AlpamayoConfig) -> LanguagePart:
    """See ``PolicyFamily``: whole, with the tokens of trajectories."""
    whole, processor = language_config(checkpoint), dict(checkpoint.processor_files())
    tower = read_tower(whole)
    if tower is None or PREPROCESSOR not in processor:
        raise CheckpointError(
            f"{checkpoint.path} has no image tower or no {PREPROCESSOR} of its language model; put the files of "
            f"{checkpoint.config.get('vlm_name_or_path')} into its folder vlm."
        )
    pixels = {
        **_mapping(processor[PREPROCESSOR], PREPROCESSOR),
        "min_pixels": whole_number(checkpoint.config, "min_pixels", LEAST_PIXELS),
        "max_pixels": whole_number(checkpoint.config, "max_pixels", MOST_PIXELS),
    }
    names = {name.removeprefix(LANGUAGE): name for name in checkpoint.shapes if name.startswith(LANGUAGE)}
    files = {**checkpoint.tokenizer_files(), TOKENIZER_FILE: _tokenizer(checkpoint)}
    part = PartCheckpoint(checkpoint, names, whole, files, {PREPROCESSOR: json.dumps(pixels).encode()})
    most = read_config(text_configuration(whole)).max_position_embeddings
    limits = BuilderLimits(1, min(LONGEST_PROMPT, most), min(LONGEST_CACHE, most))
    return LanguagePart(part, True, part, tower, limits, levels=True)


def _mapping(content: bytes, name: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise CheckpointError(f"{name} of the language model is no JSON object; fetch it again.")
    return found


def _tokenizer(checkpoint: PolicyCheckpoint) -> bytes:
    """The language model's tokenizer with the tokens of trajectories and the marks behind its own.

    :raises CheckpointError: they would not have the ids that the configuration says.
    """
    config = checkpoint.config
    content = _mapping(checkpoint.tokenizer_files()[TOKENIZER_FILE], TOKENIZER_FILE)
    try:
        added = content["added_tokens"]
        known = {str(row["content"]): int(row["id"]) for row in added}
        known |= {str(text): int(number) for text, number in content["model"]["vocab"].items()}
        largest = max(known.values())
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CheckpointError(
            f"{TOKENIZER_FILE} of the language model has no vocabulary and added tokens; fetch it again."
        ) from None
    wanted = [(f"<i{index}>", False) for index in range(whole_number(config, "traj_vocab_size"))]
    for text, special in (*wanted, *((f"<|{mark}|>", True) for mark in MARKS)):
        if text not in known:
            known[text] = largest = largest + 1
            row = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special}
            added.append({"id": known[text], "content": text, **row, "special": special})
    ids = {"traj_token_start_idx": ("<i0>", config.get("traj_token_start_idx"))}
    for name, found in section(config, "traj_token_ids").items():
        ids[f"traj_token_ids.{name}"] = f"<|traj_{name}|>", found
    for key, (text, found) in ids.items():
        if known.get(text) != found:
            raise CheckpointError(
                f"config.json: {key} is {found!r} where the tokenizer gives {text} the id {known.get(text)}; take the "
                "tokenizer of the language model that the policy was trained from."
            )
    if len(set(known.values())) > whole_number(config, "vocab_size"):
        raise CheckpointError(
            f"config.json: vocab_size is {config['vocab_size']}; the tokenizer has {len(set(known.values()))} tokens."
        )
    return json.dumps(content, ensure_ascii=False).encode()


def manifest(checkpoint: PolicyCheckpoint, model: alpamayo.AlpamayoConfig, settings: PolicySettings) -> PolicyManifest:
    """See ``PolicyFamily``."""
    config, space = checkpoint.config, section(checkpoint.config, "action_space_cfg")
    try:
        means, deviations = (
            tuple(finite_number(f"{name}_{kind}", space.get(f"{name}_{kind}", default[kind]))
                  for name, default in _SCALES.items())
            for kind in ("mean", "std")
        )  # fmt: skip
        return PolicyManifest(
            family="alpamayo",
            policy=checkpoint.source,
            state=Dimensions((), (), 1, IDENTITY),
            action=Dimensions(
                ("acceleration", "curvature"),
                ("m/s^2", "1/m"),
                2,
                Normalization(NormalizationKind.MEAN_STD, means, deviations, 0.0, EpsilonRule.ALWAYS),
            ),
            meaning=ActionMeaning.ACCELERATION_CURVATURE,
            horizon=model.waypoints,
            execute_steps=model.waypoints,
            step_time=real_number(space, "dt", 0.1),
            cameras=settings.cameras(CAMERAS),
            image_size=(320, 576),
            image_fit=ImageFit.PROCESSOR,
            image_tokens=0,
            empty_cameras=0,
            handoff=Handoff.PREFIX_KV,
            direction=FlowDirection.UP,
            result=FlowResult.VELOCITY,
            state_input=StateInput.NONE,
            suffix_mask=SuffixMask.FULL,
            denoise_steps=model.steps,
            time_waves=(Waves(model.waves, math.tau, math.tau * model.fastest, scale=2**0.5),),
            rope_theta=rope_settings(text_configuration(language_config(checkpoint)))[0],
            head_dim=model.expert.head_dim,
            prompt_tokens=MOST_WORDS,
            prompt_format=PROMPT,
            driving=_driving(config, space),
        )
    except (PolicyError, ValueError) as error:
        raise CheckpointError(str(error)) from None


_SCALES = {"accel": {"mean": 0.02902694707, "std": 0.68104267}, "curvature": {"mean": 0.00026921680, "std": 0.02614828}}


def _driving(config: Mapping[str, Any], space: Mapping[str, Any]) -> Driving:
    history = section(config, "hist_traj_tokenizer_cfg")
    require(history, "predict_yaw", False, "headings are not among the tokens")
    future = section(config, "traj_tokenizer_cfg")
    start = whole_number(config, "traj_token_start_idx", least=0)
    if whole_number(config, "tokens_per_history_traj", 3 * POINTS) != 3 * POINTS:
        raise CheckpointError(
            f"config.json: tokens_per_history_traj is no {3 * POINTS}; want x, y, z of {POINTS} points."
        )
    low, high = numbers(history, "ddxyz_min", (-4, -4, -10)), numbers(history, "ddxyz_max", (4, 4, 10))
    return Driving(
        frames=FRAMES,
        task=TASK,
        marker=whole_number(section(config, "traj_token_ids"), "future_start", least=0),
        silent=(start, whole_number(config, "traj_vocab_size")),
        history=HistoryTokens(
            start + whole_number(future, "num_bins"),
            whole_number(history, "num_bins", 1000),
            POINTS,
            (low[0], low[1], low[2]),
            (high[0], high[1], high[2]),
        ),
        reasoning_tokens=MOST_REASONING,
        temperature=TEMPERATURE,
        top_p=TOP_P,
        max_acceleration=_most(space, "accel_bounds", 9.8),
        max_curvature=_most(space, "curvature_bounds", 0.33),
    )


def _most(space: Mapping[str, Any], key: str, default: float) -> float:
    low, high = numbers(space, key, (-default, default))
    if low != -high or high < 0:
        raise CheckpointError(f"config.json: {key} is {[low, high]}; want the same limit either way.")
    return high


ALPAMAYO = PolicyFamily(
    "alpamayo",
    ("alpamayo_r1",),
    parse,
    stored_name,
    may_be_left_out,
    {ACTION_GRAPH_FILE: alpamayo.build_action},
    manifest,
    language,
)
