"""Checked access to the keys of a ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import CheckpointError
from ...json_values import LEAST_REAL, MOST_REAL, finite_number, is_positive, shown

LARGEST = 1 << 24
REALS = f"from {LEAST_REAL:g} to {MOST_REAL:g}"
MOST_LAYERS = 1 << 10
MOST_HEADS = 1 << 12
WIDEST_HEAD = 1 << 12


def whole_number(
    config: Mapping[str, Any], key: str, default: int | None = None, *, least: int = 1, largest: int = LARGEST
) -> int:
    """A whole number of a configuration; an absent or null key gives ``default``.

    :raises CheckpointError: absent without a default, or another value.
    """
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise CheckpointError(f"config.json lacks {key}; want a whole number: fetch it again.")
    if type(value) is not int or not least <= value <= largest:
        raise CheckpointError(f"config.json: {key} is {value!r}; want a whole number from {least} to {largest}.")
    return value


def real_number(config: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A positive number of a configuration. :raises CheckpointError: as ``whole_number``."""
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise CheckpointError(f"config.json lacks {key}; want a number: fetch it again.")
    if not is_positive(value):
        raise CheckpointError(f"config.json: {key} is {value!r}; want a positive number {REALS}.")
    return float(value)


def numbers(config: Mapping[str, Any], key: str, default: Sequence[float]) -> tuple[float, ...]:
    """As many finite numbers of a configuration as ``default`` has. :raises CheckpointError: another value."""
    value = config.get(key)
    value = default if value is None else value
    try:
        if not isinstance(value, list | tuple) or len(value) != len(default):
            raise ValueError
        return tuple(finite_number(key, entry) for entry in value)
    except ValueError:
        raise CheckpointError(
            f"config.json: {key} is {shown(value)}; want a list of {len(default)} finite numbers."
        ) from None


def optional_number(config: Mapping[str, Any], key: str) -> float:
    """A positive number, or 0 where the key is null or absent. :raises CheckpointError: another value."""
    return 0.0 if config.get(key) is None else real_number(config, key)


def switch(config: Mapping[str, Any], key: str, default: bool) -> bool:
    """True or false of a configuration. :raises CheckpointError: another value."""
    value = config.get(key)
    value = default if value is None else value
    if type(value) is not bool:
        raise CheckpointError(f"config.json: {key} is {value!r}; want true or false.")
    return value


def token_id(config: Mapping[str, Any], key: str) -> int | None:
    """A token id; the first one of a list; None when absent or negative. :raises CheckpointError: another value."""
    value = config.get(key)
    if isinstance(value, list) and value:
        value = value[0]
    if value is None or value == -1:
        return None
    if type(value) is not int or value < 0:
        raise CheckpointError(f"config.json: {key} is {value!r}; want a token id.")
    return value


def choice(config: Mapping[str, Any], key: str, known: Mapping[str, str]) -> str:
    """What ``known`` makes of a word.

    :raises CheckpointError: absent or unknown; the sentence lists those there are.
    """
    value = config.get(key)
    if not isinstance(value, str) or value not in known:
        raise CheckpointError(
            f"config.json: {key} is {value!r}; want {' or '.join(map(repr, known))} for this architecture."
        )
    return known[value]


def layer_list(config: Mapping[str, Any], key: str, layers: int, allowed: Sequence[Any]) -> list[Any] | None:
    """One entry for each layer, or None where the key is null or absent.

    :raises CheckpointError: no list, too short, or with an entry that is not ``allowed``.
    """
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) < layers:
        found = f"has {len(value)} entries" if isinstance(value, list) else f"is {value!r}"
        raise CheckpointError(f"config.json: {key} {found}; want one for each of {layers} layers.")
    for entry in value[:layers]:
        if entry not in allowed:
            raise CheckpointError(
                f"config.json: {key} holds {entry!r}; want {' or '.join(map(repr, allowed))} for this architecture."
            )
    return value[:layers]


def require(config: Mapping[str, Any], key: str, wanted: Any, reason: str) -> None:
    """A key that may only be absent, null or ``wanted``. :raises CheckpointError: it is not; with the ``reason``."""
    value = config.get(key)
    if value is not None and value != wanted:
        raise CheckpointError(f"config.json: {key} is {value!r}; want {wanted!r}, because {reason}.")
