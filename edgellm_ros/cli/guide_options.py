"""Options of ``edgellm generate`` for the form of an answer and for tools."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..errors import RequestError
from ..json_values import read_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json-object", action="store_true", help="the answer is a JSON object")
    form.add_argument("--json-schema", metavar="FILE", help="the answer is JSON that matches the schema in FILE")
    form.add_argument("--regex", metavar="R", help="the whole answer matches this regular expression")
    form.add_argument("--grammar", metavar="FILE", help="the answer matches the grammar in FILE (EBNF or Lark)")
    form.add_argument("--choice", action="append", default=[], metavar="STR", help="the answer is this; repeatable")
    parser.add_argument("--tools", metavar="FILE", help="functions that the model may call: a JSON list")
    parser.add_argument("--tool-choice", default="auto", metavar="C", help="auto, required, or the name of a tool")
    parser.add_argument("--thinking", action="store_true", help="let the model reason first; shown on standard error")


def guide_from(arguments: argparse.Namespace) -> Any:
    """The guide that was asked for, or None.

    :raises RequestError: a file cannot be read.
    """
    from ..runtime.guide_grammar import Guide, GuideKind

    if arguments.json_object:
        return Guide(GuideKind.JSON_OBJECT)
    if arguments.json_schema is not None:
        return Guide(GuideKind.JSON_SCHEMA, _text("--json-schema", arguments.json_schema))
    if arguments.regex is not None:
        return Guide(GuideKind.REGEX, arguments.regex)
    if arguments.grammar is not None:
        return Guide(GuideKind.EBNF, _text("--grammar", arguments.grammar))
    return Guide.choice(*arguments.choice) if arguments.choice else None


def tools_from(arguments: argparse.Namespace) -> list[Any]:
    """The tools that were given.

    :raises RequestError: the file cannot be read, or is no JSON list.
    """
    if arguments.tools is None:
        return []
    text = _text("--tools", arguments.tools)
    try:
        tools = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"--tools {arguments.tools} is not JSON ({error}); correct it.") from None
    if not isinstance(tools, list):
        raise RequestError(f"--tools {arguments.tools} is no list; want a JSON list of functions.")
    return tools


def _text(option: str, path: str) -> str:
    try:
        return read_text(Path(path), RequestError, "want a text file in UTF-8")
    except RequestError as error:
        raise RequestError(f"{option} {error}") from None
