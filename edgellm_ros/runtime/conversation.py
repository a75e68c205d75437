"""Messages and tools as chat templates take them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import RequestError
from ..json_values import is_small, shown
from .media_marks import MediaMarks
from .request import Message

MOST_NESTING = 64  # of tools and of arguments of calls, which templates go through by recursion
MOST_VALUES = 100_000  # in one of them
Mark = Callable[[str, bool], str]  # (text, whether it is the model's own turn) -> the text as the template gets it


def template_messages(messages: Sequence[Message], mark: Mark, media: MediaMarks) -> list[dict[str, Any]]:
    """One dictionary per message; what a message does not have is absent."""
    values = []
    for message in messages:
        value: dict[str, Any] = {"role": mark(message.role, False), "content": media.content(message, mark)}
        if message.reasoning is not None:
            value["reasoning_content"] = mark(message.reasoning, False)
        if message.tool_calls:
            value["tool_calls"] = [
                {
                    "id": mark(call.id, False),
                    "type": "function",
                    "function": {
                        "name": mark(call.name, False),
                        "arguments": _marked(_arguments(call.arguments), mark),
                    },
                }
                for call in message.tool_calls
            ]
        for key in ("tool_call_id", "name"):
            if getattr(message, key):
                value[key] = mark(getattr(message, key), False)
        values.append(value)
    return values


def template_tools(tools: Sequence[Mapping[str, Any]], mark: Mark) -> list[dict[str, Any]] | None:
    """The tools, each as ``{"type": "function", "function": {"name": …}}``; None where there are none.

    :raises RequestError: as ``check_tools``.
    """
    check_tools(tools)
    return [
        _marked(tool if "function" in tool else {"type": "function", "function": dict(tool)}, mark) for tool in tools
    ] or None


def check_tools(tools: Sequence[Mapping[str, Any]]) -> int:
    """Characters of all tools as JSON.

    :raises RequestError: one of them is no function with a name, or holds too much, or what JSON does not.
    """
    size = 0
    for place, tool in enumerate(tools):
        if not is_small(tool, MOST_NESTING, MOST_VALUES):
            raise RequestError(
                f"tool {place} is nested more than {MOST_NESTING} deep or holds more than {MOST_VALUES} values; make "
                "it smaller."
            )
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        parameters = function.get("parameters") if isinstance(function, Mapping) else None
        described = isinstance(parameters, Mapping) or parameters is None
        count = _json_length(tool)
        if not isinstance(name, str) or not name or not described or not count:
            wanted = '{"type": "function", "function": {"name": …, "parameters": …}}'
            raise RequestError(f"tool {place} is {shown(tool)}; want {wanted}.")
        size += count
    return size


def _json_length(value: Any) -> int:
    """Characters of a value as JSON; 0 where it cannot be written."""
    try:
        return len(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        return 0


def _arguments(text: str) -> Any:
    """Templates write arguments themselves, so they get the values."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return values if is_small(values, MOST_NESTING, MOST_VALUES) else text


def _marked(value: Any, mark: Mark) -> Any:
    if isinstance(value, str):
        return mark(value, False)
    if isinstance(value, Mapping):
        return {mark(str(key), False): _marked(entry, mark) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(entry, mark) for entry in value]
    return value
