"""Tools that are no tools, or have no end: refused with a sentence, whether a template looks at them or a guide."""

from __future__ import annotations

import json

import pytest
from runtime_helpers import fake_runtime, request

from edgellm_ros.chat_template import ChatTemplate
from edgellm_ros.errors import RequestError
from edgellm_ros.runtime.conversation import check_tools
from edgellm_ros.runtime.guide_grammar import Guide, GuideKind, check_guide
from edgellm_ros.runtime.request import LLMGenerationResponse, Request

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}<tool_call>{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
)


def doubled(levels: int) -> object:
    """Few objects; written out they would fill any memory."""
    value: object = "x"
    for _ in range(levels):
        value = [value, value]
    return value


def tree() -> dict:
    """A schema of nodes with two children, by reference to itself and not by name."""
    node: dict = {"type": "object"}
    node["properties"] = {"left": node, "right": node}
    return node


HOSTILE = {
    "a number": 5, "nothing": None, "no name": {"x": 1}, "a function of five": {"function": 5}, "a list": ["f"],
    "a list for a name": {"name": ["f"]}, "bytes": {"name": "f", "parameters": {"x": b"x"}},
    "a list of parameters": {"name": "f", "parameters": [1]}, "five parameters": {"name": "f", "parameters": 5},
    "a tree of itself": {"name": "f", "parameters": tree()}, "a set": {"name": "f", "parameters": {"enum": {1}}},
    "doubled forty times": {"name": "f", "parameters": {"enum": doubled(40)}},
}  # fmt: skip


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    with fake_runtime(tmp_path_factory.mktemp("fake") / "engine") as made:
        made.tokenizer.chat_template = ChatTemplate(TEMPLATE)
        yield made


@pytest.mark.parametrize("choice", ["auto", "required", "f"])
@pytest.mark.parametrize("given", ["messages", "ids"])
@pytest.mark.parametrize("tool", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_tool_is_refused_with_a_sentence(runtime, tool, given, choice):
    asked = request("hi", tools=[tool], tool_choice=choice)
    if given == "ids":
        asked.requests, asked.pre_tokenized_input_ids = (Request(),), [[65]]
    assert not runtime.handle_request(asked, LLMGenerationResponse())
    message = runtime.last_refusal.message
    assert message.startswith("tool 0 is ") and message.endswith(".") and "\n" not in message and len(message) < 300


def test_arguments_that_are_no_object_cannot_be_required(runtime):
    """No call could hold them: the answer would be text."""
    tool = {"name": "f", "parameters": {"type": "string"}}
    assert not runtime.handle_request(request("hi", tools=[tool], tool_choice="required"), LLMGenerationResponse())
    assert runtime.last_refusal.message == "the parameters of 'f' are of the type 'string'; want object."


def test_a_large_tool_is_one():
    check_tools([{"name": "f", "parameters": {"properties": {"to": {"enum": [f"place {i}" for i in range(5000)]}}}}])


@pytest.mark.parametrize("schema", [{"enum": doubled(40)}, tree()], ids=["doubled", "tree"])
def test_a_schema_without_end_is_refused(schema):
    with pytest.raises(RequestError, match=r"the JSON schema (has more than 131072 bytes|cannot be written)"):
        Guide.json_schema(schema)


def test_options_of_a_structure_that_are_none_are_left_out():
    pytest.importorskip("llguidance")
    part = {"begin": "<f>", "schema": {"type": "object", "x-guidance": 5}, "end": "</f>"}
    check_guide(Guide(GuideKind.STRUCTURAL_TAG, json.dumps({"structures": [part], "triggers": ["<f"]})))
