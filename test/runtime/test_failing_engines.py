"""Engines that fail, and faults at every place of begin and admit: who ends, and that the next is served."""

from __future__ import annotations

import copy

import pytest
from runtime_helpers import answer, check_stream, drain, fake_runtime, item, outcome, request

from edgellm_ros.backends.fake import FakeScript, Fault
from edgellm_ros.errors import BackendError, RefusalCode
from edgellm_ros.runtime.request import (
    FinishReason,
    LLMGenerationRequest,
    LLMGenerationResponse,
    Request,
)
from edgellm_ros.runtime.streaming import StreamChannel


@pytest.mark.parametrize("fault", [Fault.NAN, Fault.RAISE, Fault.OUT_OF_MEMORY, Fault.CRASH])
@pytest.mark.parametrize("step", [0, 1, 4])
def test_a_failing_step_ends_rows_in_error_and_the_next_request_runs(tmp_path, fault, step):
    script = FakeScript(answers=["abcdefg"], fault=fault, fault_step=step)
    with fake_runtime(tmp_path / "engine", script) as runtime:
        channel = StreamChannel()
        response = answer(runtime, request("hi", channels=[channel]))
        check_stream(drain(channel), response)
        assert response.finish_reasons == [FinishReason.ERROR]
        assert response.output_texts == ["abcdefg"[:step]]
        assert response.messages[0].endswith(".") and "\n" not in response.messages[0]
        assert outcome(answer(runtime, request("hi")))[1:] == ("abcdefg", FinishReason.END_ID)


def test_bad_numbers_end_only_their_row(tmp_path):
    """The fault strikes the row that is two tokens ahead of the others."""
    script = FakeScript(answers=["abcdefg"], fault=Fault.NAN, fault_step=3)
    with fake_runtime(tmp_path / "engine", script) as runtime:
        response = answer(
            runtime, LLMGenerationRequest((Request(), item("x"), item("y")), pre_tokenized_input_ids=[[97, 98]])
        )
        assert response.finish_reasons == [FinishReason.ERROR, FinishReason.END_ID, FinishReason.END_ID]
        assert response.output_texts == ["c", "abcdefg", "abcdefg"]
        assert "not finite" in response.messages[0] and response.messages[1:] == ["", ""]


def test_the_failing_prompt_of_a_joiner_ends_it_alone(tmp_path):
    script = FakeScript(answers=["abcdefg"], fault=Fault.RAISE, fault_step=0, fault_times=2)
    with fake_runtime(tmp_path / "engine", script) as runtime:
        assert answer(runtime, request("first")).finish_reasons == [FinishReason.ERROR]  # spends one
        prepared = LLMGenerationRequest((Request(),), pre_tokenized_input_ids=[[97]])
        results = {}

        def hook(boundary):
            if not results and boundary.resident_count() == 1:
                results["decision"] = boundary.admit_request(runtime.prepare(request("second")), 5, 50)
            results.update(boundary.take_completed_at_or_above(1))

        response = LLMGenerationResponse()
        assert runtime.handle_request(prepared, response, boundary_hook=hook)
        assert results[5].finish_reason is FinishReason.ERROR
        assert results[5].refusal.code is RefusalCode.ENGINE_FAILED
        assert response.finish_reasons == [FinishReason.END_ID]
        assert response.output_texts == ["bcdefg"]


def test_a_sequence_counts_once_where_the_hole_that_it_leaves_cannot_be_closed(runtime, monkeypatch):
    metrics = runtime.rank.get_generation_metrics()
    before = metrics.total_runs

    def broken(*arguments):
        raise BackendError("the copy failed.")

    monkeypatch.setattr(runtime.rank.executor, "move_row", broken)
    channels = [StreamChannel(), StreamChannel()]
    items = [item("a", max_generate_length=3), item("b")]
    with pytest.raises(BackendError, match="the copy failed"):
        runtime.handle_request(request(*items, channels=channels), LLMGenerationResponse())
    assert metrics.total_runs == before + 2
    assert [[chunk.finished for chunk in drain(channel)].count(True) for channel in channels] == [1, 1]
    monkeypatch.undo()
    assert answer(runtime, request("hi")).output_texts == ["Hello there"]


