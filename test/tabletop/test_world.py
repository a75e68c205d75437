"""The tabletop's physics: what the hand pushes, grasps, misses, carries and stacks."""

from __future__ import annotations

import numpy as np
import pytest

from edgellm_ros.tabletop import geometry
from edgellm_ros.tabletop.episodes import advance
from edgellm_ros.tabletop.physics import Worlds, empty_worlds

UP = np.array(np.pi / 2)


def world_with(*objects: tuple[int, float, float], hand: tuple[float, float], opening: float = 0.0) -> Worlds:
    """One world with objects (shape, x, y) and a hand that points away from the base."""
    worlds = empty_worlds(1)
    for index, (shape, x, y) in enumerate(objects):
        worlds.present[0, index] = True
        worlds.shape[0, index] = shape
        worlds.position[0, index] = x, y
    worlds.joints[0, :3] = geometry.inverse_kinematics(np.array(hand), UP)
    worlds.joints[0, 3] = opening
    worlds.command = worlds.joints.copy()
    return worlds


def move(worlds: Worlds, hand: tuple[float, float], opening: float, ticks: int = 12) -> None:
    """Go to a place in a straight line, then change the gripper."""
    start, _ = geometry.forward_kinematics(worlds.joints[0])
    for share in np.linspace(0.0, 1.0, ticks + 1)[1:]:
        target = geometry.inverse_kinematics(start + share * (np.array(hand) - start), UP)
        advance(worlds, np.concatenate([target, worlds.command[0, 3:]])[None])
    for _ in range(6):
        advance(worlds, np.concatenate([worlds.command[0, :3], [opening]])[None])


@pytest.mark.parametrize("hand", [(0.0, 0.2), (-0.14, 0.09), (0.13, 0.3), (0.05, 0.08)], ids=str)
@pytest.mark.parametrize("heading", [0.0, np.pi / 2, np.pi])
def test_inverse_kinematics_reaches_the_table(hand, heading):
    joints = geometry.inverse_kinematics(np.array(hand), np.array(heading))
    assert (joints >= geometry.JOINT_LOWER[:3]).all() and (joints <= geometry.JOINT_UPPER[:3]).all()
    place, found = geometry.forward_kinematics(joints)
    assert place == pytest.approx(hand, abs=1e-9)
    assert found == pytest.approx(heading)


def test_joints_keep_their_speed_and_their_limits():
    worlds = world_with(hand=(0.0, 0.2))
    before = worlds.joints.copy()
    advance(worlds, np.array([[9.0, 9.0, 9.0, 9.0]]))
    assert (np.abs(worlds.joints - before) <= geometry.JOINT_SPEED / 15.0 + 1e-9).all()
    for _ in range(60):
        advance(worlds, np.array([[9.0, 9.0, 9.0, 9.0]]))
    assert worlds.joints[0] == pytest.approx(geometry.JOINT_UPPER)


def test_a_raised_hand_passes_over_objects():
    worlds = world_with((0, 0.0, 0.18), hand=(-0.1, 0.18))
    move(worlds, (0.1, 0.18), 0.0)
    assert worlds.position[0, 0] == pytest.approx((0.0, 0.18))


def test_a_lowered_hand_pushes_and_nothing_slides_on():
    worlds = world_with((1, 0.0, 0.2), hand=(0.0, 0.15), opening=0.5)
    move(worlds, (0.0, 0.22), 0.5)
    pushed = worlds.position[0, 0].copy()
    assert pushed[1] > 0.24 and abs(pushed[0]) < 0.003
    for _ in range(15):
        advance(worlds, worlds.command.copy())
    assert worlds.position[0, 0] == pytest.approx(pushed)


def test_closing_around_an_object_takes_it_and_opening_lets_go():
    worlds = world_with((0, 0.0, 0.2), hand=(0.0, 0.2))
    move(worlds, (0.0, 0.2), 1.0)
    move(worlds, (0.0, 0.2), 0.0)
    assert worlds.held[0] == 0
    assert worlds.joints[0, 3] == pytest.approx(geometry.HELD_OPENING)  # the object stops the fingers
    move(worlds, (0.1, 0.25), 0.0)
    assert worlds.position[0, 0] == pytest.approx((0.1, 0.25), abs=0.003)
    move(worlds, (0.1, 0.25), 1.0)
    assert worlds.held[0] == -1


@pytest.mark.parametrize("offset", [(0.035, 0.0), (0.0, 0.03)], ids=["beside", "ahead"])
def test_closing_beside_an_object_misses_it(offset):
    worlds = world_with((0, 0.0, 0.2), hand=(offset[0], 0.2 - offset[1]))
    move(worlds, (offset[0], 0.2 - offset[1]), 1.0)
    move(worlds, (offset[0], 0.2 - offset[1]), 0.0)
    assert worlds.held[0] == -1
    assert worlds.joints[0, 3] == pytest.approx(0.0)


def test_a_released_object_rests_on_the_one_below_and_falls_off_when_dragged_away():
    worlds = world_with((0, 0.0, 0.2), (1, 0.1, 0.2), hand=(0.0, 0.2))
    move(worlds, (0.0, 0.2), 1.0)
    move(worlds, (0.0, 0.2), 0.0)
    move(worlds, (0.1, 0.2), 1.0)
    assert worlds.support[0, 0] == 1
    assert worlds.position[0, 0] == pytest.approx(worlds.position[0, 1], abs=0.004)
    worlds.position[0, 0, 0] += 0.05
    advance(worlds, worlds.command.copy())
    assert worlds.support[0, 0] == -1


def test_objects_on_the_table_do_not_overlap():
    worlds = world_with((0, 0.0, 0.2), (1, 0.01, 0.2), (2, 0.0, 0.21), hand=(0.0, 0.1))
    for _ in range(40):
        advance(worlds, worlds.command.copy())
    gaps = np.linalg.norm(worlds.position[0, :3, None] - worlds.position[0, None, :3], axis=-1)
    reach = worlds.radius[0, :3, None] + worlds.radius[0, None, :3]
    assert (gaps[~np.eye(3, dtype=bool)] > reach[~np.eye(3, dtype=bool)] - 1e-3).all()


def test_a_batch_steps_as_its_worlds_do_alone():
    first = world_with((0, 0.0, 0.2), hand=(0.0, 0.2))
    second = world_with((1, 0.05, 0.15), (2, 0.0, 0.2), hand=(0.05, 0.1), opening=0.5)
    both = Worlds.stack([first, second])
    command = np.concatenate([first.command, second.command]) + np.array([0.05, 0.02, -0.1, 0.4])
    for _ in range(5):
        advance(both, command)
        advance(first, command[:1])
        advance(second, command[1:])
    assert np.array_equal(both.position, np.concatenate([first.position, second.position]))
    assert np.array_equal(both.joints, np.concatenate([first.joints, second.joints]))
