"""Text to ids and back, with user text never read as control tokens unless that is asked for.

The usual way (render the chat template, encode the whole text) is kept, so ids equal those of other tools. Only when
a message holds the text of a control token is it taken apart: that text travels through the template under a private
name, the rendered text is cut at the template's own control tokens, and the parts between are encoded by a second
tokenizer that knows no control tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from ..chat_template import ChatTemplate, load_chat_template
from ..engine_format import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE
from ..errors import EngineDirectoryError, RefusalCode, RequestError
from ..json_values import read_json, read_text
from ..tokenizer_failures import tokenizer_failures
from .conversation import template_messages, template_tools
from .literal_text import Nonce, is_blank, valid_text
from .media_marks import MediaFormat, MediaMarks
from .pieces import PieceDecoder
from .request import Message, SpecialTokenPolicy
from .tokenizer_format import control_tokens, without_control_tokens

_AGAIN = "build the engine directory again, with the model's own tokenizer"
_MOST_ROUNDS = 100


def _encoding(tokenizer: tokenizers.Tokenizer, text: str, add_special_tokens: bool = False) -> tokenizers.Encoding:
    with tokenizer_failures(RequestError, "fails on the text", _AGAIN):
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt ready for the engine: rendered text, its ids, and how many control tokens the user's text held."""

    text: str
    token_ids: list[int]
    control_token_count: int = 0


