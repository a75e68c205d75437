"""Calls that a model must make: a guide under which its answer is nothing but valid calls of given tools."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import RequestError
from ..json_values import shown
from .guide_grammar import Guide, GuideKind
from .request import LLMGenerationRequest, Request
from .tool_calls import HERMES, LLAMA3, MISTRAL, ToolFormat

AUTO, REQUIRED = "auto", "required"
# How a call begins and ends around its arguments; {} stands for the name.
_AROUND = {
    HERMES.name: ('<tool_call>\n{"name": {}, "arguments": ', "}\n</tool_call>"),
    LLAMA3.name: ('{"name": {}, "parameters": ', "}"),
    MISTRAL.name: ('[TOOL_CALLS][{"name": {}, "arguments": ', "}]"),
}


def tool_guide(
    tools: Sequence[Mapping[str, Any]], form: ToolFormat, choice: str, *, parallel: bool = True
) -> Guide | None:
    """The guide for ``tool_choice``: None for auto; one call or more for required; one of a tool for its name.

    One call at most where they are not to be ``parallel``.

    :raises RequestError: no tool has that name.
    """
    if choice == AUTO:
        return None
    functions = [tool.get("function", tool) for tool in tools]
    names = [function["name"] for function in functions]
    if choice != REQUIRED and choice not in names:
        known = ", ".join(names) or "no tool is given"
        raise RequestError(f"tool_choice is {shown(choice)}; want {AUTO}, {REQUIRED}, or the name of a tool ({known}).")
    begin, end = _AROUND[form.name]
    structures = [
        {
            "begin": begin.replace("{}", json.dumps(function["name"], ensure_ascii=False), 1),
            "schema": _parameters(function),
            "end": end,
        }
        for function in functions
        if choice in (REQUIRED, function["name"])
    ]
    if not structures:
        raise RequestError("tool_choice is required and no tool is given; give one, or leave it out.")
    content = {
        "structures": structures,
        "triggers": [begin.split("{}")[0]],
        "at_least_one": True,
        "stop_after_first": choice != REQUIRED or form is not HERMES or not parallel,
    }
    return Guide(GuideKind.STRUCTURAL_TAG, json.dumps(content, ensure_ascii=False))


def with_tool_choice(request: LLMGenerationRequest, form: ToolFormat | None) -> tuple[Request, ...]:
    """The sequences of a request under the guide of its ``tool_choice``.

    :raises RequestError: no tool is given, none has that name, or a sequence has another guide.
    """
    items = tuple(request.requests)
    if request.tool_choice == AUTO:
        return items
    guide = tool_guide(request.tools, form or HERMES, request.tool_choice, parallel=request.parallel_tool_calls)
    if any(item.guided_decoding not in (None, guide) for item in items):
        raise RequestError(
            f"tool_choice is {shown(request.tool_choice)} and a sequence has a guide of its own; leave one out."
        )
    return tuple(dataclasses.replace(item, guided_decoding=guide) for item in items)


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of the arguments, which are an object and have no other members than those that are described.

    :raises RequestError: they are something else, which no call could hold.
    """
    schema = {"type": "object", **(function.get("parameters") or {})}
    if schema["type"] != "object":
        raise RequestError(
            f"the parameters of {shown(function['name'])} are of the type {shown(schema['type'])}; want object."
        )
    return {"additionalProperties": False, **schema} if "properties" in schema else schema
