from __future__ import annotations

import itertools
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_helpers import WAIT, drain

from edgellm_ros.errors import RefusalCode, RequestError
from edgellm_ros.runtime.request import FinishReason
from edgellm_ros.runtime.streaming import StreamChannel, TextStream

SCRIPT = "é e\u0301x ďábelské A 世ab 삼겹살 👩‍👩‍👧 🏳️‍🌈 🇪🇸"


def feed(stream: TextStream, pieces: list[bytes]) -> list[str]:
    return [*map(stream.feed, pieces), stream.finish()]


def test_one_byte_at_a_time_gives_whole_characters():
    texts = feed(TextStream(), [bytes([byte]) for byte in SCRIPT.encode()])
    assert "".join(texts) == SCRIPT
    assert [text for text in texts if text] == list(SCRIPT)


@pytest.mark.parametrize("kept", range(1, len("👩".encode())))
def test_an_end_inside_a_character_gives_one_replacement_at_the_end(kept):
    assert "".join(feed(TextStream(), [b"a", *(bytes([byte]) for byte in "👩".encode()[:kept])])) == "a\ufffd"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\xffb", "a\ufffdb"), (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"), (b"a\0b", "a\ufffdb"),
        (b"\xc0\xaf", "\ufffd\ufffd"),
    ],
    ids=["stray byte", "surrogate", "nul", "overlong"],
)  # fmt: skip
def test_bytes_that_are_no_text_become_replacements(data, text):
    assert "".join(feed(TextStream(), [bytes([byte]) for byte in data])) == text


def test_one_leading_space_is_stripped_where_it_belongs_to_the_tokenizer():
    assert "".join(feed(TextStream((), True), [b"", b" ", b" a", b" b"])) == " a b"


@pytest.mark.parametrize("cut", range(1, len("ab STOP cd")))
def test_a_stop_cut_anywhere_leaks_nothing(cut):
    data = b"ab STOP cd"
    stream = TextStream(("STOP",))
    texts = feed(stream, [data[:cut], data[cut:]])
    assert "".join(texts) == "ab " and stream.stopped


def test_a_stop_that_begins_another_wins_at_its_place():
    stream = TextStream(("ab", "abc"))
    assert "".join(feed(stream, [b"xabc"])) == "x" and stream.stopped


def test_the_earliest_stop_wins_and_not_the_first_listed():
    assert "".join(feed(TextStream(("c", "b")), [b"abcd"])) == "a"


def test_a_stop_that_is_never_completed_is_delivered():
    stream = TextStream(("STOPPED",))
    assert stream.feed(b"a STOP") == "a "
    assert stream.feed(b"S") == "STOP"
    assert stream.finish() == "S"
    assert not stream.stopped


def test_only_what_may_become_a_stop_is_held_back():
    stream = TextStream(("</answer>",))
    assert stream.feed(b"plain text") == "plain text"
    assert stream.feed(b" a < b") == " a < b"
    assert stream.feed(b" <") == " "


def test_nothing_follows_a_stop():
    stream = TextStream(("X",))
    assert stream.feed(b"aX") == "a"
    assert stream.feed(b"more") == stream.finish() == ""


texts = st.text(alphabet=st.sampled_from("ab世é👩 \u0301X"), max_size=30)


@given(
    text=texts,
    stops=st.lists(st.text(alphabet="ab世X ", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 200), max_size=40),
)
@settings(max_examples=400, deadline=None)
def test_any_split_gives_the_text_before_the_first_stop(text, stops, cuts):
    data = text.encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in itertools.pairwise(edges)]
    stream = TextStream(stops)
    joined = ""
    for piece in pieces:
        joined += stream.feed(piece)
        joined.encode()
        assert text.startswith(joined)
        assert not any(stop in joined for stop in stops)
    joined += stream.finish()
    assert stream.stopped == any(stop in text for stop in stops)
    if not stream.stopped:
        assert joined == text
        return
    # The stop that completes first decides; within one piece, the one that starts first.
    assert any(text[len(joined) :].startswith(stop) for stop in stops)
    assert not any(stop in joined for stop in stops)


@given(data=st.binary(max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_bytes_give_what_one_decode_gives(data):
    joined = "".join(feed(TextStream(), [bytes([byte]) for byte in data]))
    assert joined == data.decode("utf-8", "replace").replace("\0", "\ufffd")


# -- the channel ------------------------------------------------------------------------------------------------------


def test_chunks_are_counted_and_end_once():
    channel = StreamChannel()
    channel.push([1], "a", 7)
    assert channel.push([2], "b", 7, reason=FinishReason.LENGTH) is FinishReason.LENGTH
    assert channel.push([3], "c") is FinishReason.LENGTH  # too late
    assert channel.finish(FinishReason.ERROR) is FinishReason.LENGTH
    chunks = drain(channel)
    assert [(chunk.index, chunk.text, chunk.finished) for chunk in chunks] == [(0, "a", False), (1, "b", True)]
    assert channel.finished and channel.reason is FinishReason.LENGTH and channel.wait_pop() is None


def test_a_channel_serves_one_request():
    channel = StreamChannel()
    channel.attach()
    with pytest.raises(RequestError, match="already attached") as refused:
        channel.attach()
    assert refused.value.code is RefusalCode.BAD_CHANNEL
    channel.finish(FinishReason.ERROR)
    assert channel.attached
    with pytest.raises(RequestError, match="already finished"):
        channel.check_usable()


def test_a_cancel_before_a_natural_end_wins():
    channel = StreamChannel()
    channel.cancel()
    assert channel.finish(FinishReason.END_ID) is FinishReason.CANCELLED


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.DEADLINE])
def test_a_cancel_hides_no_failure(reason):
    channel = StreamChannel()
    channel.cancel()
    assert channel.finish(reason) is reason


def test_waiting_ends_with_the_timeout():
    start = time.monotonic()
    assert StreamChannel().wait_pop(0.02) is None
    assert 0.02 <= time.monotonic() - start < WAIT


def test_cancel_wakes_a_consumer_of_an_unused_channel():
    channel = StreamChannel()
    result: list[object] = ["waiting"]
    consumer = threading.Thread(target=lambda: result.__setitem__(0, channel.wait_pop(WAIT)))
    consumer.start()
    channel.cancel()
    consumer.join(WAIT)
    assert result == [None]


def test_queued_chunks_come_after_the_end():
    channel = StreamChannel()
    channel.push([1], "a")
    channel.cancel()
    channel.finish(FinishReason.CANCELLED)
    assert [chunk.text for chunk in channel] == ["a", ""]


@pytest.mark.parametrize(("given_interval", "kept"), [(0, 1), (-5, 1), (1, 1), (7, 7)])
def test_intervals_are_at_least_one(given_interval, kept):
    assert StreamChannel(given_interval).interval == kept
    channel = StreamChannel()
    channel.set_stream_interval(given_interval)
    assert channel.interval == kept


def test_producer_and_consumer_on_two_threads_lose_nothing():
    channel = StreamChannel()
    received: list[int] = []
    consumer = threading.Thread(target=lambda: received.extend(token for chunk in channel for token in chunk.token_ids))
    consumer.start()
    for token in range(2000):
        channel.push([token], "x")
    channel.finish(FinishReason.LENGTH)
    consumer.join(WAIT)
    assert received == list(range(2000))
