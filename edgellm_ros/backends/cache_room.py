"""What a cache is copied out into: tensors of a graph that reads a row's keys and values without being its engine."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import MisuseError
from .base import CacheLayout, Tensor


def check_room(layout: CacheLayout, length: int, tensors: Sequence[Tensor]) -> int:
    """Positions that the tensors of ``KVCache.copy_out`` have room for.

    :raises MisuseError: they are not those that ``copy_out`` takes.
    """
    room = tensors[0].shape[-1] if tensors and tensors[0].shape else 0
    wanted = [shape for heads, size in layout.layers for shape in ((1, heads, size, room), (1, heads, room, size))]
    found = [tensor.shape for tensor in tensors]
    types = {tensor.dtype for tensor in tensors} or {layout.dtype}
    if len(found) % 2 or found != wanted[: len(found)] or types != {layout.dtype} or room < length:
        raise MisuseError(
            f"{length} positions of {layout} were asked into {[type.value for type in types]} tensors {found[:2]}...; "
            f"want {layout.dtype.value} keys [1, heads, size, room] and values [1, heads, room, size] of first layers."
        )
    return room
