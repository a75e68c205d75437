"""The exact bytes that each token stands for, from the decoder part of a tokenizer definition."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import EngineDirectoryError
from ..tokenizer_failures import tokenizer_failures

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level_alphabet() -> dict[str, int]:
    """The printable character that byte-level vocabularies write for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet


class PieceDecoder:
    """``token_bytes`` for byte-level BPE, SentencePiece-like vocabularies with byte fallback, and whatever else.

    Bytes are found on first use and kept.
    """

    def __init__(self, tokenizer: Any, added_tokens: Mapping[int, Any]) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(token for token, added in added_tokens.items() if added.special)
        self._known: dict[int, bytes] = {}
        self._replacements: list[tuple[str, str]] = []
        self._byte_fallback = False
        self._convert: Callable[[str], bytes] | None = self._by_characters
        self.strips_leading_space = False
        decoder = tokenizer.decoder
        self._read(json.loads(decoder.__getstate__()) if decoder is not None else {"type": "none"})

    def _read(self, decoder: Mapping[str, Any]) -> None:
        kind = decoder.get("type")
        if kind == "Sequence":
            for part in decoder["decoders"]:
                self._read(part)
        elif kind == "ByteLevel":
            self._alphabet = byte_level_alphabet()
            self._convert = self._by_byte_alphabet
        elif kind == "Replace" and "String" in decoder["pattern"]:
            self._replacements.append((decoder["pattern"]["String"], decoder["content"]))
        elif kind == "ByteFallback":
            self._byte_fallback = True
        elif kind == "Strip" and decoder.get("content") == " ":
            self.strips_leading_space = decoder.get("start", 0) > 0
        elif kind == "Metaspace":
            self._replacements.append((decoder.get("replacement", "▁"), " "))
            self.strips_leading_space = decoder.get("prepend_scheme", "always") != "never"
        elif kind not in ("Fuse", "none"):
            self._convert = None  # ask the tokenizer

    def token_bytes(self, token_id: int, skip_special_tokens: bool) -> bytes:
        """Bytes of one token; empty for a special token that is skipped and for an id without a token."""
        if skip_special_tokens and token_id in self._special:
            return b""
        piece = self._known.get(token_id)
        if piece is None:
            piece = self._known[token_id] = self._find(token_id)
        return piece

    def _find(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            return b""
        if self._convert is None:
            with tokenizer_failures(EngineDirectoryError, f"fails on the token {token_id}", "build it again"):
                text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
            return text.encode("utf-8", "replace")
        return self._convert(token)

    def _by_byte_alphabet(self, token: str) -> bytes:
        try:
            return bytes(map(self._alphabet.__getitem__, token))
        except KeyError:  # an added token is written as it is
            return token.encode("utf-8")

    def _by_characters(self, token: str) -> bytes:
        for pattern, content in self._replacements:
            token = token.replace(pattern, content)
        match = _BYTE_TOKEN.fullmatch(token) if self._byte_fallback else None
        return bytes([int(match.group(1), 16)]) if match else token.encode("utf-8")
