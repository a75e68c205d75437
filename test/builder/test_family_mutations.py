"""Whatever is broken in one layer, the comparison with the reference notices: weights, mask, window, scale, caps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from family_engines import LIMITS, LOWERINGS, ROWS, TOLERANCE, checkpoint, distance, wanted_logits
from seam_runner import ragged_logits
from tiny_families import TINY_FAMILIES, WINDOW

import edgellm_ros.builder.build_plan as build_plan
from edgellm_ros.builder.build import build_engine
from edgellm_ros.builder.families import read_config
from edgellm_ros.builder.families.base import DecoderConfig
from edgellm_ros.builder.families.decoder import decoder_tensors
from edgellm_ros.builder.lowerings import base, tensorrt, tensorrt_legacy
from edgellm_ros.builder.weights import Weight, checkpoint_weight, scaled
from edgellm_ros.engine_format import RopeConfig
from edgellm_ros.errors import BackendError

NOTICED = 10 * TOLERANCE
LAYER = 2
EVERY_TENSOR = ("llama-3", "gemma3")  # between them they have every kind of tensor

Mutation = Callable[[DecoderConfig], DecoderConfig]


def layer_changed(**changes: Any) -> Mutation:
    """One layer's plan is another."""

    def mutate(config: DecoderConfig) -> DecoderConfig:
        layers = list(config.layers)
        index = next(i for i, plan in enumerate(layers) if i >= 1 and (plan.window or "window" not in changes))
        layers[index] = replace(layers[index], **changes)
        return replace(config, layers=tuple(layers))

    return mutate


def ropes_swapped(config: DecoderConfig) -> DecoderConfig:
    first, second = config.rope
    return replace(config, rope={first: config.rope[second], second: config.rope[first]})


def rope_of_another_base(config: DecoderConfig) -> DecoderConfig:
    kinds = {
        kind: RopeConfig(tuple(value * 1.1 for value in rope.inverse_frequency)) for kind, rope in config.rope.items()
    }
    return replace(config, rope=kinds)


def half_of(key: str) -> Mutation:
    return lambda config: replace(config, **{key: getattr(config, key) / 2})


def without(key: str) -> Mutation:
    return lambda config: replace(config, **{key: 0.0})


EVERY: dict[str, Mutation] = {
    "scores half as large": half_of("attention_scale"),
    "another rope base": rope_of_another_base,
    "another norm epsilon": lambda config: replace(config, norm_epsilon=0.1),
    "the other activation": lambda config: replace(
        config, activation="silu" if config.activation == "gelu_tanh" else "gelu_tanh"
    ),
    "one layer that sees four keys": lambda config: replace(
        config, layers=(*config.layers[:LAYER], replace(config.layers[LAYER], window=4), *config.layers[LAYER + 1 :])
    ),
    "one layer without positions": lambda config: layer_changed(
        rope=None if config.layers[1].rope else next(iter(config.rope))
    )(config),
}
WINDOWED: dict[str, Mutation] = {
    "one layer's window one short": layer_changed(window=WINDOW - 1),
    "one layer's window one long": layer_changed(window=WINDOW + 1),
    "one layer's window gone": layer_changed(window=0),
}
OWN: dict[str, dict[str, Mutation]] = {
    "gemma": {"no norm offset": without("norm_offset"), "embeddings at half scale": half_of("embedding_scale")},
    "gemma2": {
        "no cap on scores": without("attention_softcap"),
        "no cap on logits": without("logit_softcap"),
        "no norm offset": without("norm_offset"),
    },
    "gemma3": {
        "ropes of the layer types swapped": ropes_swapped,
        "one sliding layer turned as a full one": layer_changed(rope="full"),
    },
}


