"""What engines of all libraries ask of their named tensors, and which of these are caches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ..errors import BackendError
from .values import CacheLayout, DataType, TensorSpec

_CACHE_NAME = re.compile(r"(past|present|new)_(key|value)_(\d+)")
_LANGUAGE_INPUTS = ("inputs_embeds", "past_length", "last_token_index")


class Addressed(Protocol):
    """Memory with an address."""

    @property
    def address(self) -> int:
        """Where it lies."""
        ...

    def prefix(self, shape: tuple[int, ...]) -> Addressed:
        """See ``Tensor.prefix``."""
        ...


def is_language_model(inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec]) -> bool:
    """Whether an engine reads embeddings behind a past and gives logits."""
    return all(name in inputs for name in _LANGUAGE_INPUTS) and "logits" in outputs


class NamedTensors:
    """Inputs and outputs of one engine, caches left out; ``path`` names it in messages."""

    def __init__(self, path: object, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec]) -> None:
        self._path = path
        self.inputs = inputs
        self.outputs = outputs

    def find(self, name: str, dtype: DataType) -> TensorSpec:
        """The tensor that a caller binds. :raises ValueError: unknown name or another element type."""
        spec = self.inputs.get(name) or self.outputs.get(name)
        if spec is None:
            raise ValueError(f"{name!r} is no tensor of {self._path}; want one of {[*self.inputs, *self.outputs]}.")
        if dtype is not spec.dtype:
            raise ValueError(f"{name!r} was bound to {dtype.value}; want {spec.dtype.value}.")
        return spec

    def place(self, name: str, shape: tuple[int, ...], bound: Mapping[str, Addressed]) -> tuple[TensorSpec, int]:
        """The tensor and its address for a run with ``shape``.

        :raises BackendError: it is not bound, too small, or of another shape.
        """
        spec = self.inputs.get(name) or self.outputs.get(name)
        tensor = bound.get(name)
        if spec is None or tensor is None:
            raise BackendError(f"{name!r} was given a shape but is not bound; want a bound tensor of {self._path}.")
        if len(shape) != len(spec.shape) or any(
            want not in (-1, have) for want, have in zip(spec.shape, shape, strict=True)
        ):
            raise BackendError(f"{name!r} was run with shape {shape}; want {spec.shape}.")
        try:
            return spec, tensor.prefix(shape).address
        except ValueError as error:
            raise BackendError(f"{name!r}: {error}") from None


def cache_tensor(name: str) -> tuple[str, int] | None:
    """(past, present or new; keys of layer i at 2i, values at 2i + 1) of a cache tensor, None for another."""
    match = _CACHE_NAME.fullmatch(name)
    return None if match is None else (match[1], 2 * int(match[3]) + (match[2] == "value"))


def cache_tensors(path: object, specs: Iterable[TensorSpec]) -> tuple[list[TensorSpec], list[TensorSpec], bool]:
    """Cache tensors that are read, those that are written, and whether the latter are new rows alone.

    :raises BackendError: they make no set of caches.
    """
    found: dict[str, dict[int, TensorSpec]] = {"past": {}, "present": {}, "new": {}}
    for spec in specs:
        parsed = cache_tensor(spec.name)
        if parsed is not None:
            found[parsed[0]][parsed[1]] = spec
    past, present, new = found.values()
    written = new or present
    complete = set(past) == set(range(len(past))) == set(written) and len(past) % 2 == 0
    if not complete or (new and present):
        raise BackendError(
            f"{path} has {len(past)} past, {len(present)} present and {len(new)} new cache tensors; want past_key_i "
            "and past_value_i with present_ (in place) or new_ (rows to be added) for every layer."
        )
    slots = range(len(past))
    return [past[slot] for slot in slots], [written[slot] for slot in slots], bool(new)


def cache_layout(path: object, past: Sequence[TensorSpec], *, time_first: bool) -> CacheLayout:
    """Heads and head sizes of the caches that are read.

    :raises BackendError: they have other dimensions than [prefix, batch, heads, head size] with time first, or
        [batch, heads, capacity, head size].
    """
    heads = 2 if time_first else 1
    wanted = "[prefix, batch, heads, head size]" if time_first else "[batch, heads, capacity, head size]"
    layers = []
    for keys, values in zip(past[::2], past[1::2], strict=True):
        shape = keys.shape
        if shape != values.shape or keys.dtype is not values.dtype or len(shape) != 4 or -1 in (shape[heads], shape[3]):
            raise BackendError(f"{path}: {keys.name!r} has shape {shape}; want {wanted}.")
        layers.append((shape[heads], shape[3]))
    return CacheLayout(tuple(layers), past[0].dtype if past else DataType.FLOAT32)
