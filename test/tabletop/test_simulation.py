"""The world in time: expert trajectories solve it, and the score wants a second at rest."""

from __future__ import annotations

import numpy as np
import pytest

from edgellm_ros.tabletop.episodes import AT_REST, draw_episode
from edgellm_ros.tabletop.expert import TICK, expert_command
from edgellm_ros.tabletop.geometry import JOINT_LOWER, JOINT_NAMES, JOINT_UPPER
from edgellm_ros.tabletop.simulation import STEP, STILL_STEPS, Simulation
from edgellm_ros.tabletop.trajectory_follower import NANOSECONDS, TrajectoryPoint


def solve(seed: int, ticks: int = 90) -> Simulation:
    """Follow the expert by one-point trajectories, fifteen a second."""
    simulation, now = Simulation(seed), NANOSECONDS
    for _ in range(ticks):
        command = expert_command(simulation.worlds, simulation.tasks)[0]
        point = TrajectoryPoint(round(TICK * NANOSECONDS), command.tolist())
        simulation.follower.accept(JOINT_NAMES, [point], now, now)
        for _ in range(4):
            now += STEP
            simulation.step(now)
    return simulation


@pytest.mark.parametrize("seed", range(4))
def test_trajectories_of_the_expert_solve_the_episode(seed):
    score = solve(seed).score()
    assert score.success and score.reached and score.still
    assert score.task == draw_episode(seed).text


def test_a_task_that_is_reached_counts_only_after_a_second_at_rest():
    simulation = solve(1)
    now = 100 * NANOSECONDS
    wave = simulation.joints + np.array([0.2, 0.0, 0.0, 0.0])
    simulation.follower.accept(JOINT_NAMES, [TrajectoryPoint(NANOSECONDS // 2, wave.tolist())], now, now)
    for index in range(40):
        simulation.step(now + (index + 1) * STEP)
    assert not simulation.score().still and not simulation.score().success


@pytest.mark.parametrize(("share", "still"), [(0.7, True), (1.5, False)])
@pytest.mark.parametrize("joint", range(4), ids=JOINT_NAMES)
def test_a_single_joint_that_moves_is_no_rest_and_a_tremble_is(joint, share, still):
    simulation = Simulation(2)
    goal = simulation.joints
    middle = (JOINT_LOWER + JOINT_UPPER)[joint] / 2
    goal[joint] += np.copysign(share * AT_REST[joint], middle - goal[joint])
    simulation.follower.accept(JOINT_NAMES, [TrajectoryPoint(NANOSECONDS // 2, goal.tolist())], 0, 0)
    for index in range(STILL_STEPS):
        simulation.step((index + 1) * STEP)
    assert np.abs(simulation.joints - goal).max() < 1e-3
    assert simulation.score().still is still


def test_less_than_a_second_is_no_rest():
    simulation = Simulation(2)
    stills = []
    for index in range(STILL_STEPS):
        stills.append(simulation.score().still)
        simulation.step((index + 1) * STEP)
    assert not any(stills[:-1]) and simulation.score().still


def test_nothing_happens_by_itself():
    simulation = Simulation(2)
    before = simulation.worlds.copy()
    for index in range(120):
        simulation.step((index + 1) * STEP)
    there = before.present
    assert np.array_equal(before.position[there], simulation.worlds.position[there])
    assert np.array_equal(before.joints, simulation.worlds.joints)
    assert simulation.score().still and not simulation.score().success


def test_a_reset_begins_the_same_episode_again():
    simulation = solve(3)
    first = Simulation(3)
    simulation.reset(3)
    assert np.array_equal(simulation.views(), first.views())
    assert simulation.score() == first.score()
