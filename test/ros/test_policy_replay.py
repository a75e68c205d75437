"""Where every observation is used in its order, a replay gives the same bytes, and each is used once."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import test_policy_node as policy_node

from edgellm_ros.action.chunk import NANOSECONDS

engine, start = policy_node.engine, policy_node.start
TASK, pictures, state, show = policy_node.TASK, policy_node.pictures, policy_node.state, policy_node.show
OPTIONS = {"action.rate": 50.0, "action.pairing": "every", "action.fixed_delay": 0.05, "generation.timeout": 0.0}


def _heard(chunks, label):
    return any(label in chunk.layout.dim[0].label for chunk in chunks)


def _count(messages, number):
    return len(messages) == number


@pytest.mark.parametrize("splice", ["replace", "blend", "ensemble", "rtc"])
def test_every_observation_is_used_once_and_a_replay_gives_the_same_bytes(start, splice):
    told = []
    for one_by_one in (True, False):  # a replay in a burst is the same
        bench, robot = start({**OPTIONS, "action.splice": splice, "action.blend_steps": 3})
        bench.client.ask(TASK)
        bench.wait_running()
        base = 1_700_000_000 * NANOSECONDS
        stamps = [base + k * NANOSECONDS // 10 for k in range(6)]
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


def test_a_replayed_task_goes_on_behind_what_the_last_one_used_and_a_single_chunk_is_of_the_newest(start):
    bench, robot = start({**OPTIONS, "prompt.on_busy": "replace"})
    base = 1_700_000_000 * NANOSECONDS
    stamps = [base + k * NANOSECONDS // 10 for k in range(6)]
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
