"""Chunks joined in time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm_ros.action.chunk import NANOSECONDS, ActionChunk, ActionLimits, check_finite, check_limits
from edgellm_ros.action.timeline import ChunkTimeline, Splice
from edgellm_ros.errors import ChunkError, PolicyError, RefusalCode

START = 1_000 * NANOSECONDS
STEP = NANOSECONDS // 20


def chunk(stamp, rows=16, value=None, width=2):
    values = (
        np.arange(rows, dtype=np.float64)[:, None] * np.ones(width) if value is None else np.full((rows, width), value)
    )
    return ActionChunk(values, stamp, STEP, tuple(f"joint_{k}" for k in range(width)), ("rad",) * width)


def test_the_first_chunk_is_followed_from_its_first_row_however_long_it_took():
    now = START + 40 * STEP  # warm-up took longer than the whole chunk
    plan = ChunkTimeline().add(chunk(START), now)
    assert plan.skipped == 0 and len(plan.rows) == 16 and plan.due[0] == now + STEP


def test_seven_steps_of_computing_resume_at_row_seven_by_time():
    timeline = ChunkTimeline()
    timeline.add(chunk(START), START)
    plan = timeline.add(chunk(START + 8 * STEP), START + 15 * STEP)
    assert plan.skipped == 7 and plan.rows[0, 0] == 7 and plan.due[0] == START + 16 * STEP


def test_a_chunk_that_lies_in_the_past_is_dropped_and_says_by_how_much():
    timeline = ChunkTimeline()
    first = timeline.add(chunk(START), START)
    with pytest.raises(ChunkError, match=r"due 0\.200 s ago") as error:
        timeline.add(chunk(START + STEP), START + 21 * STEP)
    assert error.value.code is RefusalCode.LATE_CHUNK and timeline.plan is first


def test_after_a_pause_the_next_chunk_is_a_first_one():
    timeline = ChunkTimeline()
    timeline.add(chunk(START), START)
    timeline.clear()
    assert timeline.add(chunk(START + 10 * STEP), START + 90 * STEP).skipped == 0


@pytest.mark.parametrize("execute", [1, 5, 16, 99])
def test_only_the_asked_number_of_rows_is_followed(execute):
    timeline = ChunkTimeline(execute_steps=execute)
    assert len(timeline.add(chunk(START), START).rows) == min(execute, 16)
    later = timeline.add(chunk(START + 4 * STEP), START + 6 * STEP)
    assert len(later.rows) == min(execute, 14) and later.rows[0, 0] == 2


def test_blending_fades_from_the_old_plan_to_the_new():
    timeline = ChunkTimeline(Splice.BLEND, blend_steps=3)
    timeline.add(chunk(START, value=0.0), START)
    rows = timeline.add(chunk(START + 2 * STEP, value=1.0), START + 4 * STEP).rows[:, 0]
    assert np.allclose(rows[:4], [0.25, 0.5, 0.75, 1.0]) and np.all(rows[3:] == 1.0)


def test_blending_ends_where_the_old_plan_ends():
    timeline = ChunkTimeline(Splice.BLEND, blend_steps=8, execute_steps=4)
    timeline.add(chunk(START, value=0.0), START)
    rows = timeline.add(chunk(START + 2 * STEP, value=1.0), START + 2 * STEP).rows[:, 0]
    assert np.allclose(rows[:2], [1 / 9, 2 / 9]) and np.all(rows[2:] == 1.0)


def test_ensembling_weighs_the_oldest_most():
    timeline = ChunkTimeline(Splice.ENSEMBLE, decay=0.5)
    for index, value in enumerate((3.0, 6.0, 12.0)):
        stamp = START + index * STEP
        plan = timeline.add(chunk(stamp, value=value), stamp)
    weights = np.exp(-0.5 * np.arange(3))
    assert np.allclose(plan.rows[0], weights @ [3.0, 6.0, 12.0] / weights.sum())
    assert np.allclose(plan.rows[-1], 12.0)  # only the newest speaks of that time


def test_ensembling_forgets_what_was_before_a_hold_and_takes_over_what_is_followed():
    timeline = ChunkTimeline(Splice.ENSEMBLE, decay=0.0)
    timeline.add(chunk(START, value=3.0), START)
    timeline.clear(START + STEP)
    assert np.all(timeline.add(chunk(START + STEP, value=9.0), START + STEP).rows == 9.0)
    fresh, other = ChunkTimeline(Splice.ENSEMBLE, decay=0.0), ChunkTimeline(Splice.ENSEMBLE, decay=0.0)
    fresh.take_over(timeline)
    assert fresh.add(chunk(START + 2 * STEP, value=3.0), START + 2 * STEP).rows[0, 0] == 6.0
    other.take_over(ChunkTimeline())
    assert np.all(other.add(chunk(START, value=3.0), START).rows == 3.0)


def test_a_plan_is_checked_against_what_was_followed_one_step_before_it():
    timeline, told = ChunkTimeline(), []
    timeline.add(chunk(START), START, lambda plan, before: told.append(before))
    timeline.add(chunk(START + 2 * STEP), START + 4 * STEP, lambda plan, before: told.append((plan.due[0], *before)))
    assert told == [None, (START + 5 * STEP, 3.0, 3.0)]  # the old row that was due at START + 4 * STEP


def test_chunks_that_agree_are_left_alone_by_every_splice():
    for splice in Splice:
        timeline = ChunkTimeline(splice)
        for index in range(5):
            stamp = START + index * 3 * STEP
            rows = np.sin(0.1 * (3 * index + 1 + np.arange(16)))[:, None]
            plan = timeline.add(ActionChunk(rows, stamp, STEP, ("a",), ("rad",)), stamp + (STEP if index else 0))
        assert np.allclose(plan.rows[:, 0], np.sin(0.1 * (plan.due - START) / STEP), atol=1e-9), splice


def test_what_is_committed_is_the_running_plan_at_the_new_chunks_times():
    timeline = ChunkTimeline()
    timeline.add(chunk(START), START)
    rows = timeline.committed(START + 3 * STEP + STEP // 2, STEP, 16)
    assert np.allclose(rows[:, 0], 3.5 + np.arange(12)) and timeline.committed(START + 99 * STEP, STEP, 4).shape[0] == 0
    assert timeline.committed(START + 14 * STEP, STEP, 4)[:, 0].tolist() == [14.0, 15.0]  # its last row too
    assert ChunkTimeline().committed(START, STEP, 4).shape[0] == 0


@given(
    splice=st.sampled_from(list(Splice)),
    execute=st.integers(0, 12),
    steps=st.lists(
        st.tuples(st.integers(0, 9 * STEP), st.integers(0, 20 * STEP), st.integers(1, 20)), min_size=1, max_size=12
    ),
)
def test_no_sample_ever_steps_back_in_time_at_any_latency(splice, execute, steps):
    timeline = ChunkTimeline(splice, execute_steps=execute)
    stamp = now = START
    for gap, latency, rows in steps:
        stamp += gap
        now = max(now, stamp + latency)
        before = timeline.plan
        try:
            plan = timeline.add(chunk(stamp, rows), now)
        except ChunkError as error:
            assert error.code is RefusalCode.LATE_CHUNK and stamp + rows * STEP <= now and before is timeline.plan
            continue
        assert np.all(plan.due > now) and np.all(np.diff(plan.due) > 0)
        assert np.isfinite(plan.rows).all() and len(plan.rows) == len(plan.due) >= 1
        if before is None:
            assert plan.skipped == 0
        elif splice in (Splice.REPLACE, Splice.RTC):
            assert plan.rows[0, 0] == (plan.due[0] - stamp) / STEP - 1  # the row that is due then, not another


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0), (7, 1), (15, 1)])
def test_one_number_that_is_not_finite_drops_the_chunk(bad, place):
    rows = np.zeros((16, 2))
    rows[place] = bad
    with pytest.raises(ChunkError, match=rf"joint_{place[1]} in row {place[0]} \(1 of 32") as error:
        check_finite(rows, ("joint_0", "joint_1"))
    assert error.value.code is RefusalCode.NOT_FINITE


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (ActionLimits(upper=(9.0, 4.5)), "row 5 of the chunk takes joint_1 to 5, above its upper limit of 4.5"),
        (ActionLimits(lower=(0.5, 0.0)), "row 0 of the chunk takes joint_0 to 0, below its lower limit of 0.5"),
        (
            ActionLimits(max_step=(2.0, 0.5)),
            "row 1 of the chunk takes joint_1 to 1, a step larger than its limit of 0.5",
        ),
    ],
)
def test_a_chunk_beyond_a_limit_is_refused_with_joint_row_and_numbers(limits, sentence):
    rows = np.arange(8.0)[:, None] * np.ones(2)
    with pytest.raises(ChunkError, match=sentence):
        check_limits(rows, ("joint_0", "joint_1"), limits)


def test_the_first_step_counts_from_where_the_robot_is():
    rows = np.ones((4, 1))
    check_limits(rows, ("a",), ActionLimits(max_step=(0.2,)), start=np.array([0.9]))
    with pytest.raises(ChunkError, match="a step larger"):
        check_limits(rows, ("a",), ActionLimits(max_step=(0.2,)), start=np.array([0.0]))


def test_limits_of_another_width_are_refused():
    with pytest.raises(ChunkError, match="lower has 3 entries for 2 action dimensions"):
        check_limits(np.zeros((1, 2)), ("a", "b"), ActionLimits(lower=(0.0, 0.0, 0.0)))


@pytest.mark.parametrize("fields", [{"execute_steps": -1}, {"blend_steps": 0}, {"decay": float("nan")}])
def test_settings_out_of_range_are_refused(fields):
    with pytest.raises(PolicyError, match=r"execute_steps is .*want"):
        ChunkTimeline(**fields)


def test_a_chunk_names_every_column():
    with pytest.raises(ChunkError, match="one name and one unit for each column"):
        ActionChunk(np.zeros((4, 3)), START, STEP, ("a", "b"), ("rad", "rad"))
    with pytest.raises(ChunkError, match="step is 0 ns; want more than 0"):
        ActionChunk(np.zeros((4, 1)), START, 0, ("a",), ("rad",))
