"""Values of parameters as ROS reads them from YAML: from files for a node of a given name, and from a command line.

ROS has rules of its own for what is a number and what is text (``1_000`` is text, ``010`` is eight), and for which
nodes a part of a file is; it takes no aliases. Needs no ROS.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ..errors import EdgeLLMError, RefusalCode

_TRUE = {"y", "yes", "true", "on"}
_FALSE = {"n", "no", "false", "off"}
_SPECIAL = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}
_WHOLE_NUMBERS = ((r"[+-]?(0|[1-9][0-9]*)", 10), (r"[+-]?0[0-7]+", 8), (r"[+-]?0[xX][0-9a-fA-F]+", 16))
_LONGEST_NUMBER = 100  # characters of a whole number; Python refuses to read very long ones
_PARAMETERS = "ros__parameters"
_MOST_BYTES = 1 << 20  # of a file; all parameters of the node take a hundredth of that


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    def compose_node(self, parent: Any, index: Any) -> Any:
        """As of any loader; an alias is refused, for a few of them are as many values as one likes."""
        if self.check_event(yaml.AliasEvent):
            raise ValueError(f"*{self.peek_event().anchor} is an alias, which ROS refuses; write the value itself.")
        return super().compose_node(parent, index)

    def compose_scalar_node(self, anchor: Any) -> Any:
        """As of any loader; what is tagged as text is as if it had quotes."""
        text = self.peek_event().tag == "tag:yaml.org,2002:str"
        node = super().compose_scalar_node(anchor)
        node.style = node.style or ("'" if text else None)
        return node


def read_parameter_file(path: Path, node_name: str = "edgellm", namespace: str = "") -> dict[str, Any]:
    """Value by dotted name of what a file has for this node; of several, the last one counts.

    :raises EdgeLLMError: ROS would not take the file; the sentence names what is wrong with it.
    """
    found: dict[str, Any] = {}
    for part in parameter_parts(path, node_name, namespace):
        found |= part
    return found


def parameter_parts(path: Path, node_name: str, namespace: str) -> list[dict[str, Any]]:
    """The same for each part of a file that is for this node, in their order. :raises EdgeLLMError: as above."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise _bad(f"{path} has more than {_MOST_BYTES} bytes; want the YAML file of the node.")
        root = yaml.compose(content.decode(), _Loader)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise _bad(f"{path} cannot be read ({reason}); want the YAML file of the node.") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise _bad(f"{path} is not YAML ({' '.join(str(error).split())}); correct it.") from None
    except ValueError as error:
        raise _bad(f"{path}: {error}") from None
    if root is not None and not isinstance(root, yaml.MappingNode):
        raise _bad(f"{path} holds no names of nodes; want '/**:' with '{_PARAMETERS}:' below it.")
    whole = "/".join(["", *(part for part in namespace.split("/") if part), node_name])
    try:
        return [dict(_flat(part, "")) for pattern, part in _sections(root, "") if matches(pattern, whole)]
    except (ValueError, RecursionError) as error:
        raise _bad(f"{path}: {error}") from None


def matches(pattern: str, whole: str) -> bool:
    """Whether a part of a file for ``pattern`` is for the node ``whole``; * is one name, ** any number of them."""
    kinds = {"**": "(?:/[^/]+)*", "*": "/[^/]+"}
    names = [name for name in pattern.split("/") if name]
    return re.fullmatch("".join(kinds.get(name, "/" + re.escape(name)) for name in names), whole) is not None


def parse_value(text: str) -> Any:
    """What follows ``:=`` on a command line.

    :raises ValueError: it is no YAML, an alias, or a list of several types.
    """
    try:
        node = yaml.compose(text, _Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{text!r} is not YAML ({' '.join(str(error).split())}).") from None
    return "" if node is None else _value("the value", node)


def _sections(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Patterns of node names, and the parameters below each."""
    for key, value in _entries(node):
        if key == _PARAMETERS:
            yield prefix, value
        elif isinstance(value, yaml.MappingNode):
            yield from _sections(value, f"{prefix}/{key.strip('/')}")
        else:
            raise ValueError(f"{key} stands outside of '{_PARAMETERS}:'; put it below that.")


def _flat(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in _entries(node):
        name = f"{prefix}{key}"
        if isinstance(value, yaml.MappingNode):
            yield from _flat(value, f"{name}.")
        else:
            yield name, _value(name, value)


def _entries(node: Any) -> list[tuple[str, Any]]:
    if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
        return []
    if not isinstance(node, yaml.MappingNode):
        raise ValueError(f"'{_PARAMETERS}:' holds {node.value!r}; want names with values.")
    return [(str(key.value), value) for key, value in node.value]


def _value(name: str, node: Any) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return node.value if node.style else _plain(node.value)
    if not isinstance(node, yaml.SequenceNode):
        raise ValueError(f"{name} is a mapping; want one value or a list.")
    items = [_value(name, item) for item in node.value]
    kinds = {type(item).__name__: None for item in items}
    if len(kinds) > 1 or "list" in kinds:
        raise ValueError(f"{name} is a list of {' and '.join(kinds)}, which ROS refuses; write all of one type (1.0).")
    return items


def _plain(text: str) -> bool | int | float | str:
    """A value without quotes."""
    if text.lower() in _TRUE | _FALSE and text in (text.lower(), text.upper(), text.capitalize()):
        return text.lower() in _TRUE
    for pattern, base in _WHOLE_NUMBERS:
        if len(text) < _LONGEST_NUMBER and re.fullmatch(pattern, text) and -(2**63) <= int(text, base) < 2**63:
            return int(text, base)
    try:
        number = math.nan if "_" in text or not text.isascii() else float(_SPECIAL.get(text.lower(), text))
    except ValueError:
        return text
    too_large = math.isinf(number) and any(character.isdecimal() for character in text)
    return text if "_" in text or not text.isascii() or too_large else number


def _bad(sentence: str) -> EdgeLLMError:
    return EdgeLLMError(sentence, RefusalCode.BAD_PARAMETER)
