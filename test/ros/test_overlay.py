"""The picture on the overlay topic: images of any sizes beside each other, within bounds."""

from __future__ import annotations

import numpy as np
import pytest

from edgellm_ros.ros.overlay import LARGEST_SIDE, overlay

pytest.importorskip("cv2")

WHOLE = np.array([[0.0, 0.0, 1.0, 1.0]])


def drawn(*sizes: tuple[int, int], kept: tuple[tuple[int, ...], ...] = ()) -> np.ndarray:
    images = [np.full((*size, 3), 200, np.uint8) for size in sizes]
    return overlay(images, [WHOLE] * len(images), kept, "a cup")


def test_images_stand_at_the_height_of_the_first():
    picture = drawn((40, 60), (80, 60), (20, 10))
    assert picture.shape[1] == 60 + 30 + 20
    assert (picture[:40] == 200).all() and picture[40:].max() == 255


def test_what_only_the_view_of_the_whole_shows_is_dark():
    boxes = np.array([[0.0, 0.0, 1.0, 0.5], [0.0, 0.5, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    picture = overlay([np.full((40, 60, 3), 200, np.uint8)], [boxes], [(1, 2)], "")
    assert (picture[:40, :30] == 50).all() and (picture[:40, 30:] == 200).all()


@pytest.mark.parametrize("sizes", [
    ((10_000, 50), (50, 10_000)), ((50, 10_000), (10_000, 50)), ((3000, 3000),), ((1, 200), (200, 1)), ((1, 1), (1, 1)),
    ((1, 4096), (4096, 1)),
], ids=str)  # fmt: skip
def test_no_image_is_larger_than_the_limit_and_none_is_distorted(sizes):
    picture = drawn(*sizes, kept=((0,),) * len(sizes))
    height = min(sizes[0][0], LARGEST_SIDE)
    assert picture.shape[1] <= LARGEST_SIDE * len(sizes)
    place = 0
    for old_height, old_width in sizes:
        scale = min(height / old_height, LARGEST_SIDE / old_width)
        new_height, new_width = (max(1, round(side * scale)) for side in (old_height, old_width))
        part = picture[:height, place : place + new_width]
        assert (part[:new_height] == 200).all() and (part[new_height:] == 0).all()
        place += new_width
    assert place == picture.shape[1]
