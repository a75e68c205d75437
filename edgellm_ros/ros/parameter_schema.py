"""The parameters of the node as data: read from ``parameters.yaml``, checked without ROS.

The file follows the schema of generate_parameter_library (type, default_value, description, read_only, validation),
of which this reads the validators named in ``_VALIDATORS`` and refuses any other, so a typing error in the file is
found by the first test that imports it.
"""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

SCHEMA_FILE = Path(__file__).with_name("parameters.yaml")
ROOT = "edgellm"

Value = bool | int | float | str | tuple[str, ...] | tuple[float, ...]


class ParameterType(str, Enum):
    """Types of the schema that the node uses."""

    BOOL = "bool"
    INT = "int"
    DOUBLE = "double"
    STRING = "string"
    STRING_ARRAY = "string_array"
    DOUBLE_ARRAY = "double_array"

    @property
    def wanted(self) -> str:
        """The type as a sentence says it."""
        return {
            "bool": "true or false",
            "int": "a whole number",
            "double": "a number",
            "string": "text",
            "string_array": "a list of texts",
            "double_array": "a list of numbers",
        }[self.value]


class ParameterEffect(Enum):
    """When a change is taken up."""

    START = "read once at start"
    CONFIGURE = "changes only while unconfigured"
    REQUEST = "applies to the next request"


@dataclass(frozen=True)
class ParameterDefinition:
    """One parameter; limits that it does not have are None or empty."""

    name: str
    type: ParameterType
    default: Value
    description: str
    effect: ParameterEffect = ParameterEffect.REQUEST
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    choices: tuple[str, ...] = ()
    max_items: int | None = None
    max_bytes: int | None = None
    elements_not_empty: bool = False

    @property
    def range_text(self) -> str:
        """Allowed values in words; empty where every value of the type is allowed."""
        if self.choices:
            return ", ".join(self.choices)
        if self.minimum is not None and self.maximum is not None:
            low, high = (_number_text(bound, self.type) for bound in (self.minimum, self.maximum))
            return f"above {low}, to {high}" if self.exclusive_minimum else f"{low} to {high}"
        parts = []
        if self.max_items is not None:
            parts.append(f"at most {self.max_items} entries")
        if self.elements_not_empty:
            parts.append("none empty")
        if self.max_bytes is not None:
            parts.append(f"at most {self.max_bytes} bytes")
        return ", ".join(parts)

    def convert(self, value: Any) -> Value:
        """The value in this parameter's own Python type; a whole number is taken for a ``double``.

        :raises ValueError: of another type, not finite, or outside the limits; the message is one sentence.
        """
        if self.type is ParameterType.STRING_ARRAY:
            return self._convert_array(value)
        if self.type is ParameterType.DOUBLE_ARRAY:
            return self._convert_numbers(value)
        kinds: dict[ParameterType, tuple[type, ...]] = {
            ParameterType.BOOL: (bool,),
            ParameterType.INT: (int,),
            ParameterType.DOUBLE: (int, float),
            ParameterType.STRING: (str,),
        }
        if not isinstance(value, kinds[self.type]) or (isinstance(value, bool) != (self.type is ParameterType.BOOL)):
            raise self._refusal(f"{value!r} of type {type(value).__name__}", self.type.wanted)
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._check_number(value)
            return float(value) if self.type is ParameterType.DOUBLE else value
        if isinstance(value, str):
            if self.choices and value not in self.choices:
                raise self._refusal(repr(value), f"one of {self.range_text}")
            size = len(value.encode("utf-8", "replace"))
            if self.max_bytes is not None and size > self.max_bytes:
                raise self._refusal(f"{size} bytes long", f"at most {self.max_bytes} bytes")
            return value
        return bool(value)

    def _convert_array(self, value: Any) -> tuple[str, ...]:
        # ROS hands an empty list over as an array of another type or as "not set".
        items: Sequence[Any] = () if value is None else value
        if isinstance(items, str | bytes) or not hasattr(items, "__len__"):
            raise self._refusal(f"{value!r} of type {type(value).__name__}", self.type.wanted)
        items = tuple(items)
        for item in items:
            if not isinstance(item, str):
                raise self._refusal(f"a list with {item!r} of type {type(item).__name__}", self.type.wanted)
            if self.elements_not_empty and not item:
                raise self._refusal("a list with an empty text", "no empty text in it ([] is the empty list)")
        if self.max_items is not None and len(items) > self.max_items:
            raise self._refusal(f"a list of {len(items)}", f"at most {self.max_items} entries")
        return items

    def _convert_numbers(self, value: Any) -> tuple[float, ...]:
        items: Sequence[Any] = () if value is None else value
        if isinstance(items, str | bytes) or not hasattr(items, "__len__"):
            raise self._refusal(f"{value!r} of type {type(value).__name__}", self.type.wanted)
        for item in items:
            if not isinstance(item, int | float) or isinstance(item, bool) or not math.isfinite(item):
                raise self._refusal(f"a list with {item!r}", "finite numbers in it")
        if self.max_items is not None and len(items) > self.max_items:
            raise self._refusal(f"a list of {len(items)}", f"at most {self.max_items} entries")
        return tuple(float(item) for item in items)

    def _check_number(self, value: float) -> None:
        low, high = self.minimum, self.maximum
        below = low is not None and (value < low or (self.exclusive_minimum and value == low))
        if not math.isfinite(value) or below or (high is not None and value > high):
            limits = self.range_text
            wanted = limits if limits.startswith("above") or not limits else f"from {limits}"
            raise self._refusal(f"{value:g}", f"{self.type.wanted} {wanted}".rstrip())

    def _refusal(self, found: str, wanted: str) -> ValueError:
        return ValueError(f"{self.name} is {found}; want {wanted}.")


