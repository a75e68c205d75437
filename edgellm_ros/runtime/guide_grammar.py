"""Guides as users write them, turned into what llguidance compiles, and its complaints turned into sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from ..errors import MissingPackageError, RefusalCode, RequestError
from ..json_values import shown
from .guide_thread import LONGEST_COMPILATION, compile_apart
from .structural_tag import ControlId, TaggedPart, structural_tag_grammar

MAX_GUIDE_BYTES = 128 * 1024
_SURROGATE = re.compile("[\ud800-\udfff]")
# Blanks between two parts of a JSON text. Without a bound, small models write blanks until their budget is used up.
_BLANKS = r"[ \n\r\t]{0,32}"


_Compiled = TypeVar("_Compiled")


class GuideKind(str, Enum):
    """What the text of a guide is."""

    JSON_OBJECT = "json_object"  # any JSON object; the text stays empty
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"  # the whole answer matches it
    EBNF = "ebnf"  # "root ::= ..." as llama.cpp writes it, or Lark with "start: ..."
    CHOICE = "choice"  # a JSON list of texts, or one text per line
    # Free text with guided parts: JSON with "structures" and "triggers"; "at_least_one": the parts alone.
    STRUCTURAL_TAG = "structural_tag"


@dataclass(frozen=True)
class Guide:
    """A form that an answer must have.

    :raises RequestError: an unknown kind, a text that is missing, or one of more than 128 KiB.
    """

    kind: GuideKind
    text: str = ""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "kind", GuideKind(self.kind))
        except ValueError:
            names = ", ".join(kind.value for kind in GuideKind)
            raise bad_guide(f"the kind of a guide is {shown(self.kind)}; want one of {names}.") from None
        if not isinstance(self.text, str):
            raise bad_guide(f"the text of a guide is {type(self.text).__name__}; want a string.")
        if not self.text.isascii() and _SURROGATE.search(self.text):
            raise bad_guide("the text of a guide holds half a character (a lone surrogate); remove it.")
        size = len(self.text.encode())
        if size > MAX_GUIDE_BYTES:
            raise bad_guide(f"the guide has {size} bytes; want at most {MAX_GUIDE_BYTES}.")
        if bool(self.text.strip()) == (self.kind is GuideKind.JSON_OBJECT):
            if self.kind is GuideKind.JSON_OBJECT:
                raise bad_guide("the guide json_object came with a text; leave it empty, or call it json_schema.")
            raise bad_guide(f"the guide {self.kind.value} has an empty text; write what the answer must look like.")

    @classmethod
    def json_schema(cls, schema: Any) -> Guide:
        """A schema given as JSON values."""
        return cls(GuideKind.JSON_SCHEMA, _written(schema, "JSON schema"))

    @classmethod
    def choice(cls, *texts: str) -> Guide:
        """One of these texts, exactly."""
        return cls(GuideKind.CHOICE, _written(texts, "list of choices"))


def _written(value: Any, what: str) -> str:
    pieces, size = [], 0
    try:
        for piece in json.JSONEncoder(ensure_ascii=False, allow_nan=False).iterencode(value):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_GUIDE_BYTES:  # a value that holds the same twice on every level has no end
                raise bad_guide(f"the {what} has more than {MAX_GUIDE_BYTES} bytes as JSON; make it smaller.")
        return "".join(pieces)
    except RequestError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise bad_guide(f"the {what} cannot be written as JSON ({error}); give values that can.") from None


def bad_guide(message: str) -> RequestError:
    """The refusal of a guide."""
    return RequestError(message, RefusalCode.BAD_GUIDE)


def guidance_library() -> Any:
    """The package llguidance.

    :raises MissingPackageError: it is not installed.
    """
    try:
        import llguidance
    except ImportError:
        raise MissingPackageError(
            "guided decoding needs the package llguidance, which is not installed; run: pip install llguidance"
        ) from None
    return llguidance


def check_guide(guide: Guide) -> None:
    """Whether a guide is well formed, without a model.

    :raises RequestError: it is not; the sentence names the place.
    :raises MissingPackageError: llguidance is not installed.
    """
    library = guidance_library()
    message = compiled(guide, lambda: library.LLMatcher.validate_grammar(grammar_of(guide, lambda text: None)))
    if message and not message.startswith("WARNING"):
        raise complaint(guide, str(message).removeprefix("ERROR: "))


def compiled(guide: Guide, work: Callable[[], _Compiled]) -> _Compiled:
    """What ``work`` makes of a guide, see ``guide_thread``.

    :raises RequestError: it takes too long.
    """
    try:
        return compile_apart(work)
    except TimeoutError:
        raise bad_guide(
            f"the {guide.kind.value} guide takes longer than {LONGEST_COMPILATION:g} s to compile; make it smaller."
        ) from None


def grammar_of(guide: Guide, control_id: ControlId) -> str:
    """The grammar for llguidance; ``control_id`` gives the id of the control token with a text.

    :raises RequestError: the text is not what its kind says, with the position.
    """
    matcher = guidance_library().LLMatcher
    if guide.kind is GuideKind.REGEX:
        return str(matcher.grammar_from_regex(guide.text))
    if guide.kind is GuideKind.EBNF:
        return str(matcher.grammar_from_lark(_lark(guide.text)))
    if guide.kind is GuideKind.CHOICE:
        return str(matcher.grammar_from_lark(_choice(guide.text)))
    if guide.kind is GuideKind.STRUCTURAL_TAG:
        return _structural_tag(guide.text, control_id)
    schema = '{"type": "object"}'
    if guide.kind is GuideKind.JSON_SCHEMA:
        schema = guide.text
        if not isinstance(_json(schema, "JSON schema"), dict):
            raise bad_guide(f'the JSON schema is {shown(json.loads(schema))}; want an object such as {{"type": …}}.')
    try:
        return str(matcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": _BLANKS}))
    except ValueError as error:  # nested too deeply for it, a number beyond every float
        raise bad_guide(f"the JSON schema cannot be read: {_one_line(str(error))}; correct it.") from None


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise bad_guide(
            f"the {what} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}; correct it."
        ) from None
    except (RecursionError, ValueError) as error:  # nested too deeply, a number too long
        raise bad_guide(f"the {what} cannot be read: {error}; make it smaller.") from None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _lark(text: str) -> str:
    if "::=" not in text:
        return text
    from llguidance.gbnf_to_lark import any_to_lark  # brings nothing along

    try:
        return str(any_to_lark(text))
    except Exception as error:  # its converter raises whatever it meets
        reason = _one_line(str(error))
        place = "" if " at line " in reason else _find(text, _name_in(reason))
        raise bad_guide(f"the ebnf guide is wrong{place}: {reason}; correct it.") from None


def _choice(text: str) -> str:
    if text.lstrip().startswith("["):
        texts = _json(text, "list of choices")
    else:
        texts = [line for line in text.splitlines() if line.strip()]
    for place, choice in enumerate(texts, 1):
        if not isinstance(choice, str) or not choice:
            raise bad_guide(f"choice {place} is {shown(choice)}; want non-empty text.")
    if not texts:
        raise bad_guide("the list of choices is empty; want at least one text.")
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in texts)


def _structural_tag(text: str, control_id: ControlId) -> str:
    content = _json(text, "structural tag")
    try:
        triggers = [str(trigger) for trigger in content["triggers"]]
        structures = [(str(part["begin"]), part["schema"], str(part["end"])) for part in content["structures"]]
        whole = [bool(content.get(name, False)) for name in ("at_least_one", "stop_after_first")]
    except (KeyError, TypeError, AttributeError) as error:
        raise bad_guide(
            f'the structural tag has no usable {error}; want {{"structures": [{{"begin": "<f>", "schema": {{}}, '
            '"end": "</f>"}], "triggers": ["<f"]}.'
        ) from None
    parts = []
    for begin, schema, end in structures:
        trigger = next((trigger for trigger in triggers if trigger and begin.startswith(trigger)), None)
        if trigger is None or not isinstance(schema, dict):
            what = "no trigger that it begins with" if trigger is None else "a schema that is no object"
            raise bad_guide(f"the structure that begins with {begin!r} has {what}; add one.")
        parts.append(TaggedPart(trigger, begin, schema, end))
    if not parts:
        raise bad_guide("the structural tag has no structures; want at least one.")
    return structural_tag_grammar(parts, control_id, _BLANKS, only_parts=whole[0], one=whole[1])


_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): (.*)", re.DOTALL)
_REGEX_ERROR = re.compile(r"regex parse error:\n {4}(.*)\n( {4} *)\^+\nerror: (.*)")
_QUOTED = re.compile(r"[\"']([^\"']+)[\"']|: ([\w-]+)$")


def complaint(guide: Guide, message: str) -> RequestError:
    """The words of llguidance about a guide as one sentence with the place where it is wrong."""
    regex = _REGEX_ERROR.search(message)
    if regex is not None:
        pattern, indent, reason = regex.groups()
        column = len(indent) - 4 + 1
        if guide.kind is GuideKind.REGEX:
            return _refused(guide, f" at character {_before_escaping(guide.text, column)}", reason)
        return _refused(guide, f" at character {column} of {pattern!r}", reason)
    place = _PLACE.match(message)
    if place is not None and guide.kind is GuideKind.EBNF and "::=" not in guide.text:
        line, column_text, reason = place.groups()
        return _refused(guide, f" at line {line}, column {column_text}", reason)
    reason = place.group(3) if place is not None else message
    return _refused(guide, _find(guide.text, _name_in(reason)), reason)


def why_stopped(message: str) -> str:
    """The words of llguidance about what it can follow no further; its own state is no use to a reader."""
    reason = _one_line(message.split("<state>")[0]).rstrip(".")
    return "no text can follow that it allows" if reason in ("", "NoExtensionBias") else reason


def cannot_go_on(message: str) -> RequestError:
    """An answer cannot be continued under its guide."""
    return bad_guide(f"the guide cannot go on: {why_stopped(message)}; change the guide.")


def _before_escaping(text: str, column: int) -> int:
    """The place of a character that llguidance counts after it wrote line breaks as two characters."""
    seen = 0
    for place, character in enumerate(text, 1):
        seen += 2 if character == "\n" else 1
        if seen >= column:
            return place
    return len(text)


def _name_in(reason: str) -> str:
    found = _QUOTED.search(_first_line(reason))
    return (found.group(1) or found.group(2)) if found else ""


def _find(text: str, name: str) -> str:
    """Line and column of a name that llguidance did not place itself."""
    found = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) if name else None
    if found is None:
        return ""
    before = text[: found.start()]
    return f" at line {before.count(chr(10)) + 1}, column {found.start() - before.rfind(chr(10))}"


def _refused(guide: Guide, where: str, reason: str) -> RequestError:
    return bad_guide(f"the {guide.kind.value} guide is wrong{where}: {_first_line(reason)}; correct it.")


def _first_line(text: str) -> str:
    return _one_line(text.strip().split("\n", 1)[0])


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:297]}..."
