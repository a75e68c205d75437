"""Parameters and topics of the node as a command line gives them."""

from __future__ import annotations

import re
from typing import Any

from ..errors import RequestError
from ..json_values import shown

_NAMES = re.compile(r"/?[A-Za-z_]\w*(/[A-Za-z_]\w*)*", re.ASCII)  # of a topic or a node, with its namespaces


def assignment(text: str) -> tuple[str, Any]:
    """``name=value`` with the value as YAML reads it.

    :raises RequestError: it is none.
    """
    import yaml

    name, equals, value = text.partition("=")
    try:
        found = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError):  # of a date that is none, and of brackets without end
        found = None
    if not equals or not name.strip() or found is None:
        raise RequestError(f"{shown(text)} sets no parameter; want NAME=VALUE, such as action.noise_seed=7.")
    return name.strip(), found


def node_parameter(text: str) -> tuple[str, Any]:
    """The same, of a parameter that the node has, as a value that it takes.

    What a node is given at its start otherwise loses, without a word, to a parameter file with a value of another type.

    :raises RequestError: it has none of that name, or takes no such value.
    """
    from ..ros.parameter_schema import schema

    name, value = assignment(text)
    definitions = schema().by_name
    if name not in definitions:
        raise RequestError(f"The node has no parameter {shown(name)}; {schema().nearest(name)}")
    try:
        found = definitions[name].convert(value)
    except ValueError as error:
        raise RequestError(str(error)) from None
    return name, list(found) if isinstance(found, tuple) else found


def remapping(text: str) -> tuple[str, str]:
    """``before:=after`` of two topics.

    :raises RequestError: it is none.
    """
    before, _, after = text.partition(":=")
    if not (before and _NAMES.fullmatch(after)):
        raise RequestError(f"--remap is {text!r}; want TOPIC:=TOPIC, such as /camera/image:=/image.")
    return before, after


def node_name(text: str) -> tuple[str, str]:
    """Namespace, which is empty where there is none, and name of a node.

    :raises RequestError: no node can have that name.
    """
    if not _NAMES.fullmatch(text):
        raise RequestError(f"--node is {text!r}; want the whole name of a node, such as /left/edgellm.")
    namespace, _, name = text.rpartition("/")
    return namespace, name
