"""Fields of requests are checked where a request is made: the name, what was found and what was wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from ..errors import MisuseError, RequestError
from ..json_values import shown

MAX_BIAS_ENTRIES = 1024
MAX_BIAS = 100.0


@dataclass(frozen=True)
class Wanted:
    """What a field may hold: in words, and as a test."""

    words: str
    holds: Callable[[Any], bool]


def of_kind(kind: type | tuple[type, ...], words: str) -> Wanted:
    """An instance of a class."""
    return Wanted(words, lambda value: isinstance(value, kind))


def member_of(kind: type[Enum]) -> Wanted:
    """A member of an enumeration, and not the text of one."""
    return of_kind(kind, f"a {kind.__name__}: {', '.join(kind.__members__)}")


def or_none(wanted: Wanted) -> Wanted:
    """The same, or None."""
    return Wanted(f"{wanted.words}, or None", lambda value: value is None or wanted.holds(value))


def list_of(wanted: Wanted, words: str) -> Wanted:
    """A list or tuple whose entries are ``wanted``; ``words`` name the entries together."""
    return Wanted(f"a list of {words}", lambda value: isinstance(value, list | tuple) and all(map(wanted.holds, value)))


SWITCH = of_kind(bool, "true or false")
TEXT = of_kind(str, "text")
VISIBLE_TEXT = Wanted("text", lambda value: isinstance(value, str) and bool(value))
WHOLE_NUMBER = Wanted("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool))
TOKEN_IDS = Wanted(
    "a list of ids",
    lambda value: (
        isinstance(value, list | tuple)
        and all(issubclass(kind, int | np.integer) and kind is not bool for kind in set(map(type, value)))
    ),
)
FUNCTION = Wanted("a function", callable)
INDEX = Wanted("a whole number from 0", lambda value: WHOLE_NUMBER.holds(value) and value >= 0)
REQUEST_ID = Wanted("a whole number from 1", lambda value: WHOLE_NUMBER.holds(value) and value >= 1)


def check_kinds(arguments: Mapping[str, object], kind: type | Wanted) -> None:
    """:raises MisuseError: an argument of a call is of another kind."""
    wanted = kind if isinstance(kind, Wanted) else of_kind(kind, kind.__name__)
    for name, value in arguments.items():
        if not wanted.holds(value):
            raise MisuseError(f"{name} is {shown(value)}; want {wanted.words}.")


def check_fields(owner: object, fields: Mapping[str, Wanted]) -> None:
    """:raises RequestError: a field of ``owner`` holds something else than it may."""
    for name, wanted in fields.items():
        value = getattr(owner, name)
        if not wanted.holds(value):
            raise RequestError(f"{name} is {shown(value)}; want {wanted.words}.")


def as_tuple(owner: object, name: str, wanted: Wanted) -> None:
    """Make a frozen field a tuple that nobody else can change. :raises RequestError: it is something else."""
    check_fields(owner, {name: wanted})
    object.__setattr__(owner, name, tuple(getattr(owner, name)))


def check_number(name: str, value: Any, low: float, high: float, *, integer: bool = False, above: bool = False) -> None:
    """Refuse a number outside its range; ``above`` leaves the lower end out."""
    kinds = (int,) if integer else (int, float)
    ok = isinstance(value, kinds) and not isinstance(value, bool)  # comparing is exact, also beyond every float
    if not ok or not low <= value <= high or (above and value == low):
        start = f"above {low}" if above else f"from {low}"
        kind = "a whole number" if integer else "a number"
        raise RequestError(f"{name} is {shown(value)}; want {kind} {start} to {high}.")


def checked_bias(given: Any) -> dict[int, float]:
    """A copy that nobody else can change; whether the ids are of a vocabulary is seen where there is one.

    :raises RequestError: no mapping, too many entries, or numbers out of range.
    """
    if not isinstance(given, Mapping):
        raise RequestError(f"logit_bias is {shown(given)}; want a mapping.")
    check_count("logit_bias", given, MAX_BIAS_ENTRIES)
    bias = dict(given)
    for token, value in bias.items():
        check_number(f"logit_bias[{shown(token)}]", value, -MAX_BIAS, MAX_BIAS)
    return bias


def check_count(what: str, values: Sequence[Any] | Mapping[Any, Any], most: int) -> None:
    """:raises RequestError: more than ``most``."""
    if len(values) > most:
        raise RequestError(f"{what} has {len(values)} entries; want at most {most}.")
