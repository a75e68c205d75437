"""Questions about a scene, their template answers, and a judge that reads what an answer says, not its letters."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from .geometry import Array
from .objects import COLOUR_NAMES, SHAPE_NAMES, describe
from .physics import Worlds


class QuestionKind(IntEnum):
    """The four kinds of question."""

    LIST = 0
    COUNT = 1
    COLOUR = 2
    WHERE = 3


KIND_SHARES = np.array([0.35, 0.2, 0.15, 0.3])
NUMBERS = ("no", "one", "two", "three", "four", "five")
DIRECTIONS = ("to the left of", "to the right of", "above", "below")
CLEAR = 1.6  # how much longer one side of the offset must be than the other for a single direction to be the answer

PHRASES = {
    QuestionKind.LIST: (
        "what is on the table?",
        "what do you see?",
        "what objects are on the table?",
        "describe the table.",
        "name the objects on the table.",
    ),
    QuestionKind.COUNT: (
        "how many {x} are there?",
        "how many {x} are on the table?",
        "how many {x} do you see?",
        "count the {x}.",
    ),
    QuestionKind.COLOUR: (
        "what colour is the {x}?",
        "what color is the {x}?",
        "which colour does the {x} have?",
        "tell me the colour of the {x}.",
    ),
    QuestionKind.WHERE: (
        "where is the {x} relative to the {y}?",
        "where is the {x} compared to the {y}?",
        "on which side of the {y} is the {x}?",
        "where is the {x} from the {y}?",
    ),
}


@dataclass(frozen=True)
class Question:
    """A question in words, its template answer, and what a right answer must say.

    ``facts`` is a sorted tuple of words: names for LIST, one number word for COUNT, one colour for COLOUR, one
    direction for WHERE.
    """

    kind: QuestionKind
    text: str
    answer: str
    facts: tuple[str, ...]


def draw_question(rng: np.random.Generator, worlds: Worlds, kind: QuestionKind | None = None) -> Question | None:
    """A question about the one world in ``worlds``; None where this scene has no clear answer of that kind."""
    present = np.flatnonzero(worlds.present[0])
    colour, shape = worlds.colour[0][present], worlds.shape[0][present]
    position = worlds.position[0][present]
    if kind is None:
        kind = QuestionKind(int(rng.choice(len(KIND_SHARES), p=KIND_SHARES)))
    phrase = PHRASES[kind][int(rng.integers(len(PHRASES[kind])))]
    if kind == QuestionKind.LIST:
        return _list_question(phrase, colour, shape, position)
    if kind == QuestionKind.COUNT:
        return _count_question(rng, phrase, colour, shape)
    if kind == QuestionKind.COLOUR:
        return _colour_question(rng, phrase, colour, shape)
    return _where_question(rng, phrase, colour, shape, position)


def is_right(question: Question, answer: str) -> bool:
    """Whether an answer in words states exactly the facts of the question."""
    return facts_of(question.kind, answer) == question.facts


def facts_of(kind: QuestionKind, answer: str) -> tuple[str, ...]:
    """What an answer states, in the form of ``Question.facts``."""
    words = answer.lower()
    if kind == QuestionKind.LIST:
        pattern = rf"\b({'|'.join(COLOUR_NAMES)}) ({'|'.join(SHAPE_NAMES)})\b"
        return tuple(sorted(f"{colour} {shape}" for colour, shape in re.findall(pattern, words)))
    if kind == QuestionKind.COUNT:
        return tuple(re.findall(rf"\b({'|'.join(NUMBERS)})\b", words))
    if kind == QuestionKind.COLOUR:
        return tuple(re.findall(rf"\b({'|'.join(COLOUR_NAMES)})\b", words))
    return tuple(re.findall(rf"\b({'|'.join(DIRECTIONS)})\b", words))


def with_article(name: str) -> str:
    """``a red cube`` or ``an orange ring``."""
    return ("an " if name[0] in "aeiou" else "a ") + name


def _list_question(phrase: str, colour: Array, shape: Array, position: Array) -> Question:
    """Objects are named from left to right; the judge accepts any order."""
    order = np.argsort(position[:, 0], kind="stable")
    names = [describe(int(colour[i]), int(shape[i])) for i in order]
    parts = [with_article(name) for name in names]
    text = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    return Question(QuestionKind.LIST, phrase, text[0].upper() + text[1:] + ".", tuple(sorted(names)))


def _count_question(rng: np.random.Generator, phrase: str, colour: Array, shape: Array) -> Question:
    choice = int(rng.integers(3))
    if choice == 0:
        wanted = int(rng.integers(len(SHAPE_NAMES)))
        count, one, many = int((shape == wanted).sum()), SHAPE_NAMES[wanted], SHAPE_NAMES[wanted] + "s"
    elif choice == 1:
        wanted = int(colour[int(rng.integers(len(colour)))] if rng.random() < 0.7 else rng.integers(len(COLOUR_NAMES)))
        count = int((colour == wanted).sum())
        one, many = COLOUR_NAMES[wanted] + " object", COLOUR_NAMES[wanted] + " objects"
    else:
        count, one, many = len(colour), "object", "objects"
    verb, noun = ("is", one) if count == 1 else ("are", many)
    answer = f"There {verb} {NUMBERS[count]} {noun}."
    return Question(QuestionKind.COUNT, phrase.format(x=many), answer, (NUMBERS[count],))


def _colour_question(rng: np.random.Generator, phrase: str, colour: Array, shape: Array) -> Question | None:
    single = [value for value, times in Counter(shape.tolist()).items() if times == 1]
    if not single:
        return None
    wanted = single[int(rng.integers(len(single)))]
    name = COLOUR_NAMES[int(colour[shape == wanted][0])]
    text = phrase.format(x=SHAPE_NAMES[wanted])
    return Question(QuestionKind.COLOUR, text, f"The {SHAPE_NAMES[wanted]} is {name}.", (name,))


def _where_question(
    rng: np.random.Generator, phrase: str, colour: Array, shape: Array, position: Array
) -> Question | None:
    names = [describe(int(c), int(s)) for c, s in zip(colour, shape, strict=True)]
    unique = [i for i, name in enumerate(names) if names.count(name) == 1]
    if len(unique) < 2:
        return None
    first, second = (int(i) for i in rng.choice(unique, size=2, replace=False))
    offset = position[first] - position[second]
    wide, tall = abs(float(offset[0])), abs(float(offset[1]))
    if max(wide, tall) < CLEAR * min(wide, tall):
        return None
    direction = DIRECTIONS[int(offset[0] > 0) if wide > tall else 2 + int(offset[1] < 0)]
    answer = f"The {names[first]} is {direction} the {names[second]}."
    return Question(QuestionKind.WHERE, phrase.format(x=names[first], y=names[second]), answer, (direction,))
