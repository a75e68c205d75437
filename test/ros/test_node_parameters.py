from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import rclpy
from lifecycle_msgs.msg import Transition
from node_bench import FAKE, NodeBench
from rclpy.context import Context
from rclpy.parameter import Parameter

from edgellm_ros.errors import EdgeLLMError, RefusalCode
from edgellm_ros.ros.lifecycle_node import EdgeLLMNode
from edgellm_ros.ros.parameter_schema import ParameterEffect, ParameterType, schema


@pytest.fixture
def bench(start_node: Callable[..., NodeBench]) -> NodeBench:
    return start_node(active=False)


def test_every_parameter_is_described_as_the_schema_says(bench: NodeBench) -> None:
    for definition in schema().definitions:
        described = bench.describe(definition.name)
        assert described.description == definition.description
        assert definition.effect.value in described.additional_constraints
        assert described.read_only is (definition.effect is ParameterEffect.START)
        if definition.type is ParameterType.INT:
            (limits,) = described.integer_range
            assert (limits.from_value, limits.to_value) == (definition.minimum, definition.maximum)
        if definition.type is ParameterType.DOUBLE:
            (limits,) = described.floating_point_range
            assert (limits.from_value, limits.to_value) == (definition.minimum, definition.maximum)
        for choice in definition.choices:
            assert choice in described.additional_constraints
        value = bench.get(definition.name)
        if definition.name not in FAKE:
            assert definition.convert(value) == definition.default


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"generation__temperature": 1}, ""),
        ({"generation__temperature": 0}, ""),
        ({"generation__temperature": -0.1}, "generation.temperature"),
        ({"generation__temperature": 3}, "want a number from 0 to 2"),
        ({"generation__temperature": math.nan}, "generation.temperature"),
        ({"generation__temperature": "1"}, "of type str; want a number"),
        ({"generation__top_p": 0.0}, "above 0"),
        ({"generation__seed": "seven"}, "of type str; want a whole number"),
        ({"generation__seed": -2}, "generation.seed"),
        ({"generation__stop": []}, ""),
        ({"generation__stop": ["a", ""]}, "empty text"),
        ({"prompt__on_busy": "wait"}, "one of queue, replace, reject, drop_oldest"),
        ({"prompt__queue_size": 65}, "prompt.queue_size"),
        ({"autostart": True}, "autostart"),
    ],
    ids=str,
)
def test_values_are_taken_or_refused_with_a_sentence(bench: NodeBench, changes: dict[str, object], reason: str) -> None:
    (name,) = changes
    before = bench.get(name.replace("__", "."))
    (found,) = bench.set(**changes)
    assert bool(found) == bool(reason) and reason in found
    if reason:
        assert bench.get(name.replace("__", ".")) == before


def test_a_parameter_cannot_be_removed(bench: NodeBench) -> None:
    (reason,) = bench.set(generation__seed=None)
    assert "cannot be removed" in reason and bench.get("generation.seed") == -1


@pytest.mark.parametrize(
    "bad", [{"generation__top_p": 7.0}, {"prompt__on_busy": "panic"}, {"generation__stop": [""]}, {"autostart": True}]
)
def test_of_two_parameters_set_atomically_neither_is_applied_when_one_is_bad(
    bench: NodeBench, bad: dict[str, object]
) -> None:
    bench.set(generation__temperature=0.7, generation__top_p=0.9)
    (name,) = bad
    before = bench.get(name.replace("__", "."))
    assert bench.set_atomically(generation__temperature=0.5, **bad)
    assert bench.get(name.replace("__", ".")) == before
    assert bench.get("generation.temperature") == 0.7
    assert bench.set_atomically(generation__temperature=0.5, generation__top_p=0.5) == ""
    assert (bench.get("generation.temperature"), bench.get("generation.top_p")) == (0.5, 0.5)


def test_an_unknown_parameter_is_refused(bench: NodeBench) -> None:
    request_reason = bench.set(generation__temprature=1.0)[0]
    assert request_reason and not bench.node.has_parameter("generation.temprature")


def construct(arguments: list[str] | None = None, **values: object) -> None:
    context = Context()
    rclpy.init(args=arguments or [], context=context)
    try:
        overrides = [Parameter(name.replace("__", "."), value=value) for name, value in values.items()]
        EdgeLLMNode(context=context, parameter_overrides=overrides).destroy_node()
    finally:
        rclpy.try_shutdown(context=context)


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"generation__temperature": "hot"}, "generation.temperature is 'hot' of type str; want a number"),
        ({"generation__temperature": 3.0}, "generation.temperature"),
        ({"engine__threads": 1.5}, "engine.threads is 1.5 of type float; want a whole number"),
        ({"engine__directory": 7}, "engine.directory is 7 of type int; want text"),
        ({"prompt__on_busy": "never"}, "prompt.on_busy is 'never'; want one of"),
    ],
    ids=str,
)
def test_a_bad_value_at_start_is_refused_in_one_sentence(values: dict[str, object], part: str) -> None:
    with pytest.raises(EdgeLLMError) as caught:
        construct(**values)
    assert part in str(caught.value) and caught.value.code is RefusalCode.BAD_PARAMETER


def test_a_value_for_no_parameter_is_told_with_the_nearest_name(start_node: Callable[..., NodeBench]) -> None:
    bench = start_node({"generation.temprature": 0.1}, active=False)
    (sentence,) = bench.node.parameters.unknown_overrides()
    assert "generation.temprature" in sentence and "did you mean generation.temperature?" in sentence


def test_the_shipped_parameter_file_is_taken_whole(start_node: Callable[..., NodeBench]) -> None:
    from edgellm_ros.resources import resource_path

    bench = start_node(
        arguments=["--ros-args", "--params-file", str(resource_path("config/edgellm.yaml"))], active=False
    )
    assert bench.node.parameters.unknown_overrides() == []
    assert bench.node.parameters.settings().generation.temperature == 0.7


@pytest.mark.parametrize("text", ["[]", '["a", "b"]'])
def test_a_list_from_the_command_line_is_taken(start_node: Callable[..., NodeBench], text: str) -> None:
    bench = start_node(arguments=["--ros-args", "-p", f"generation.stop:={text}"], active=False)
    assert bench.node.parameters.settings().generation.stop == (() if text == "[]" else ("a", "b"))


def test_settings_of_cameras_are_refused_where_the_engine_takes_no_images(start_node: Callable[..., NodeBench]) -> None:
    bench = start_node()
    assert bench.set(images__max_age=2.0) == [
        "images.max_age is set but the engine takes no images; load an engine with vision or leave it at its default."
    ]
    assert bench.set(images__max_age=1.0) == [""]


def test_a_node_with_cameras_does_not_configure_an_engine_that_takes_no_images(
    start_node: Callable[..., NodeBench],
) -> None:
    bench = start_node({"cameras": ["front"]}, active=False)
    assert not bench.change(Transition.TRANSITION_CONFIGURE)
    assert "cameras is set but the engine takes no images" in bench.node.state.failure
