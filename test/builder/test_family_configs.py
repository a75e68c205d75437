"""Configurations as they are published: what each family reads from them, in the old spelling and the new."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_configs import PARSED, REFUSED
from tiny_families import TINY_FAMILIES

from edgellm_ros.builder.families import read_config
from edgellm_ros.builder.families.base import DecoderConfig
from edgellm_ros.errors import CheckpointError

FOLDER = os.environ.get("EDGELLM_HUB_CONFIGS", "")


def facts(config: DecoderConfig) -> dict[str, Any]:
    """Everything that decides the graph and the answers, apart from the name."""
    content = dataclasses.asdict(config)
    return {key: content[key] for key in content if key not in ("name", "extra")}


@pytest.mark.parametrize("name", PARSED)
def test_a_published_configuration_gives_the_decoder_it_describes(name):
    row = PARSED[name]
    config = read_config(row["config"])
    found = {key: getattr(config, key) for key in row["wanted"]}
    assert found == row["wanted"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_built_is_refused_with_its_name_and_a_reason(name):
    row = REFUSED[name]
    with pytest.raises(CheckpointError, match=row["sentence"]):
        read_config(row["config"])


@pytest.mark.parametrize("name", PARSED)
def test_keys_about_storage_and_training_change_nothing(name):
    config = PARSED[name]["config"]
    noise = {"torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True, "attention_dropout": 0.0}
    newer = {"dtype": "bfloat16", "transformers_version": "5.3.0", "initializer_range": 0.02, "pretraining_tp": 1}
    assert facts(read_config({**config, **noise})) == facts(read_config({**config, **newer}))


def renamed(config: dict[str, Any]) -> dict[str, Any]:
    """A flat configuration as transformers 5 spells it."""
    config = dict(config)
    theta = config.pop("rope_theta", None)
    scaling = config.pop("rope_scaling", None) or {"rope_type": "default"}
    local = config.pop("rope_local_base_freq", None)
    full = {**scaling, **({} if theta is None else {"rope_theta": theta})}
    if config["architectures"] == ["Gemma3ForCausalLM"]:
        sliding = {"rope_type": "default", **({} if local is None else {"rope_theta": local})}
        config["rope_parameters"] = {"full_attention": full, "sliding_attention": sliding}
    else:
        config["rope_parameters"] = full
    plans = read_config(config).layers
    config["layer_types"] = ["sliding_attention" if plan.window else "full_attention" for plan in plans]
    for key in ("sliding_window_pattern", "_sliding_window_pattern"):
        config.pop(key, None)
    return config


FLAT = [name for name in PARSED if PARSED[name]["config"]["architectures"][0].endswith("ForCausalLM")]


@pytest.mark.parametrize("name", FLAT)
def test_the_spelling_of_transformers_5_means_the_same(name):
    config = PARSED[name]["config"]
    assert facts(read_config(renamed(config))) == facts(read_config(config))


def test_a_window_that_no_text_outgrows_is_none():
    config = PARSED["Qwen2.5 0.5B"]["config"]
    windowed = read_config({**config, "use_sliding_window": True, "max_window_layers": 21, "sliding_window": 4096})
    assert [plan.window for plan in windowed.layers] == [0] * 21 + [4096] * 3
    assert not read_config({**config, "use_sliding_window": True, "sliding_window": 32768}).window


def test_every_fourth_layer_of_smollm3_has_no_positions_where_no_list_says_which():
    config = {**TINY_FAMILIES["smollm3"], "num_hidden_layers": 9, "no_rope_layers": None}
    assert [layer.rope is None for layer in read_config(config).layers] == [False, False, False, True] * 2 + [False]


def test_rope_kinds_of_gemma_3_keep_their_own_base_and_scaling():
    config = read_config(PARSED["Gemma 3 4B, its text part"]["config"])
    full, sliding = (np.array(config.rope[kind].inverse_frequency) for kind in ("full", "sliding"))
    exponents = -np.arange(0, 256, 2) / 256
    assert np.allclose(full, 1e6**exponents / 8, rtol=1e-5)
    assert np.allclose(sliding, 1e4**exponents, rtol=1e-5)


CHANGES = {
    "a head size of zero": ({"head_dim": 0}, "head_dim is 0; want a whole number from 1"),
    "an odd head size": ({"head_dim": 63}, "head_dim is 63; want an even number"),
    "no hidden size": ({"hidden_size": None}, "lacks hidden_size"),
    "key heads that do not divide": ({"num_key_value_heads": 4}, "14 is not a multiple of .* 4"),
    "another activation": ({"hidden_act": "relu"}, "hidden_act is 'relu'; want 'silu'"),
    "text where a switch belongs": ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
    "too few layer types": (
        {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["full_attention"]},
        "layer_types has 1 entries; want one for each of 24 layers",
    ),
    "a strange layer type": (
        {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["chunked_attention"] * 24},
        "layer_types holds 'chunked_attention'",
    ),
    "a partial rotation": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; want 1.0"),
    "an unknown rope": ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "'longrope'"),
    "ropes that differ by layer type": (
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        },
        "differ between layer types",
    ),
    "attention both ways": ({"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    "positions of three axes": ({"use_mrope": True}, "use_mrope is True"),
    "quantised weights": ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config .method 'gptq'"),
    "a pad token beyond the vocabulary": ({"pad_token_id": 999999}, "pad_token_id is 999999; want an id below"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_value_that_is_not_built_is_named_with_what_was_wanted(change):
    keys, sentence = CHANGES[change]
    with pytest.raises(CheckpointError, match=sentence):
        read_config({**PARSED["Qwen2.5 0.5B"]["config"], **keys})


def test_gemma_3_refuses_one_rope_for_both_layer_types_and_capped_scores():
    config = PARSED["Gemma 3 1B"]["config"]
    with pytest.raises(CheckpointError, match="want one object each for full_attention and sliding_attention"):
        read_config({**config, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})
    with pytest.raises(CheckpointError, match=r"attn_logit_softcapping is 50\.0; want None"):
        read_config({**config, "attn_logit_softcapping": 50.0})


@pytest.mark.skipif(not FOLDER, reason="EDGELLM_HUB_CONFIGS names no folder of published configurations")
def test_every_configuration_of_a_folder_parses_or_is_refused_in_one_sentence():
    parsed, refused = {}, {}
    for path in sorted(Path(FOLDER).glob("*/config*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        try:
            parsed[path.parent.name] = read_config(content).family
        except CheckpointError as error:
            refused[path.parent.name] = str(error)
    for name, row in sorted(parsed.items()):
        print(f"{name}: {row}")
    for name, sentence in sorted(refused.items()):
        print(f"{name}: refused, {sentence}")
    assert parsed
    for name, sentence in refused.items():
        assert "config.json" in sentence and "\n" not in sentence, name
        architectures = json.loads(next(Path(FOLDER).glob(f"{name}/config*.json")).read_text()).get("architectures")
        named = any(
            word in sentence for word in [*(architectures or []), "quantiz", "draft_vocab_size", "policy", "None"]
        )
        assert named, f"{name}: {sentence}"


STRANGE = (
    None,
    "x",
    -1,
    0,
    3,
    0.5,
    1e30,
    float("nan"),
    float("inf"),
    True,
    [],
    [1],
    ["x"] * 99,
    {},
    {"rope_type": 7},
    1 << 70,
)


@pytest.mark.parametrize("name", PARSED)
def test_a_strange_value_under_any_key_parses_or_is_refused_in_one_sentence(name):
    config = PARSED[name]["config"]
    nested = [key for key in ("text_config", "llm_config") if key in config]
    keys = [*config, "rope_parameters", "rope_scaling", "layer_types", "head_dim", "sliding_window", "eos_token_id"]
    inner = config[nested[0]] if nested else {}
    for key, value in ((key, value) for key in {*keys, *inner} for value in STRANGE):
        changed = {**config, **{part: {**config[part], key: value} for part in nested if key not in config}}
        if not nested or key in config:
            changed[key] = value
        try:
            read_config(changed)
        except CheckpointError as error:
            assert "\n" not in str(error), (key, value)
