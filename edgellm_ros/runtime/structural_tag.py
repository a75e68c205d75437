"""Text with guided parts: where a trigger begins one, what follows is held to a schema up to its end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

ControlId = Callable[[str], int | None]  # the id of the control token with this text
_TOKEN = re.compile(r"<[^<>\s]+>|\[[A-Z_/]+\]")


@dataclass(frozen=True)
class TaggedPart:
    """``begin``, which begins with ``trigger``; then JSON by ``schema``; then ``end``."""

    trigger: str
    begin: str
    schema: Mapping[str, Any]
    end: str


def structural_tag_grammar(
    parts: list[TaggedPart], control_id: ControlId, blanks: str, *, only_parts: bool = False, one: bool = False
) -> str:
    """Lark for llguidance. Control tokens among the fixed texts are those tokens, not their letters.

    ``only_parts``: no free text, one part or more (``one``: exactly one), with line breaks between them.
    """
    names = " | ".join(f"part_{place}" for place in range(len(parts)))
    if only_parts:
        lines = [f"start: ({names})" if one else f'start: ({names}) ("\\n" ({names}))*']
    else:
        lines = [f"start: ({names})* free", "free: FREE_TEXT", "FREE_TEXT: /(.|\\n)*/"]
    for place, part in enumerate(parts):
        own = part.schema.get("x-guidance")
        options = {"whitespace_pattern": blanks, **(own if isinstance(own, Mapping) else {})}
        schema = {**part.schema, "x-guidance": options}
        body = f"%json {json.dumps(schema)} {_literal(part.end, control_id)}"
        if only_parts:
            lines.append(f"part_{place}: {_literal(part.begin, control_id)} {body}")
            continue
        rest = _literal(part.begin[len(part.trigger) :], control_id)
        if control_id(part.trigger) is not None:
            lines.append(f"part_{place}: FREE_TEXT {_literal(part.trigger, control_id)} {rest} {body}")
        else:
            lines.append(f"part_{place}_trigger[lazy]: FREE_TEXT {json.dumps(part.trigger)}")
            lines.append(f"part_{place}: part_{place}_trigger {rest} {body}")
    return "%llguidance {}\n" + "\n".join(lines) + "\n"


def _literal(text: str, control_id: ControlId) -> str:
    """Fixed text in Lark: its letters, and ids for the control tokens in it."""
    pieces, start = [], 0
    for match in _TOKEN.finditer(text):
        token_id = control_id(match.group())
        if token_id is not None:
            pieces += [_quoted(text[start : match.start()]), f"<[{token_id}]>"]
            start = match.end()
    return " ".join(piece for piece in (*pieces, _quoted(text[start:])) if piece)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
