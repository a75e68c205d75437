"""Text of users on its way into ids: private names for what must not act, and what no encoder takes left out."""

from __future__ import annotations

import re
import secrets
import unicodedata


class Nonce:
    """Names that no user can guess; only letters and digits, so they pass through template filters unharmed."""

    _PATTERN = re.compile(r"zq([0-9a-f]{24})n([0-9]+)z")

    def __init__(self) -> None:
        self._secret = ""
        self.originals: list[str] = []

    def name(self, original: str) -> str:
        """The name that stands for a text from now on."""
        self._secret = self._secret or secrets.token_hex(12)
        self.originals.append(original)
        return f"zq{self._secret}n{len(self.originals) - 1}z"

    def restore(self, text: str) -> str:
        """A text with the originals back in their places."""
        return self._PATTERN.sub(self._original, text) if self.originals else text

    def _original(self, match: re.Match[str]) -> str:
        secret, index = match.groups()
        return self.restore(self.originals[int(index)]) if secret == self._secret else match.group()


def valid_text(text: str) -> str:
    """Without lone surrogates, which no encoder takes."""
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", "\ufffd", text)


def is_blank(text: str) -> bool:
    """Whether nothing of it can be seen."""
    return all(unicodedata.category(character) in _INVISIBLE for character in text)


_INVISIBLE = ("Zs", "Zl", "Zp", "Cc", "Cf")  # separators, control and formatting characters
