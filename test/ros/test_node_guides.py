from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from node_bench import NodeBench
from rclpy.context import Context
from rclpy.parameter import Parameter

from edgellm_ros.errors import EdgeLLMError
from edgellm_ros.ros.lifecycle_node import EdgeLLMNode

pytest.importorskip("llguidance")

SCHEMA = '{"type": "object", "properties": {"open": {"type": "boolean"}}, "required": ["open"]}'


@pytest.fixture
def bench(start_node: Callable[..., NodeBench]) -> NodeBench:
    return start_node({"fake.answer": "I will do that at once."})


def test_answers_have_the_form_that_the_parameters_ask_for(bench: NodeBench) -> None:
    bench.set(generation__temperature=0.0)
    assert bench.answer("go")[0] == "I will do that at once."
    assert bench.set_atomically(guide__kind="choice", guide__text="left\nright") == ""
    text, report = bench.answer("go")
    assert text in ("left", "right") and report["setting.guide.kind"] == "choice"
    assert report["setting.guide.text"] == "(10 characters)"
    bench.set(guide__kind="none")
    bench.set(guide__text=SCHEMA)
    bench.set(guide__kind="json_schema")
    text, _ = bench.answer("go")
    assert isinstance(json.loads(text)["open"], bool)
    bench.set(guide__kind="none")
    assert bench.answer("go")[0] == "I will do that at once."


def test_a_guide_is_checked_when_it_is_set(bench: NodeBench) -> None:
    (found,) = bench.set(guide__kind="regex")
    assert "has an empty text" in found and bench.get("guide.kind") == "none"
    found = bench.set_atomically(guide__kind="regex", guide__text="a(b")
    assert "character 2: unclosed group" in found
    assert bench.set(guide__text="a(b)") == [""]
    assert bench.set(guide__kind="regex") == [""]
    (found,) = bench.set(guide__text="a(b")
    assert "character 2" in found and bench.get("guide.text") == "a(b)"


def test_a_bad_guide_at_start_is_told_in_one_sentence() -> None:
    context = Context()
    context.init()
    overrides = [Parameter("guide.kind", value="ebnf"), Parameter("guide.text", value="start: foo")]
    try:
        with pytest.raises(EdgeLLMError, match="unknown name"):
            EdgeLLMNode(context=context, parameter_overrides=overrides)
    finally:
        context.shutdown()
