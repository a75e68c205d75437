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

import edgellm_ros.builder.build as build
from edgellm_ros.builder.families import read_config
from edgellm_ros.builder.families.base import DecoderConfig
from edgellm_ros.builder.families.decoder import decoder_tensors
from edgellm_ros.builder.lowerings import base, onnxruntime, tensorrt, tensorrt_legacy
from edgellm_ros.builder.weights import Weight, checkpoint_weight, scaled
from edgellm_ros.engine_format import RopeConfig

NOTICED = 10 * TOLERANCE
LAYER = 2

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
            found.append(pytest.param(family, mutation, id=f"{family}-{name.replace(' ', '-')}"))
    return found


@pytest.fixture
def broken_distance(tmp_path, monkeypatch):
    """Builds an engine under a mutation, and says how far it is from the reference of the sound checkpoint."""

    def measure(family: str, lowering: str, mutation: Mutation | None = None) -> float:
        if mutation is not None:
            monkeypatch.setattr(build, "read_config", lambda config: mutation(read_config(config)))
        path = build.build_engine(checkpoint(family), tmp_path / "engine", lowering=lowering, limits=LIMITS)
        return distance(ragged_logits(path, ROWS), wanted_logits(family))

    return measure


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize(("family", "mutation"), cases())
def test_a_broken_configuration_is_noticed(broken_distance, family, mutation, lowering):
    assert broken_distance(family, lowering, mutation) > NOTICED


def tensors_of_a_layer() -> list[Any]:
    found = []
    for family in TINY_FAMILIES:
        for name in decoder_tensors(read_config(TINY_FAMILIES[family])):
            if f".layers.{LAYER}." in name or ".layers." not in name:
                found.append(pytest.param(family, name, id=f"{family}-{name}"))
    return found


@pytest.mark.parametrize(("family", "name"), tensors_of_a_layer())
def test_one_tensor_that_is_off_by_a_twentieth_is_noticed(broken_distance, monkeypatch, family, name):
    """Key biases shift all scores of a query alike before rotation, so that one is broken by more."""
    factor = 2.0 if name.endswith("bias") else 1.05

    def read(opened: Any, wanted: str) -> Weight:
        weight = checkpoint_weight(opened, wanted)
        return dataclasses.replace(scaled(weight, factor), name=weight.name) if wanted == name else weight

    monkeypatch.setattr(build, "checkpoint_weight", read)
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
def test_a_length_that_hides_the_newest_key_is_noticed(broken_distance, monkeypatch, family):
    honest = onnxruntime.OnnxRuntimeLowering._lengths

    def short(self: Any, graph: Any, cache: Any) -> tuple[Any, Any]:
        last, total = honest(self, graph, cache)
        (last,) = graph.node("Sub", [last, graph.constant(np.array(1, dtype=np.int32))])
        (last,) = graph.node("Max", [last, graph.constant(np.array(0, dtype=np.int32))])
        return last, total

    monkeypatch.setattr(onnxruntime.OnnxRuntimeLowering, "_lengths", short)
    monkeypatch.setattr("edgellm_ros.backends.cpu.probe", lambda engine: engine.capabilities)
    assert broken_distance(family, "onnxruntime") > NOTICED
