"""Calls of tools in an answer, told apart from its text while it streams.

Text passes as soon as it cannot begin a call; a call comes out whole, when its last character has arrived. What turns
out to be no valid call stays text. Nothing depends on how the stream is cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import RefusalCode, RequestError
from ..json_values import shown
from .request import ToolCall
from .streaming import overlap

_ARGUMENTS = ("arguments", "parameters")
_SEPARATORS = " \t\r\n;"


@dataclass(frozen=True)
class ToolFormat:
    """How a family of models writes its calls.

    A call stands between ``opening`` and ``closing`` (empty: it ends where its JSON ends). ``bare`` models write
    nothing but JSON objects, with ``opening`` before them or without.
    """

    name: str
    opening: str
    closing: str = ""
    bare: bool = False


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>")  # Hermes, Qwen2.5, Qwen3, SmolLM2, SmolLM3
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]")
LLAMA3 = ToolFormat("llama3", "<|python_tag|>", bare=True)
FORMATS = {form.name: form for form in (HERMES, MISTRAL, LLAMA3)}


def format_of_template(source: str) -> ToolFormat | None:
    """The format that a chat template asks its model for; None where it knows no tools."""
    if "tools" not in source:
        return None
    for form in (HERMES, MISTRAL):
        if form.opening in source:
            return form
    return LLAMA3 if '"parameters"' in source or LLAMA3.opening in source else HERMES


def resolve_format(wanted: str, has_tools: bool, template_source: str) -> ToolFormat | None:
    """The format by its name, or by the chat template where tools are given; None where neither is.

    :raises RequestError: an unknown name, or tools that no template tells the model of.
    """
    form = FORMATS.get(wanted)
    if wanted and form is None:
        raise RequestError(f"tool_format is {shown(wanted)}; want one of {', '.join(FORMATS)}, or leave it empty.")
    if not has_tools:
        return form
    known = format_of_template(template_source)
    if known is None:
        raise RequestError(
            "tools are given, but no chat template tells this model of them; leave them out, or take another model.",
            RefusalCode.UNSUPPORTED,
        )
    return form or known


class ToolCallParser:
    """Feed text, get text and calls in order; one parser reads one answer."""

    def __init__(self, form: ToolFormat) -> None:
        self._form = form
        self._buffer = ""
        self._step: Callable[[], bool] = self._bare_start if form.bare else self._text
        self._call_end = _CallEnd(0, "")
        self._count = 0
        self._out: list[str | ToolCall] = []

    def feed(self, text: str) -> list[str | ToolCall]:
        """What is certain now that ``text`` has arrived."""
        self._buffer += text
        while self._step():
            pass
        return self._take()

    def finish(self) -> list[str | ToolCall]:
        """The rest: a call that is not complete is text, and so are the blanks that no call followed."""
        while self._step == self._tagged_call:
            # The JSON never ended, perhaps inside a string: the first closing tag ends it, and reading goes on behind.
            closing = self._form.closing
            end = self._buffer.find(closing, len(self._form.opening)) if closing else -1
            if end < 0:
                break
            self._end_call(end + len(closing))
            while self._step():
                pass
        behind_a_call = self._count and self._step in (self._between, self._bare_start)
        if not behind_a_call or self._buffer.strip(_SEPARATORS):
            self._emit(self._buffer)
        self._buffer = ""
        return self._take()

    def _take(self) -> list[str | ToolCall]:
        out, self._out = self._out, []
        return out

    def _emit(self, text: str) -> None:
        if not text:
            return
        if self._out and isinstance(self._out[-1], str):
            self._out[-1] += text
        else:
            self._out.append(text)

    # Each step looks at the buffer and says whether another step may get further with it.

    def _text(self) -> bool:
        opening = self._form.opening
        start = self._buffer.find(opening)
        if start < 0:
            keep = overlap(self._buffer, opening)
            self._emit(self._buffer[: len(self._buffer) - keep])
            self._buffer = self._buffer[len(self._buffer) - keep :]
            return False
        self._emit(self._buffer[:start])
        self._buffer = self._buffer[start:]
        self._begin_call(len(opening))
        return True

    def _between(self) -> bool:
        """After a call: blanks before the next one, or before the end, belong to nothing."""
        rest = self._buffer.lstrip()
        opening = self._form.opening
        if not rest or (len(rest) < len(opening) and opening.startswith(rest)):
            return False
        if rest.startswith(opening):
            self._buffer = rest
        self._step = self._text
        return True

    def _bare_start(self) -> bool:
        """At the start, or after a call: blanks, the opening or separators may come before the next JSON object."""
        opening = self._form.opening
        rest = self._buffer.lstrip(_SEPARATORS if self._count else None)
        if not rest or (len(rest) < len(opening) and opening.startswith(rest)):
            return False
        skipped = len(self._buffer) - len(rest)
        if rest.startswith(opening):
            rest = rest[len(opening) :].lstrip()
            if not rest:
                return False
            skipped = len(self._buffer) - len(rest)
        if rest[0] == "{":
            self._begin_call(skipped)
        else:
            self._step = self._only_text
        return True

    def _only_text(self) -> bool:
        self._emit(self._buffer)
        self._buffer = ""
        return False

    def _begin_call(self, start: int) -> None:
        self._call_end = _CallEnd(start, self._form.closing)
        self._step = self._bare_call if self._form.bare else self._tagged_call

    def _bare_call(self) -> bool:
        end = self._call_end.find(self._buffer)
        if end is None:
            return False
        raw, self._buffer = self._buffer[:end], self._buffer[end:]
        calls = _calls(raw[raw.index("{") :], self._count)
        self._step = self._bare_start if calls else self._only_text
        if calls:
            self._count += len(calls)
            self._out += calls
        else:
            self._emit(raw)
        return True

    def _tagged_call(self) -> bool:
        end = self._call_end.find(self._buffer)
        if end is None:
            return False
        self._end_call(end)
        return True

    def _end_call(self, end: int) -> None:
        raw, self._buffer = self._buffer[:end], self._buffer[end:]
        closing = len(self._form.closing)
        calls = _calls(raw[len(self._form.opening) : len(raw) - closing], self._count)
        if calls:
            self._count += len(calls)
            self._out += calls
            self._step = self._between
        else:
            self._emit(raw)
            self._step = self._text


class _CallEnd:
    """Looks for the end of a call, each character once: its closing tag outside strings, else the end of its JSON."""

    def __init__(self, start: int, closing: str) -> None:
        self._place = start
        self._closing = closing
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def find(self, text: str) -> int | None:
        """The place behind the end; None where more text is needed. ``text`` is that of the last search, and more."""
        closing = self._closing
        while self._place < len(text):
            place, character = self._place, text[self._place]
            if self._in_string:
                self._in_string = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif closing and character == closing[0]:
                if text.startswith(closing, place):
                    return place + len(closing)
                if closing.startswith(text[place:]):
                    return None
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not closing and self._depth <= 0:
                    return place + 1
            self._place += 1
        return None


def _calls(text: str, count: int) -> list[ToolCall]:
    """The calls in a JSON object or list of them; empty where it is no valid call."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return []
    entries = content if isinstance(content, list) else [content]
    calls = [_call(entry, count + place) for place, entry in enumerate(entries)]
    return [call for call in calls if call is not None] if all(calls) else []


def _call(entry: Any, place: int) -> ToolCall | None:
    if not isinstance(entry, dict):
        return None
    name = entry.get("name")
    given = [entry[key] for key in _ARGUMENTS if key in entry]
    arguments = given[0] if given else {}
    if isinstance(arguments, str):  # some models write the arguments as text that holds JSON
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False), f"call{place:05d}")