PLACES = {
    "checks": "edgellm_ros.runtime.admission.check_request",
    "prompt checks": "edgellm_ros.runtime.admission.check_prompt",
    "seed": "edgellm_ros.runtime.admission.make_seed",
    "budget": "edgellm_ros.runtime.admission.token_budget",
    "sequence": "edgellm_ros.runtime.admission.Sequence.__init__",
    "sampling state": "edgellm_ros.runtime.executor.ModelExecutor.start_row",
    "attach": "edgellm_ros.runtime.streaming.StreamChannel.attach",
    "start": "edgellm_ros.runtime.sequence.Sequence.start",
    "prompt": "edgellm_ros.runtime.executor.ModelExecutor.prefill",
    "outputs of the last request": "edgellm_ros.runtime.hidden_states.HiddenStates.forget",
    "reuse checks": "edgellm_ros.runtime.prefix_reuse.PrefixReuse.check",
    "reuse": "edgellm_ros.runtime.prefix_reuse.PrefixReuse.begin",
    "what is kept": "edgellm_ros.runtime.prefix_reuse.PrefixReuse.keep_prompts",
    "interrupts": "edgellm_ros.runtime.sequence.Sequence.check_interrupts",
    "place of the adapter": "edgellm_ros.runtime.lora.Adapters.seat",
    "scope": "edgellm_ros.runtime.sequence.Sequence.set_scope",
    "pruning": "edgellm_ros.runtime.token_pruning.TokenPruner.prune",
    "images of the row": "edgellm_ros.runtime.row_media.RowMedia.start",
    "chunk": "edgellm_ros.runtime.admission.Admission.prefill_chunk",
}

AFTER_ADMISSION = {"prompt", "outputs of the last request", "reuse", "what is kept", "interrupts", "chunk", "pruning"}


def broken(*arguments, **fields):
    raise ArithmeticError("injected")


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_fault_anywhere_in_begin_leaves_a_runtime_that_serves(runtime, monkeypatch, place):
    channels = [StreamChannel(), StreamChannel()]
    prepared = runtime.prepare(request("a", "b", channels=channels))
    metrics = copy.deepcopy(runtime.rank.get_generation_metrics())
    with monkeypatch.context() as patch:
        patch.setattr(place, broken)
        with pytest.raises(ArithmeticError):
            runtime.rank.begin_generation(prepared, LLMGenerationResponse())
    for channel in channels:
        chunks = drain(channel)
        assert [chunk.finished for chunk in chunks] == ([True] if channel.attached else [])
    assert runtime.rank.open_context is None
    assert runtime.rank.get_generation_metrics() == metrics
    assert answer(runtime, request("hi")).output_texts == ["Hello there"]


@pytest.mark.parametrize("step", PLACES)
def test_a_fault_anywhere_in_admit_leaves_the_batch_as_it_was(runtime, monkeypatch, step):
    channel = StreamChannel()
    arriving = runtime.prepare(request("late", channels=[channel]))
    tries = []

    def hook(boundary):
        if boundary.resident_count() == 1 and not tries:
            with monkeypatch.context() as patch:
                patch.setattr(PLACES[step], broken)
                try:
                    tries.append(boundary.admit_request(arriving, 5, 50))
                    assert step in AFTER_ADMISSION
                except ArithmeticError:
                    tries.append(None)
                    assert boundary.resident_count() == 1

    response = LLMGenerationResponse()
    assert runtime.handle_request(request("hi"), response, boundary_hook=hook)
    assert response.output_texts[0] == "Hello there"
    chunks = drain(channel)
    assert [chunk.finished for chunk in chunks].count(True) == int(channel.attached)
    assert answer(runtime, request("hi")).output_texts == ["Hello there"]