def cases() -> list[Any]:
    found = []
    for family in TINY_FAMILIES:
        windowed = any(plan.window for plan in read_config(TINY_FAMILIES[family]).layers)
        for name, mutation in {**EVERY, **(WINDOWED if windowed else {}), **OWN.get(family, {})}.items():
            for lowering in LOWERINGS:  # the quick tests take one lowering after the other, the long ones all of them
                label = f"{family}-{lowering}-{name.replace(' ', '-')}"
                quick = lowering == LOWERINGS[len(found) // len(LOWERINGS) % len(LOWERINGS)]
                marks = () if quick else pytest.mark.slow
                found.append(pytest.param(family, lowering, mutation, id=label, marks=marks))
    return found


@pytest.fixture
def broken_distance(tmp_path, monkeypatch):
    """Builds an engine under a mutation, and says how far it is from the reference of the sound checkpoint."""

    def measure(family: str, lowering: str, mutation: Mutation | None = None) -> float:
        if mutation is not None:
            monkeypatch.setattr(build_plan, "read_config", lambda config: mutation(read_config(config)))
        path = build_engine(checkpoint(family), tmp_path / "engine", lowering=lowering, limits=LIMITS)
        try:
            found = ragged_logits(path, ROWS)
        except BackendError as error:  # some faults are so plain that the engine is not even opened
            assert "the probe of this engine failed" in str(error)
            return float("inf")
        return distance(found, wanted_logits(family))

    return measure


@pytest.mark.parametrize(("family", "lowering", "mutation"), cases())
def test_a_broken_configuration_is_noticed(broken_distance, family, lowering, mutation):
    assert broken_distance(family, lowering, mutation) > NOTICED


def tensors_of_a_layer() -> list[Any]:
    found = []
    for family in TINY_FAMILIES:
        for name in decoder_tensors(read_config(TINY_FAMILIES[family])):
            if f".layers.{LAYER}." in name or ".layers." not in name:
                marks = () if family in EVERY_TENSOR else pytest.mark.slow
                found.append(pytest.param(family, name, id=f"{family}-{name}", marks=marks))
    return found


def uneven(weight: Weight) -> Weight:
    """Every other row a tenth too large: a change that no norm behind it evens out."""

    def read(start: int, stop: int) -> np.ndarray:
        values = weight.read(start, stop)
        factors = np.where(np.arange(start, stop) % 2, np.float32(1.1), np.float32(1.0))
        return values * factors.reshape(-1, *[1] * (values.ndim - 1))

    return dataclasses.replace(weight, read=read)


@pytest.mark.parametrize(("family", "name"), tensors_of_a_layer())
def test_one_tensor_that_is_a_tenth_off_in_places_is_noticed(broken_distance, monkeypatch, family, name):
    def read(opened: Any, wanted: str) -> Weight:
        weight = checkpoint_weight(opened, wanted)
        return uneven(weight) if wanted == name else weight

    monkeypatch.setattr(build_plan, "checkpoint_weight", read)
    assert broken_distance(family, "onnxruntime") > NOTICED


def _one_key_more(graph: Any) -> Any:
    one = graph.constant(np.array(1, dtype=np.int32))
    return graph.add(base.query_positions(graph), one)


@pytest.mark.parametrize("lowering", ["tensorrt", "tensorrt_legacy"])
@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_a_mask_that_lets_a_query_see_the_next_key_is_noticed(broken_distance, monkeypatch, family, lowering):
    honest = base.visible

    def open_mask(graph: Any, key_positions: Any, window: int) -> Any:
        graph.remembered["query_positions"], kept = _one_key_more(graph), base.query_positions(graph)
        seen = honest(graph, key_positions, window + 1 if window else 0)
        graph.remembered["query_positions"] = kept
        return seen

    for module in (tensorrt, tensorrt_legacy):
        monkeypatch.setattr(module, "visible", open_mask)
    assert broken_distance(family, lowering) > NOTICED


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_one_layer_whose_scores_are_half_as_large_is_noticed(broken_distance, monkeypatch, family):
    def halved(weight: Weight, factor: float) -> Weight:
        ours = factor != 1.0 and weight.name.startswith(f"model.layers.{LAYER}.")
        return scaled(weight, factor / 2 if ours else factor)

    monkeypatch.setattr("edgellm_ros.builder.families.decoder.scaled", halved)
    assert broken_distance(family, "onnxruntime") > NOTICED
