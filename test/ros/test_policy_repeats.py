"""The same seed or recording gives a policy's node the same bytes again, and other seeds others."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from policy_bench import TASK, pictures, seconds, show, state

from edgellm_ros.action.chunk import NANOSECONDS

BASE = 1_700_000_000 * NANOSECONDS
IN_ORDER = {"action.rate": 50.0, "action.pairing": "every", "action.fixed_delay": 0.05, "generation.timeout": 0.0}


@pytest.mark.parametrize("mode", ["fixed", "sequence"])
def test_seeds_follow_the_mode_and_live_changes(start_policy, mode):
    bench, robot = start_policy({"action.noise_mode": mode, "action.noise_seed": 7})
    show(bench, robot)
    seeds = [bench.ask(TASK)[0]["seed"] for _ in range(2)]
    assert seeds == (["7", "7"] if mode == "fixed" else ["7", "8"])
    assert bench.set(action__noise_seed=-1) == [""]
    assert "action.noise_seed" in bench.set(action__noise_seed=2**31)[0]
    if mode == "sequence":
        bench.trigger("reset")
    assert bench.ask(TASK)[0]["seed"] == "-1"


def test_a_random_seed_is_named_and_gives_the_bytes_again(start_policy):
    bench, robot = start_policy({"action.noise_mode": "random"})
    show(bench, robot)
    seeds = [bench.ask(TASK)[0]["seed"] for _ in range(2)]
    bench.wait(lambda: len(robot.chunks) == 2, "two chunks")
    assert seeds[0] != seeds[1] and robot.chunks[0].data != robot.chunks[1].data
    assert bench.set(action__noise_mode="fixed", action__noise_seed=int(seeds[0])) == ["", ""]
    bench.ask(TASK)
    bench.wait(lambda: len(robot.chunks) == 3, "three chunks")
    assert robot.chunks[2].data == robot.chunks[0].data


def _heard(chunks, label):
    return any(label in chunk.layout.dim[0].label for chunk in chunks)


def _count(messages, number):
    return len(messages) == number


def _moments(trajectory):
    stamp = seconds(trajectory.header.stamp) - BASE // NANOSECONDS
    return [stamp + seconds(point.time_from_start) for point in trajectory.points]


def _at(trajectory, moment):
    """Positions that a trajectory has at a moment, in s from ``BASE``."""
    columns = np.transpose([point.positions for point in trajectory.points])
    return np.array([np.interp(moment, _moments(trajectory), column) for column in columns])


@pytest.mark.parametrize("splice", ["replace", "blend", "ensemble", "rtc"])
def test_every_observation_is_used_once_and_a_replay_gives_the_same_bytes(start_policy, splice):
    told = []
    for one_by_one in (True, False):  # a replay in a burst is the same
        bench, robot = start_policy({**IN_ORDER, "action.splice": splice, "action.blend_steps": 3})
        bench.client.ask(TASK)
        bench.wait_running()
        stamps = [BASE + k * NANOSECONDS // 10 for k in range(6)]
        for stamp in stamps:
            robot.observe(pictures(), state(), stamp)
            if one_by_one:
                bench.wait(functools.partial(_heard, robot.chunks, f"{stamp % NANOSECONDS:09d} "), "its chunk")
        trajectories = robot.trajectories
        bench.wait(functools.partial(_count, trajectories, 6), "six trajectories")
        bench.wait(functools.partial(_count, robot.chunks, 6), "six chunks")
        told.append(
            [
                [bytes(np.array(chunk.data).tobytes()) for chunk in robot.chunks],
                [
                    (t.header.stamp, [(p.time_from_start, tuple(p.positions)) for p in t.points])
                    for t in robot.trajectories
                ],
            ]
        )
        bench.close()
    assert told[0] == told[1]
    _, second = robot.trajectories[:2]
    chunk = np.reshape(robot.chunks[1].data, (7, 4))
    untouched = np.array_equal([point.positions for point in second.points], chunk)
    assert untouched == (splice in ("replace", "rtc"))
    bound = np.abs(chunk[0] - _at(robot.trajectories[0], _moments(second)[0])).max() < 1e-5
    assert bound == (splice == "rtc")  # the row that is due while the chunk is computed


def test_a_replayed_task_goes_on_behind_what_the_last_one_used_and_a_single_chunk_is_of_the_newest(start_policy):
    bench, robot = start_policy({**IN_ORDER, "prompt.on_busy": "replace"})
    stamps = [BASE + k * NANOSECONDS // 10 for k in range(6)]
    bench.client.ask(TASK)
    for stamp in stamps[:3]:
        show(bench, robot, stamp)
    bench.wait(functools.partial(_count, robot.chunks, 3), "three chunks")
    bench.client.ask(TASK)
    bench.wait(lambda: bench.client.reports, "the first task ends")
    show(bench, robot, stamps[3])
    bench.wait(lambda: len(robot.chunks) >= 4, "one chunk more")
    assert bench.set(action__rate=0.0) == [""]
    show(bench, robot, stamps[4])
    bench.wait(lambda: len(robot.chunks) >= 5, "one chunk more")
    bench.client.cancel()
    bench.wait(functools.partial(_count, bench.client.reports, 2), "the second task ends")
    for _ in range(2):
        show(bench, robot, stamps[5])
        bench.ask(TASK)
    bench.wait(lambda: len(robot.chunks) >= 7, "two chunks more")
    told = [chunk.layout.dim[0].label.split(" ")[0] for chunk in robot.chunks]
    assert told == [f"stamp={s // NANOSECONDS}.{s % NANOSECONDS:09d}" for s in [*stamps, stamps[5]]]
