"""Strings of every kind that tokenizers trip over, the same ones every time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures"


def read_fixture(name: str) -> Any:
    return json.loads((FIXTURES / name).read_text(encoding="utf-8"))


_CONTENT = read_fixture("mixed_words.json")
WORDS: dict[str, list[str]] = _CONTENT["words"]  # of languages, scripts, code and signs, by what they are
SPACES: list[str] = _CONTENT["spaces"]


class _Numbers:
    """A generator that is the same in every version of Python."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def below(self, limit: int) -> int:
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % limit


def mixed_strings(count: int = 1000, seed: int = 5) -> list[str]:
    """Half of them of one kind of words, half of all of them; some begin or end with blanks, some are very short."""
    numbers, kinds, strings = _Numbers(seed), list(WORDS), []
    everything = [word for words in WORDS.values() for word in words]
    for index in range(count):
        words = everything if index % 2 else WORDS[kinds[numbers.below(len(kinds))]]
        parts = [SPACES[numbers.below(len(SPACES))] if numbers.below(4) == 0 else ""]
        for _ in range(1 + numbers.below(12)):
            parts += [words[numbers.below(len(words))], SPACES[numbers.below(len(SPACES))]]
        strings.append("".join(parts if numbers.below(3) == 0 else parts[:-1]))
    return list(dict.fromkeys(strings))
