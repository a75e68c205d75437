"""Frames of several cameras: which belong together, and what late, early and repeated stamps do."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as some

from edgellm_ros.ros.synchronizer import Frame, FrameEvent, FrameSet, Lack, NoFrames, Synchronizer

SECOND = 1_000_000_000
START = 1000 * SECOND
RULE = {"slop": 0.05, "max_age": 1.0}


def at(seconds: float) -> int:
    return START + round(seconds * SECOND)


def frame(camera: str, seconds: float) -> Frame:
    return Frame(camera, at(seconds), f"{camera} at {seconds}")


def filled(cameras: str, *frames: tuple[str, float], now: float | None = None) -> Synchronizer:
    synchronizer = Synchronizer(list(cameras))
    for camera, seconds in frames:
        synchronizer.add(frame(camera, seconds), at(seconds if now is None else now))
    return synchronizer


def payloads(found: FrameSet | NoFrames) -> list[str]:
    assert isinstance(found, FrameSet), found
    return [one.payload for one in found.frames]


def test_one_camera_gives_its_newest_frame():
    synchronizer = filled("a", ("a", 0.0), ("a", 0.1), ("a", 0.2))
    found = synchronizer.select(at(0.25), **RULE)
    assert payloads(found) == ["a at 0.2"]
    assert found.ages == pytest.approx({"a": 0.05})
    assert found.stamp == at(0.2)


def test_frames_pair_by_observation_stamp_whatever_the_order_of_arrival():
    synchronizer = filled("ab", ("a", 0.0), ("a", 0.1), ("b", 0.01), ("a", 0.2), ("b", 0.11), now=0.2)
    assert payloads(synchronizer.select(at(0.25), **RULE)) == ["a at 0.1", "b at 0.11"]


@pytest.mark.parametrize(("apart", "paired"), [(0.0, True), (0.05, True), (0.051, False), (0.09, False)])
@pytest.mark.parametrize("first", ["a", "b"])
def test_frames_belong_together_up_to_the_slop_and_not_beyond(apart, paired, first):
    other = "b" if first == "a" else "a"
    found = filled("ab", (first, 0.0), (other, apart), now=apart).select(at(apart), **RULE)
    assert isinstance(found, FrameSet) == paired


def test_a_camera_200_ms_late_is_refused_or_paired_with_older_frames():
    """SYN-1."""
    late = filled("ab", ("a", 1.0), ("b", 0.8))
    found = late.select(at(1.0), **RULE)
    assert (found.lack, found.sentence) == (
        Lack.UNPAIRED,
        "The images of a and b are 0.200 s apart; images.sync_slop allows 0.05 s: raise it, or let the slower camera "
        "send more often.",
    )
    kept = filled("ab", ("a", 0.8), ("a", 0.9), ("a", 1.0), ("b", 0.8), now=1.0)
    assert payloads(kept.select(at(1.0), **RULE)) == ["a at 0.8", "b at 0.8"]


def test_a_camera_that_stopped_is_named_with_its_age():
    """SYN-1."""
    synchronizer = filled("ab", ("a", 0.0), ("b", 0.0), ("a", 5.0), now=5.0)
    found = synchronizer.select(at(5.0), **RULE)
    assert found == NoFrames(Lack.STALE, "The newest image from b is 5.00 s old; images.max_age allows 1 s.")


@pytest.mark.parametrize(("now", "side"), [(1.7e9, "before"), (-1.7e9, "ahead of")])
def test_images_of_another_clock_are_told_from_old_ones(now, side):
    found = filled("a", ("a", 0.0)).select(at(now), **RULE)
    assert found.lack is Lack.STALE and "use_sim_time" in found.sentence
    assert f"is stamped 1700000000 s {side} this node's clock, which is another one" in found.sentence


def test_one_of_three_that_is_missing_is_named():
    """SYN-1."""
    found = filled("abc", ("a", 0.0), ("c", 0.0)).select(at(0.0), **RULE)
    assert found == NoFrames(Lack.MISSING, "No image has come from b yet.")


def test_old_frames_of_a_pair_count_for_its_age():
    synchronizer = filled("ab", ("a", 0.0), ("a", 0.9), ("b", 0.0), ("b", 0.5), now=0.9)
    found = synchronizer.select(at(0.9), slop=0.05, max_age=0.6)
    assert found.lack is Lack.STALE
    assert payloads(synchronizer.select(at(0.9), slop=0.05, max_age=0.95)) == ["a at 0.0", "b at 0.0"]
    assert payloads(synchronizer.select(at(900), slop=0.05, max_age=0.0)) == ["a at 0.0", "b at 0.0"]


@pytest.mark.parametrize(("stamp", "event"), [
    (0, FrameEvent.ZERO_STAMP), (at(0.2), FrameEvent.FUTURE_STAMP), (at(0.05), FrameEvent.TAKEN),
    (at(-3600), FrameEvent.TAKEN),
])  # fmt: skip
def test_zero_and_future_stamps_are_turned_away_and_counted(stamp, event):
    """SYN-2."""
    synchronizer = Synchronizer(["a"])
    assert synchronizer.add(Frame("a", stamp, None), at(0.0)) is event
    assert synchronizer.events("a") == {event.value: 1}
    assert isinstance(synchronizer.select(at(0.0), slop=0.05, max_age=0.0), FrameSet) == (event is FrameEvent.TAKEN)


@pytest.mark.parametrize("back", [0.0, 0.001, 0.9])
def test_a_message_out_of_order_is_dropped_alone(back):
    """SYN-2, SYN-3."""
    synchronizer = filled("ab", ("a", 1.0), ("b", 1.0))
    assert synchronizer.add(frame("a", 1.0 - back), at(1.01)) is FrameEvent.OUT_OF_ORDER
    assert payloads(synchronizer.select(at(1.02), **RULE)) == ["a at 1.0", "b at 1.0"]
    assert synchronizer.events("a") == {"taken": 1, "out_of_order": 1}


def test_a_clock_that_jumps_back_forgets_all_and_work_resumes_with_one_frame():
    """SYN-3: a bag that loops, under use_sim_time."""
    synchronizer = filled("a", ("a", 60.0))
    assert synchronizer.add(frame("a", 0.0), at(0.01)) is FrameEvent.CLOCK_JUMP
    assert payloads(synchronizer.select(at(0.02), **RULE)) == ["a at 0.0"]
    assert synchronizer.add(frame("a", 0.1), at(0.11)) is FrameEvent.TAKEN


def test_a_jump_is_told_even_where_the_first_frame_behind_it_is_turned_away():
    synchronizer = filled("a", ("a", 100.0))
    events = [synchronizer.add(Frame("a", stamp, ""), at(40.0)) for stamp in (0, at(90.0), at(40.0), at(40.1))]
    assert events == [FrameEvent.ZERO_STAMP, FrameEvent.BEFORE_JUMP, FrameEvent.CLOCK_JUMP, FrameEvent.TAKEN]


def test_frames_that_waited_while_the_clock_went_back_are_not_said_to_be_ahead_of_it():
    synchronizer = filled("ab", ("a", 100.0), ("b", 100.0))
    waiting = [("a", 100.05), ("a", 40.0), ("b", 100.05), ("b", 40.0), ("b", 170.0)]
    events = [synchronizer.add(frame(camera, stamp), at(40.01)) for camera, stamp in waiting]
    assert events == [
        FrameEvent.BEFORE_JUMP, FrameEvent.CLOCK_JUMP, FrameEvent.BEFORE_JUMP, FrameEvent.TAKEN, FrameEvent.FUTURE_STAMP
    ]  # fmt: skip
    assert payloads(synchronizer.select(at(40.02), **RULE)) == ["a at 40.0", "b at 40.0"]


def test_frames_of_the_other_cameras_do_not_outlive_a_jump_of_the_clock():
    """SYN-3."""
    synchronizer = filled("ab", ("a", 60.0), ("b", 60.0))
    synchronizer.add(frame("a", 0.0), at(0.01))
    assert synchronizer.select(at(0.02), **RULE).lack is Lack.MISSING
    synchronizer.add(frame("b", 0.0), at(0.03))
    assert payloads(synchronizer.select(at(0.03), **RULE)) == ["a at 0.0", "b at 0.0"]


@pytest.mark.parametrize("max_age", [0.0, 1.0])
def test_frames_of_before_a_jump_do_not_count_even_until_the_first_one_after_it(max_age):
    """SYN-3: nothing has come yet since the clock went back."""
    synchronizer = filled("ab", ("a", 60.0), ("b", 60.0))
    found = synchronizer.select(at(0.0), slop=0.05, max_age=max_age)
    assert found.lack is Lack.STALE and "from a is stamped 60.00 s ahead of this node's clock" in found.sentence
    assert payloads(synchronizer.select(at(59.95), slop=0.05, max_age=max_age))  # clocks of a robot may differ


def test_stamps_that_jump_back_under_a_steady_clock_begin_again_for_that_camera():
    """SYN-3: a bag that loops, under system time and without a limit of age."""
    synchronizer = filled("a", ("a", 60.0), now=500.0)
    assert synchronizer.add(frame("a", 0.0), at(500.1)) is FrameEvent.SOURCE_JUMP
    assert payloads(synchronizer.select(at(500.1), slop=0.05, max_age=0.0)) == ["a at 0.0"]


def test_frames_of_before_the_stamps_jumped_back_pair_with_nothing():
    synchronizer = filled("ab", ("a", 60.0), ("b", 60.0), ("a", 0.0), now=500.0)
    assert synchronizer.select(at(500.0), slop=0.05, max_age=0.0).lack is Lack.UNPAIRED
    synchronizer.add(frame("b", 0.0), at(500.0))
    assert payloads(synchronizer.select(at(500.0), slop=0.05, max_age=0.0)) == ["a at 0.0", "b at 0.0"]


def test_in_order_a_set_waits_until_it_is_known_which_frames_are_nearest():
    synchronizer = filled("ab", ("a", 1.0), ("a", 1.1), ("b", 1.04), now=2.0)
    assert payloads(synchronizer.next_after(0, slop=0.2)) == ["a at 1.0", "b at 1.04"]
    assert synchronizer.next_after(at(1.0), slop=0.2) is None  # b may have one nearer to 1.1
    synchronizer.add(frame("b", 1.12), at(2.0))
    assert payloads(synchronizer.next_after(at(1.0), slop=0.2)) == ["a at 1.1", "b at 1.12"]
    assert synchronizer.next_after(at(1.1), slop=0.2) is None


def test_in_order_a_frame_without_company_is_passed_over_and_a_source_that_begins_again_is_followed():
    synchronizer = filled("ab", ("a", 1.0), ("b", 1.5), ("a", 1.5), now=2.0)
    assert payloads(synchronizer.next_after(0, slop=0.05)) == ["a at 1.5", "b at 1.5"]
    assert payloads(synchronizer.next_after(at(60.0), slop=0.05)) == ["a at 1.5", "b at 1.5"]
    assert synchronizer.next_after(at(2.0), slop=0.05) is None  # nothing newer, and no jump


def test_without_a_clock_it_says_that_it_waits_for_one():
    """SYN-4."""
    synchronizer = Synchronizer(["a"])
    assert synchronizer.add(frame("a", 5.0), 0) is FrameEvent.TAKEN
    found = synchronizer.select(0, **RULE)
    assert found.lack is Lack.NO_CLOCK
    assert "/clock" in found.sentence


def test_waiting_ends_when_a_frame_comes():
    synchronizer = Synchronizer(["a"])
    timer = threading.Timer(0.05, lambda: synchronizer.add(frame("a", 0.0), at(0.0)))
    timer.start()
    start = time.monotonic()
    synchronizer.wait(30.0)
    assert time.monotonic() - start < 20.0
    timer.join()


def test_clearing_forgets_frames_but_not_counts():
    synchronizer = filled("a", ("a", 0.0))
    synchronizer.clear()
    assert synchronizer.select(at(0.0), **RULE).lack is Lack.MISSING
    assert synchronizer.events("a") == {"taken": 1}


@given(some.lists(some.tuples(some.sampled_from("abc"), some.floats(0, 3)), max_size=40), some.floats(0.0, 0.3))
def test_a_set_never_breaks_its_own_rules(arrivals, slop):
    synchronizer = Synchronizer(list("abc"))
    for camera, seconds in arrivals:
        synchronizer.add(frame(camera, seconds), at(3.0))
    found = synchronizer.select(at(3.0), slop=slop, max_age=2.5)
    if isinstance(found, NoFrames):
        assert found.sentence
        return
    assert [one.camera for one in found.frames] == list("abc")
    stamps = [one.stamp for one in found.frames]
    assert max(stamps) - min(stamps) <= slop * SECOND
    assert all(at(3.0) - stamp <= 2.5 * SECOND for stamp in stamps)
    assert all(one.payload in {f"{camera} at {seconds}" for camera, seconds in arrivals} for one in found.frames)


@pytest.mark.parametrize(
    ("moment", "found"),
    [(0.1, ["a at 0.1", "b at 0.12"]), (0.149, ["a at 0.1", "b at 0.12"]), (0.2, ["a at 0.2", "b at 0.22"])],
)
def test_the_frames_nearest_to_an_earlier_moment_are_found(moment, found):
    shown = [(camera, round(0.1 * k + late, 2)) for k in range(4) for camera, late in (("a", 0.0), ("b", 0.02))]
    synchronizer = Synchronizer(["a", "b"], 16)
    for camera, seconds in shown:
        synchronizer.add(frame(camera, seconds), at(seconds))
    assert payloads(synchronizer.near(at(moment), 0.05)) == found


def test_an_earlier_moment_that_no_frame_is_near_to_is_told_with_the_distance():
    synchronizer = filled("ab", ("a", 0.0), ("b", 0.0), ("b", 0.1))
    found = synchronizer.near(at(0.1), 0.05)
    assert isinstance(found, NoFrames) and found.lack is Lack.UNPAIRED
    assert found.sentence.startswith("The image from a that is nearest to an earlier moment is 0.100 s from it")
    missing = filled("ab", ("a", 0.0)).near(at(0.0), 0.05)
    assert isinstance(missing, NoFrames) and missing.lack is Lack.MISSING and "from b yet" in missing.sentence


def test_a_camera_s_age_is_that_of_its_newest_frame():
    synchronizer = filled("ab", ("a", 0.0), ("a", 0.1))
    assert synchronizer.age("a", at(0.35)) == pytest.approx(0.25) and synchronizer.age("b", at(0.35)) is None


def test_waiting_takes_as_long_as_it_was_told_where_nothing_comes():
    begun = time.monotonic()
    Synchronizer(["a"]).wait(0.1)
    assert time.monotonic() - begun >= 0.09
