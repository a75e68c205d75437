"""Chat templates in a sandbox, with the helpers that models' templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser

from .engine_format import CHAT_TEMPLATE_FILE
from .errors import EngineDirectoryError, RequestError
from .template_sandbox import TemplateSandbox

MAX_TEMPLATE_BYTES = 2**20


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %} … {% endgeneration %}`` marks the assistant's text for training; here it is just its body."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """The body alone."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which models never saw in training.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _environment() -> TemplateSandbox:
    environment = TemplateSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.add_filter("tojson", _to_json)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """A compiled template; rendering is safe from any thread.

    :raises EngineDirectoryError: it is larger than 1 MB or not valid Jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, Any] | None = None) -> None:
        size = len(source.encode("utf-8", "replace"))
        if size > MAX_TEMPLATE_BYTES:
            raise EngineDirectoryError(f"the chat template has {size} bytes; want at most {MAX_TEMPLATE_BYTES}.")
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self._environment = _environment()
        try:
            self._template = self._environment.from_string(source)
        except Exception as error:  # Jinja also lets errors of Python's compiler and of folded constants through
            raise EngineDirectoryError(
                f"the chat template is not valid Jinja ({_one_line(error)}); correct it."
            ) from None

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **options: Any
    ) -> str:
        """The conversation as one text.

        :raises RequestError: the template refuses the conversation, or fails on it.
        """
        try:
            with self._environment.bounded():
                return self._template.render(
                    messages=[dict(message) for message in messages],
                    tools=options.pop("tools", None),
                    documents=options.pop("documents", None),
                    add_generation_prompt=add_generation_prompt,
                    **{**self._special_tokens, **options},
                )
        except jinja2.TemplateError as error:
            raise RequestError(f"the model's chat template refuses this conversation: {_one_line(error)}") from None
        except Exception as error:
            raise RequestError(
                f"the model's chat template fails on this conversation ({type(error).__name__}: {_one_line(error)}); "
                "change the roles or send it without a template."
            ) from None


def _one_line(error: Exception) -> str:
    """A template's own words, short and on one line: logs and reports hold them."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:297]}..."


def load_chat_template(directory: Path, tokenizer_config: Mapping[str, Any]) -> ChatTemplate | None:
    """The template of an engine directory: ``chat_template.jinja``, else the tokenizer configuration's; or None.

    :raises EngineDirectoryError: it cannot be read or is not valid.
    """
    path = directory / CHAT_TEMPLATE_FILE
    if path.is_file():
        try:
            if path.stat().st_size > MAX_TEMPLATE_BYTES:
                raise EngineDirectoryError(
                    f"{path} has {path.stat().st_size} bytes; want a template of at most {MAX_TEMPLATE_BYTES}."
                )
            source: Any = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise EngineDirectoryError(f"{path} cannot be read ({error}); write it again.") from None
    else:
        source = tokenizer_config.get("chat_template")
        if isinstance(source, list):  # several named ones
            named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
            source = named.get("default")
    if not isinstance(source, str):
        return None
    return ChatTemplate(source, special_token_names(tokenizer_config))


def special_token_names(tokenizer_config: Mapping[str, Any]) -> dict[str, Any]:
    """``bos_token`` and its kind as plain text, as templates name them."""
    names: dict[str, Any] = {}
    for key, value in tokenizer_config.items():
        if key.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                names[key] = text
    return names
