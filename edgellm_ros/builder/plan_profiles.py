"""Shapes that a plan is compiled for: smallest, most usual and largest of every input, for each kind of call."""

from __future__ import annotations

from collections.abc import Callable

from ..adapter_format import MASK
from ..engine_format import BuilderLimits
from ..errors import BackendError

Shape = tuple[int, ...]
Ranges = tuple[Shape, Shape, Shape]  # smallest, most usual, largest
Profile = Callable[[str, Shape], Ranges]  # an input's name and shape, -1 where it varies, to what it is compiled for
_USUAL_CHUNK = 128
_USUAL_PREFIX = 512


def profile_ranges(name: str, shape: Shape, limits: BuilderLimits, chunk: str) -> Ranges:
    """Ranges of one network input; ``shape`` has -1 where it varies, ``chunk`` is prefill or decode.

    :raises BackendError: an input whose free dimensions this version does not know.
    """
    longest = limits.max_input_len if chunk == "prefill" else 1
    sizes = {
        "batch": (1, 1, limits.max_batch_size),
        "positions": (1, min(_USUAL_CHUNK, longest), longest),
        "rows": (1, 1, 1),
        "prefix": (1, min(_USUAL_PREFIX, limits.max_kv_cache_capacity), limits.max_kv_cache_capacity),
    }
    dimensions = _dimensions(name, shape)
    if len(dimensions) != len(shape):
        raise BackendError(f"the graph's input {name!r} has {len(shape)} dimensions; want {len(dimensions)}.")
    ranges = []
    for dimension, size in zip(dimensions, shape, strict=True):
        if size >= 0:
            ranges.append((size,) * 3)
        elif dimension in sizes:
            ranges.append(sizes[dimension])
        else:
            raise BackendError(f"the graph's input {name!r} varies in {dimension}; want a fixed size.")
    smallest, usual, largest = (tuple(sizes) for sizes in zip(*ranges, strict=True))
    return smallest, usual, largest


def _dimensions(name: str, shape: Shape) -> tuple[str, ...]:
    if name in ("past_length", "query_length"):
        return ("batch",)
    if name == MASK:
        return "batch", "adapters"
    if name.startswith(("lora_a_", "lora_b_")):
        return "adapters", "width"
    if name == "last_token_index":
        return "batch", "rows"
    if name in ("attend_start", "attend_end"):
        return "batch", "positions"
    if name == "inputs_embeds" or name.startswith(("rope_cos_", "rope_sin_", "deepstack_")):
        return "batch", "positions", "width"
    if name.startswith(("past_key_", "past_value_")):
        if len(shape) == 4 and shape[1] < 0:
            return "prefix", "batch", "heads", "head size"
        return "batch", "heads", "capacity", "head size"
    raise BackendError(f"the graph's input {name!r} is none that this version compiles; build the directory again.")
