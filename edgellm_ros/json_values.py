"""JSON that somebody else wrote: sound within limits, or a sentence that says what is wrong."""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from .errors import EdgeLLMError, EngineDirectoryError

LARGEST_SIZE = 1 << 31  # of any dimension or token id; the tensors that carry them are int32
LARGEST_FILE = 1 << 60
LEAST_REAL, MOST_REAL = 1e-30, 1e30
MAX_JSON_BYTES = 100 * 2**20
MAX_OBJECT_BYTES = 16 * 2**20  # of JSON that becomes objects of Python, of which a byte can take thirty
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def whole_number(name: str, value: Any, low: int, high: int = LARGEST_SIZE) -> int:
    """``value`` if it is a whole number from ``low`` to ``high``.

    :raises ValueError: it is not; the sentence names ``name`` and what was found.
    """
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    raise ValueError(f"{name} is {shown(value)}; want a whole number from {low} to {high}")


def finite_number(name: str, value: Any) -> float:
    """``value`` as a float if it is a finite number.

    :raises ValueError: it is not; the sentence names ``name`` and what was found.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            if math.isfinite(value):
                return float(value)
        except OverflowError:  # a whole number beyond every float
            pass
    raise ValueError(f"{name} is {shown(value)}; want a finite number")


def positive_number(name: str, value: Any) -> float:
    """``value`` as a float if it is a finite number above 0.

    :raises ValueError: it is not; the sentence names ``name`` and what was found.
    """
    if finite_number(name, value) > 0:
        return float(value)
    raise ValueError(f"{name} is {shown(value)}; want a number above 0")


def is_positive(value: Any) -> bool:
    """Whether it is a number from ``LEAST_REAL`` to ``MOST_REAL``, with which float32 can be computed."""
    try:
        return LEAST_REAL <= finite_number("", value) <= MOST_REAL
    except ValueError:
        return False


def is_file(path: Path) -> bool:
    """Whether there is a regular file; a path that the system does not take is none."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether there is a folder; a path that the system does not take is none."""
    try:
        return path.is_dir()
    except OSError:
        return False


def is_there(path: Path) -> bool:
    """Whether there is anything; at a path that the system does not take there is nothing."""
    try:
        return path.exists()
    except OSError:
        return False


def plain_text(value: Any) -> str:
    """A name as one line that every log, terminal and message can carry."""
    return _UNPRINTABLE.sub("\ufffd", str(value))


def problem_of(error: Exception) -> str:
    """What a file's name is followed by where reading its keys and values raised ``error``."""
    return f"lacks the key {error.args[0]!r}" if isinstance(error, KeyError) else f"has a bad value ({error})"


class _Beginning(reprlib.Repr):
    """Writes no more of a value than is shown: one that holds itself twice would be written without end."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 8
        self.maxstring = self.maxlong = self.maxother = 300

    def repr_dict(self, value: dict[Any, Any], level: int) -> str:
        """In its own order."""
        if value and level <= 0:
            return "{...}"
        entries = islice(value.items(), self.maxdict)
        pieces = [f"{self.repr1(key, level - 1)}: {self.repr1(entry, level - 1)}" for key, entry in entries]
        return "{" + ", ".join([*pieces, *(["..."] if len(value) > self.maxdict else [])]) + "}"

    def repr_instance(self, value: Any, level: int) -> str:
        """Whatever its class has to say."""
        return repr(value)


_BEGINNING = _Beginning()


def shown(value: Any) -> str:
    """A value as a sentence shows it, however long or deep it is, and whatever its class does when it is asked."""
    try:
        text = _BEGINNING.repr(value)
    except Exception:
        if isinstance(value, int):
            return "a number of thousands of digits"  # which Python does not write out
        return f"something of the class {plain_text(type(value).__name__)[:60]}"
    text = plain_text(text)  # an array goes over several lines
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_small(value: Any, most_levels: int, most_values: int) -> bool:
    """Whether mappings and lists in each other are no deeper and hold no more, each value counted where it stands.

    One that holds itself, or the same twice on every level, is not.
    """
    level, left = [value], most_values
    for _ in range(most_levels):
        holders = (entry for entry in level if isinstance(entry, Mapping | list | tuple))
        values = (item for entry in holders for item in (entry.values() if isinstance(entry, Mapping) else entry))
        level = list(islice(values, left + 1))
        left -= len(level)
        if not level:
            return True
        if left < 0:
            return False
    return False


def read_text(
    path: Path,
    kind: type[EdgeLLMError] = EngineDirectoryError,
    advice: str = "build the engine directory again",
    most: int = MAX_JSON_BYTES,
) -> str:
    """The text of a regular file of at most ``most`` bytes; ``advice`` ends the sentence that says what is wrong.

    :raises EdgeLLMError: of the ``kind`` given, where the file is missing, no regular file (a pipe would be waited for
        without end), too large, or not UTF-8; the sentence names the file.
    """
    try:
        if path.exists() and not path.is_file():
            raise kind(f"{path} is not a regular file; {advice}.")
        size = path.stat().st_size
        if size > most:
            raise kind(f"{path} has {size} bytes; want at most {most}.")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise kind(f"{path} cannot be read ({error.strerror}); check the path.") from None
    except UnicodeDecodeError:
        raise kind(f"{path} is not UTF-8 text; {advice}.") from None
    except ValueError as error:
        raise kind(f"{path} cannot be read ({error}); check the path.") from None


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An ``object_pairs_hook``: of a key that occurs twice nobody knows which value is meant.

    :raises ValueError: there is one.
    """
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ValueError(f"the key {shown(name)} occurs twice")
        content[name] = value
    return content


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    :raises EngineDirectoryError: see ``read_text``; not JSON, or not an object.
    """
    text = read_text(path, most=MAX_OBJECT_BYTES)
    try:
        content = json.loads(text, object_pairs_hook=without_repeats)
    except (ValueError, RecursionError) as error:
        raise EngineDirectoryError(f"{path} is not valid JSON ({error}); write it again.") from None
    if not isinstance(content, dict):
        raise EngineDirectoryError(f"{path} holds {type(content).__name__}; want a JSON object.")
    return content
