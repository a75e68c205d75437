"""Rotary frequencies equal those of transformers for published configurations, all scalings included."""

from __future__ import annotations

import numpy as np
import pytest
from reference_files import read

from edgellm_ros.builder.families.rope_kinds import rope_settings
from edgellm_ros.builder.rope import resolve_rope
from edgellm_ros.engine_format import RopeConfig

MODELS = read("rope.json")["models"]
KINDS = [(model, kind) for model in MODELS for kind in model["rope"]]
ONE_KIND = [model for model in MODELS if list(model["rope"]) == ["default"]]


def check(rope: RopeConfig, wanted: dict) -> None:
    assert len(rope.inverse_frequency) == len(wanted["inverse_frequency"])
    np.testing.assert_allclose(rope.inverse_frequency, wanted["inverse_frequency"], rtol=3e-7, atol=0)
    assert rope.scale == pytest.approx(wanted["scale"], rel=1e-9)


@pytest.mark.parametrize(("model", "kind"), KINDS, ids=[f"{model['name']}-{kind}" for model, kind in KINDS])
def test_frequencies_equal_those_of_transformers(model, kind):
    wanted = model["rope"][kind]
    rope = resolve_rope(
        wanted["rope_theta"], model["head_dim"], model["max_position_embeddings"], wanted["rope_scaling"]
    )
    check(rope, wanted)


@pytest.mark.parametrize("model", ONE_KIND, ids=[model["name"] for model in ONE_KIND])
def test_published_keys_give_the_same_base_and_scaling(model):
    base, scaling = rope_settings(model["config"])
    rope = resolve_rope(base, model["head_dim"], model["config"]["max_position_embeddings"], scaling)
    check(rope, model["rope"]["default"])


def test_scalings_are_told_apart():
    llama = {model["name"]: model["rope"]["default"]["inverse_frequency"] for model in ONE_KIND}
    assert llama["Llama-3.1-8B"][-1] != llama["Llama-3.2-3B"][-1]