def _number_text(value: float, kind: ParameterType) -> str:
    return str(int(value)) if kind is ParameterType.INT or value == int(value) else f"{value:g}"


def _bounds(definition: ParameterDefinition, low: float, high: float) -> ParameterDefinition:
    return replace(definition, minimum=low, maximum=high)


# Validators of the schema -> what they make of a definition. size_lt is exclusive, as in the library.
_VALIDATORS: Mapping[str, Callable[..., ParameterDefinition]] = {
    "bounds<>": _bounds,
    "gt<>": lambda definition, low: replace(definition, minimum=low, exclusive_minimum=True),
    "lt_eq<>": lambda definition, high: replace(definition, maximum=high),
    "one_of<>": lambda definition, choices: replace(definition, choices=tuple(choices)),
    "size_lt<>": lambda definition, size: replace(definition, max_items=size - 1),
    "edgellm::unconfigured_only<>": lambda definition: replace(definition, effect=ParameterEffect.CONFIGURE),
    "edgellm::elements_not_empty<>": lambda definition: replace(definition, elements_not_empty=True),
    "edgellm::max_bytes<>": lambda definition, size: replace(definition, max_bytes=size),
}
_KEYS = {"type", "default_value", "description", "read_only", "validation"}


def _definition(name: str, entry: Mapping[str, Any]) -> ParameterDefinition:
    unknown = set(entry) - _KEYS
    missing = {"type", "default_value", "description"} - set(entry)
    if unknown or missing:
        raise ValueError(f"{name} has unknown keys {sorted(unknown)} and lacks {sorted(missing)}.")
    effect = ParameterEffect.START if entry.get("read_only", False) else ParameterEffect.REQUEST
    kind = ParameterType(entry["type"])
    default = entry["default_value"]
    definition = ParameterDefinition(
        name, kind, tuple(default) if isinstance(default, list) else default, entry["description"], effect
    )
    for validator, arguments in (entry.get("validation") or {}).items():
        if validator not in _VALIDATORS:
            raise ValueError(f"{name} has the validator {validator}; want one of {', '.join(sorted(_VALIDATORS))}.")
        definition = _VALIDATORS[validator](definition, *(arguments or ()))
    definition.convert(definition.default)
    return definition


def _flatten(prefix: str, tree: Mapping[str, Any]) -> list[ParameterDefinition]:
    found = []
    for key, entry in tree.items():
        name = f"{prefix}.{key}" if prefix else key
        if "type" in entry and not isinstance(entry["type"], Mapping):
            found.append(_definition(name, entry))
        else:
            found.extend(_flatten(name, entry))
    return found


@dataclass(frozen=True)
class ParameterSchema:
    """All parameters in the order of the file."""

    definitions: tuple[ParameterDefinition, ...]
    by_name: Mapping[str, ParameterDefinition] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {definition.name: definition for definition in self.definitions})

    def nearest(self, name: str) -> str:
        """What to say behind a name that no parameter has."""
        near = difflib.get_close_matches(name, self.by_name, n=1)
        return f"did you mean {near[0]}?" if near else "README.md lists those it has."

    def defaults(self) -> dict[str, Value]:
        """Value by name before anything is set."""
        return {definition.name: definition.default for definition in self.definitions}


def read_schema(text: str) -> ParameterSchema:
    """The schema in YAML ``text``, whose root key is the library's module name.

    :raises ValueError: an unknown key or validator, or a default outside its own limits.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return ParameterSchema(tuple(_flatten("", yaml.load(text, loader)[ROOT])))


@functools.cache
def schema() -> ParameterSchema:
    """The node's parameters."""
    return read_schema(SCHEMA_FILE.read_text(encoding="utf-8"))
