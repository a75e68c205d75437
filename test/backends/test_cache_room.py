"""Tensors that a cache is copied out into are those of first layers, of one room and of the cache's type."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from edgellm_ros.backends.base import CacheLayout, DataType
from edgellm_ros.backends.cache_room import check_room
from edgellm_ros.errors import MisuseError

LAYOUT = CacheLayout(((2, 8), (1, 4)), DataType.FLOAT16)


class Shaped(NamedTuple):
    """What is looked at of a tensor."""

    shape: tuple[int, ...]
    dtype: DataType = DataType.FLOAT16


WHOLE = [Shaped((1, 2, 8, 5)), Shaped((1, 2, 5, 8)), Shaped((1, 1, 4, 5)), Shaped((1, 1, 5, 4))]


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_first_layers_have_room_for_as_many_positions_as_they_hold(count: int, length: int) -> None:
    assert check_room(LAYOUT, length, WHOLE[:count]) == 5  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("length", "tensors"),
    [
        (6, WHOLE),
        (1, []),
        (1, WHOLE[:1]),
        (1, WHOLE[:3]),
        (1, [*WHOLE, *WHOLE[2:]]),
        (1, WHOLE[2:]),
        (1, [WHOLE[1], WHOLE[0]]),
        (1, [*WHOLE[:2], Shaped((1, 1, 4, 6)), Shaped((1, 1, 6, 4))]),
        (1, [*WHOLE[:3], Shaped((1, 1, 5, 4), DataType.FLOAT32)]),
        (1, [Shaped(tensor.shape, DataType.BFLOAT16) for tensor in WHOLE]),
        (1, [Shaped(()), *WHOLE[1:]]),
    ],
    ids=[
        "too long", "none", "keys alone", "a layer's keys alone", "a layer too many", "not the first", "turned",
        "two rooms", "two types", "another type", "a number",
    ],
)  # fmt: skip
def test_others_are_refused_in_a_sentence(length: int, tensors: list[Shaped]) -> None:
    with pytest.raises(MisuseError, match=r"want float16 keys \[1, heads, size, room\] and values"):
        check_room(LAYOUT, length, tensors)  # type: ignore[arg-type]
