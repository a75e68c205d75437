"""Parameters and topics of the node as a command line gives them."""

from __future__ import annotations

from typing import Any

from ..errors import RequestError
from ..json_values import shown


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
    before, mark, after = text.partition(":=")
    if not (mark and before and after):
        raise RequestError(f"--remap is {text!r}; want TOPIC:=TOPIC, such as /camera/image:=/image.")
    return before, after
