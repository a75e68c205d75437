"""What the cameras show."""

from __future__ import annotations

import numpy as np
import pytest

from edgellm_ros.tabletop.cameras import CAMERAS, IMAGE_SIZE
from edgellm_ros.tabletop.objects import COLOUR_VALUES, HEIGHTS
from edgellm_ros.tabletop.physics import empty_worlds
from edgellm_ros.tabletop.render import render_views
from edgellm_ros.tabletop.scenes import draw_scene


def scene_with(colour: int, shape: int, x: float = 0.06, y: float = 0.22):
    worlds = empty_worlds(1)
    worlds.present[0, 0] = True
    worlds.colour[0, 0], worlds.shape[0, 0] = colour, shape
    worlds.position[0, 0] = x, y
    worlds.paint[0, 0] = COLOUR_VALUES[colour]
    worlds.joints[0] = (3.0, 0.3, 0.0, 0.0)  # out of the way
    return worlds


@pytest.mark.parametrize("colour", range(len(COLOUR_VALUES)))
def test_both_cameras_see_a_disc_where_it_stands_in_its_own_colour(colour):
    worlds = scene_with(colour, 1)
    views = render_views(worlds, 0)
    for view, camera in zip(views, CAMERAS, strict=True):
        x, y = np.rint(camera.project(np.array([0.06, 0.22, HEIGHTS[1]]))).astype(int)
        assert view[y, x] == pytest.approx(COLOUR_VALUES[colour], abs=2)


def test_a_ring_has_a_hole_and_a_disc_has_none():
    x, y = np.rint(CAMERAS[0].project(np.array([0.06, 0.22, 0.01]))).astype(int)
    disc, ring = (render_views(scene_with(0, shape), 0)[0][y, x] for shape in (1, 2))
    assert np.abs(disc.astype(int) - ring.astype(int)).max() > 60


def test_the_whole_table_is_in_both_pictures():
    corners = np.array([[x, y, 0.0] for x in (-0.13, 0.13) for y in (0.07, 0.28)])
    for camera in CAMERAS:
        pixels = camera.project(corners)
        assert (pixels > 2).all() and (pixels < IMAGE_SIZE - 3).all()


def test_pictures_are_contiguous_rgb_bytes_and_repeat():
    worlds = draw_scene(np.random.default_rng(0))
    views = render_views(worlds, 0)
    assert views.shape == (2, IMAGE_SIZE, IMAGE_SIZE, 3) and views.dtype == np.uint8 and views.flags.c_contiguous
    assert np.array_equal(views, render_views(worlds, 0))


def test_the_gripper_shows_whether_it_is_down():
    worlds = scene_with(0, 0)
    worlds.joints[0] = draw_scene(np.random.default_rng(0)).joints[0]
    raised = render_views(worlds, 0)
    worlds.joints[0, 3] = 1.0
    lowered = render_views(worlds, 0)
    assert all((a != b).any() for a, b in zip(raised, lowered, strict=True))