class Tokenizer:
    """Safe to use from any thread once it is built; nothing in it changes but caches.

    ``definition`` is the parsed ``tokenizer.json``, ``configuration`` the parsed ``tokenizer_config.json``.

    :raises EngineDirectoryError: the definition is not one that the ``tokenizers`` package reads.
    """

    def __init__(
        self,
        definition: str,
        configuration: Mapping[str, Any] | None = None,
        chat_template: ChatTemplate | None = None,
    ) -> None:
        with tokenizer_failures(EngineDirectoryError, "is no tokenizer that can be loaded", _AGAIN):
            self._full = tokenizers.Tokenizer.from_str(definition)
        self._full.no_truncation()
        self._full.no_padding()
        self.configuration = dict(configuration or {})
        self.chat_template = chat_template
        self.media_format: MediaFormat | None = None  # set where the model sees images
        self._added = self._full.get_added_tokens_decoder()
        self._control = control_tokens(self._added)
        # What a model writes into its own turns (reasoning, tool calls) and its template looks for there.
        self._markers = frozenset(text for token, text in self._control.items() if not self._added[token].special)
        texts = sorted((text for text in self._control.values() if text), key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._literal: tuple[tokenizers.Tokenizer, tokenizers.Tokenizer] | None = None
        self._pieces = PieceDecoder(self._full, self._added)

    @classmethod
    def from_directory(cls, path: Path | str) -> Tokenizer:
        """The tokenizer and chat template of an engine directory.

        :raises EngineDirectoryError: a file is missing, cannot be read, or does not hold what it should.
        """
        path = Path(path)
        definition = read_text(path / TOKENIZER_FILE)
        config_path = path / TOKENIZER_CONFIG_FILE
        configuration = read_json(config_path) if config_path.is_file() else {}
        return cls(definition, configuration, load_chat_template(path, configuration))

    # -- ids to bytes ------------------------------------------------------------------------------------------

    @property
    def strips_leading_space(self) -> bool:
        """True when a text's first space belongs to the tokenizer and not to the text (SentencePiece)."""
        return self._pieces.strips_leading_space

    def token_bytes(self, token_id: int, skip_special_tokens: bool = True) -> bytes:
        """The exact bytes of a token; empty for special tokens when they are skipped and for ids without a token."""
        return self._pieces.token_bytes(token_id, skip_special_tokens)

    def token_id(self, text: str) -> int | None:
        """The id of a token by its exact text."""
        token: int | None = self._full.token_to_id(text)
        return token

    def is_control(self, token_id: int) -> bool:
        """True for ids that structure a conversation rather than stand for text."""
        return token_id in self._control

    @property
    def vocab_size(self) -> int:
        """Ids that the tokenizer knows, added tokens included."""
        size: int = self._full.get_vocab_size(with_added_tokens=True)
        return size

    # -- text to ids -------------------------------------------------------------------------------------------

    def encode(self, text: str, *, add_special_tokens: bool = False, allow_control: bool = True) -> list[int]:
        """Ids of a text; with ``allow_control=False`` the text of a control token is encoded as ordinary text."""
        text = valid_text(text)
        if allow_control:
            return self._encode_plain(text, add_special_tokens)
        nonce = Nonce()
        return self._encode_marked(self._mark(text, nonce), nonce, add_special_tokens)

    def count_control_tokens(self, text: str) -> int:
        """How many control tokens a text would turn into if it were not taken literally."""
        nonce = Nonce()
        self._mark(valid_text(text), nonce)
        return len(nonce.originals)

    def encode_conversation(
        self,
        messages: Sequence[Message],
        *,
        apply_chat_template: bool = True,
        add_generation_prompt: bool = True,
        enable_thinking: bool = False,
        special_tokens: SpecialTokenPolicy = SpecialTokenPolicy.LITERAL,
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
        committed_turn: Mapping[str, str] | None = None,
    ) -> EncodedPrompt:
        """Render and encode. Without a template the contents are joined as they are and encoded as a fresh text.

        ``options`` are further values for the template, texts in them as literal as those of the messages;
        ``committed_turn`` is one more turn, given to the template as it is.

        :raises RequestError: blank last message, control tokens where they are to be rejected, no chat template
            though one is wanted, or a template that refuses the conversation.
        """
        last = messages[-1] if messages else None
        if last is None or (is_blank(last.content) and last.role != "tool" and not last.has_media):
            raise RequestError(
                "the prompt is empty or blank; want at least one visible character.", RefusalCode.EMPTY_PROMPT
            )
        template = self.chat_template if apply_chat_template else None
        if apply_chat_template and template is None:
            raise RequestError(
                "this engine directory has no chat template; send the prompt with the template switched off.",
                RefusalCode.UNSUPPORTED,
            )
        nonce = Nonce()
        literal = special_tokens is not SpecialTokenPolicy.ALLOW
        media = MediaMarks(self.media_format, messages, template.source if template else None, nonce.name)

        def mark(text: str, own: bool) -> str:
            text = valid_text(text)
            return self._mark(text, nonce, self._markers if own else frozenset()) if literal else text

        plain = None
        if template is None:
            rendered = mark("".join(media.content(message, mark) for message in messages), False)
            plain = media.plain(rendered)
            rendered = rendered if plain is None else plain
        else:
            rendered = template.render(
                [*template_messages(messages, mark, media), *([committed_turn] if committed_turn else [])],
                tools=template_tools(tools, mark),
                add_generation_prompt=add_generation_prompt,
                enable_thinking=enable_thinking,
                **{
                    name: mark(value, False) if isinstance(value, str) else value
                    for name, value in (options or {}).items()
                },
            )
            rendered = valid_text(rendered)
        count = len(nonce.originals)
        if count and special_tokens is SpecialTokenPolicy.REJECT:
            raise RequestError(
                f"the prompt holds the text of {count} control token{'s' * (count > 1)}; remove it, or allow such "
                "text to be taken literally.",
                RefusalCode.SPECIAL_TOKENS,
            )
        rendered = media.expand(rendered)
        ids = self._encode_marked(rendered, nonce, add_special_tokens=template is None and plain is None)
        if not ids:
            raise RequestError("nothing is left of the prompt after tokenising.", RefusalCode.EMPTY_PROMPT)
        return EncodedPrompt(nonce.restore(rendered), ids, count)

    def _encode_plain(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = _encoding(self._full, text, add_special_tokens).ids
        return ids

    def _mark(self, text: str, nonce: Nonce, keep: frozenset[str] = frozenset()) -> str:
        """Replace the text of control tokens, but those to ``keep``, by private names."""
        if self._control_pattern is None:
            return text
        text = self._control_pattern.sub(
            lambda match: match.group() if match.group() in keep else nonce.name(match.group()), text
        )
        if self._full.normalizer is None:
            return text
        for _ in range(_MOST_ROUNDS):  # a normaliser may still turn other text into a control token
            encoding = _encoding(self._full, text)
            parts: list[str] = []
            done = 0
            for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                found = text[start:end]
                if start >= done and found not in keep and self._written_as_control(token, found):
                    parts += (text[done:start], nonce.name(found))
                    done = end
            if not parts:
                return text
            text = "".join(parts) + text[done:]
        raise RequestError(f"{TOKENIZER_FILE} makes control tokens of any text; {_AGAIN}.")

    def _encode_marked(self, text: str, nonce: Nonce, add_special_tokens: bool) -> list[int]:
        if not nonce.originals:
            return self._encode_plain(text, add_special_tokens)
        first, later = self._literal_tokenizers()
        encoding = _encoding(self._full, text, add_special_tokens)
        ids: list[int] = []
        done = 0

        def literal(end: int) -> None:
            part = nonce.restore(text[done:end])
            if part:
                ids.extend(_encoding(later if done else first, part).ids)

        seen = False
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if end <= start and token in self._control:  # put there by the post-processor: before or after everything
                if seen:
                    literal(len(text))
                    done = len(text)
                ids.append(token)
                continue
            seen = True
            if not self._written_as_control(token, text[start:end]):
                continue
            literal(start)
            ids.append(token)
            done = end
        literal(len(text))
        return ids

    def _written_as_control(self, token: int, text: str) -> bool:
        """True when a token stands for the text of a control token, and not for text that no token knows."""
        control = self._control.get(token, "").strip()
        if not control or not text:
            return False
        if text.strip() == control:
            return True
        normalizer = self._full.normalizer
        if normalizer is None:
            return False
        with tokenizer_failures(RequestError, "fails on the text", _AGAIN):
            normalised: str = normalizer.normalize_str(text)
            return normalised.strip() == str(normalizer.normalize_str(control)).strip()

    def _literal_tokenizers(self) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
        """For the first part of a text and for later ones (they differ where only a text's start gets a space)."""
        if self._literal is None:
            definition, removed = self._full.to_str(), set(self._control.values())
            texts = [without_control_tokens(definition, removed, first=first) for first in (True, False)]
            start = tokenizers.Tokenizer.from_str(texts[0])
            self._literal = (start, start if texts[0] == texts[1] else tokenizers.Tokenizer.from_str(texts[1]))
        return self._literal
