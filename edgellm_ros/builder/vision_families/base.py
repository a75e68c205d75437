"""What an image tower is: which tensors it has, which graph they make, and what a runtime must know of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ...errors import CheckpointError
from ..families.config_values import choice, whole_number
from .layers import Layers

ACTIVATIONS = {
    "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_new": "gelu_tanh",
    "quick_gelu": "quick_gelu", "silu": "silu",
}  # fmt: skip


class Tower(Protocol):
    """A tower as data, read from a configuration and checked against itself.

    Its graph has the input ``pixel_values`` and the output ``image_embeds`` float32 [N,tokens,hidden_size]; what else
    it takes is told by the settings. Tensors go by the names of ``names.vision_tensor_name``.
    """

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that the graph needs, with its shape."""
        ...

    def may_be_left_out(self, name: str) -> bool:
        """Whether a tensor that the graph does not need may be in the checkpoint all the same."""
        ...

    def build(self, layers: Layers) -> None:
        """Write the graph."""
        ...

    def settings(self) -> dict[str, Any]:
        """What ``visual/config.json`` says of it."""
        ...


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object inside a configuration. :raises CheckpointError: it is none."""
    value = config.get(key)
    if not isinstance(value, Mapping):
        raise CheckpointError(f"config.json: {key} is {value!r}; want an object: fetch it again.")
    return value


def side_length(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A size that some files write as a pair of equal numbers. :raises CheckpointError: it is neither."""
    value = config.get(key)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    return whole_number({key: value}, key, default)


def activation(config: Mapping[str, Any], key: str, default: str) -> str:
    """The kind of an activation. :raises CheckpointError: one that is not built."""
    return choice({key: config.get(key) or default}, key, ACTIVATIONS)


def divided(what: str, number: int, by: str, divisor: int) -> int:
    """A quotient without a rest. :raises CheckpointError: there is a rest."""
    if divisor < 1 or number % divisor:
        raise CheckpointError(f"config.json: {what} {number} is not a multiple of {by} {divisor}.")
    return number // divisor
