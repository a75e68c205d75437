"""What consumers of a batch get while it runs: text, ids and ends, whoever shares it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runtime_helpers import SOME, STR_1, answer, check_stream, drain, fake_runtime, item, outcome, request, stepped

from edgellm_ros.backends.fake import FakeScript
from edgellm_ros.runtime.request import FinishReason
from edgellm_ros.runtime.streaming import StreamChannel


def test_split_characters_arrive_whole_and_join_to_the_response(scripted):
    channel = StreamChannel()
    response = answer(scripted, request("hi", channels=[channel]))
    check_stream(drain(channel), response)
    assert response.output_texts == [STR_1]
    assert response.finish_reasons == [FinishReason.END_ID]


@pytest.mark.parametrize("step", [-1, *range(14)])
def test_cancel_at_every_step_keeps_what_came_before(scripted, step):
    whole = answer(scripted, request("hi", max_generate_length=12)).output_ids[0]
    channel = StreamChannel()
    if step < 0:
        channel.cancel()

    def before_step(session, index):
        if index == step:
            channel.cancel()

    response = stepped(scripted, request("hi", max_generate_length=12, channels=[channel]), before_step)
    ids = response.output_ids[0]
    check_stream(drain(channel), response)
    assert ids == whole[: len(ids)]
    if step < 11:
        assert response.finish_reasons == [FinishReason.CANCELLED]
        assert len(ids) == step + 1
    else:
        assert response.finish_reasons == [FinishReason.LENGTH]
    assert response.input_token_counts[0] > 0


def test_a_cancelled_neighbour_changes_nothing(seeded, alone):
    channels = [None, StreamChannel(), None, None]

    def before_step(session, index):
        if index == 3:
            channels[1].cancel()

    response = stepped(seeded, request(*SOME, channels=channels), before_step)
    assert [outcome(response, index) for index in (0, 2, 3)] == [alone[index] for index in (0, 2, 3)]


@given(
    text=st.text(alphabet="aé世👩b ", min_size=1, max_size=12),
    stops=st.lists(st.text(alphabet="aé世b", min_size=1, max_size=3), max_size=2),
    interval=st.integers(1, 5),
    length=st.integers(1, 40),
    skip=st.booleans(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_stream_equals_response_for_any_text_and_stops(tmp_path_factory, text, stops, interval, length, skip):
    script = FakeScript(answers=[text])
    with fake_runtime(tmp_path_factory.mktemp("any") / "engine", script) as runtime:
        channel = StreamChannel(interval, skip)
        asked = request(item("hi", stop_strings=tuple(stops), max_generate_length=length), channels=[channel])
        asked.skip_special_tokens = skip
        response = answer(runtime, asked)
        check_stream(drain(channel), response)
        quiet = answer(runtime, request(item("hi", stop_strings=tuple(stops), max_generate_length=length),
                                        skip_special_tokens=skip))  # fmt: skip
        assert outcome(quiet) == outcome(response)


def test_an_interval_delays_chunks_but_not_the_last(scripted):
    channel = StreamChannel(7)
    response = answer(scripted, request("hi", max_generate_length=17, channels=[channel]))
    chunks = drain(channel)
    check_stream(chunks, response)
    assert all(len(chunk.token_ids) >= 7 for chunk in chunks[:-1]) and len(chunks) == 3


def test_a_channel_may_show_special_tokens_that_the_response_leaves_out(scripted):
    channel = StreamChannel(skip_special_tokens=False)
    response = answer(scripted, request("hi", channels=[channel]))
    assert "".join(chunk.text for chunk in drain(channel)) == response.output_texts[0] + "<|im_end|>"


def test_the_callback_names_original_indices_and_the_last_token(seeded):
    seen: list[tuple[int, int, bool]] = []
    asked = request(
        *SOME, on_token_generated=lambda token, index, step, finished: seen.append((index, token, finished))
    )
    response = answer(seeded, asked)
    for index, ids in enumerate(response.output_ids):
        mine = [entry for entry in seen if entry[0] == index]
        assert [token for _, token, _ in mine] == ids
        assert [finished for _, _, finished in mine] == [False] * (len(ids) - 1) + [True]
