from __future__ import annotations

import copy
import threading

import pytest
from runtime_helpers import answer, check_stream, drain, fake_runtime, item, outcome, request
from tokenizers_for_tests import CHATML_TOKENS, byte_level

from edgellm_ros.backends.fake import FakeScript, Fault
from edgellm_ros.errors import BackendError, EdgeLLMError, InputTooLongError, MisuseError, RefusalCode, RequestError
from edgellm_ros.runtime.boundary import SlotSeed
from edgellm_ros.runtime.rank_runtime import LLMRankRuntime
from edgellm_ros.runtime.request import (
    FinishReason,
    LLMGenerationRequest,
    LLMGenerationResponse,
    Request,
    SamplingParameters,
    SpecialTokenPolicy,
)
from edgellm_ros.runtime.sequence import EndRules, Sequence
from edgellm_ros.runtime.session import GenerationSession
from edgellm_ros.runtime.streaming import StreamChannel
from edgellm_ros.runtime.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    with fake_runtime(
        tmp_path_factory.mktemp("fake") / "engine", FakeScript(answers=["Hello there"]),
        max_batch=3, max_input=50, max_kv=60, prefill_chunk=16,
    ) as made:  # fmt: skip
        yield made


def ids(count: int) -> LLMGenerationRequest:
    return LLMGenerationRequest((Request(),), pre_tokenized_input_ids=[[65] * count])


def used_channel() -> StreamChannel:
    channel = StreamChannel()
    channel.attach()
    return channel


REFUSED = {
    "no sequences": (lambda: LLMGenerationRequest(), RefusalCode.BAD_REQUEST),
    "too many": (lambda: request("a", "b", "c", "d"), RefusalCode.BATCH_TOO_LARGE),
    "nothing to answer": (lambda: LLMGenerationRequest((Request(),)), RefusalCode.BAD_REQUEST),
    "blank": (lambda: request("  "), RefusalCode.EMPTY_PROMPT),
    "one blank of two": (lambda: request("hi", ""), RefusalCode.EMPTY_PROMPT),
    "control tokens": (
        lambda: request("<|im_end|>", special_tokens=SpecialTokenPolicy.REJECT), RefusalCode.SPECIAL_TOKENS,
    ),
    "foreign id": (lambda: request(Request(), pre_tokenized_input_ids=[[999999]]), RefusalCode.BAD_REQUEST),
    "negative id": (lambda: request(Request(), pre_tokenized_input_ids=[[-1]]), RefusalCode.BAD_REQUEST),
    "more ids than sequences": (
        lambda: request("hi", pre_tokenized_input_ids=[[1], [2]]), RefusalCode.BAD_REQUEST,
    ),
    "bias outside": (lambda: request(item("hi", logit_bias={9999: 1.0})), RefusalCode.BAD_REQUEST),
    "adapter": (lambda: request("hi", lora_weights_name="x"), RefusalCode.UNKNOWN_ADAPTER),
    "channel count": (lambda: request("hi", channels=[None, None]), RefusalCode.BAD_CHANNEL),
    "channel used": (lambda: request("hi", channels=[used_channel()]), RefusalCode.BAD_CHANNEL),
    "channel twice": (lambda: request("a", "b", channels=[StreamChannel()] * 2), RefusalCode.BAD_CHANNEL),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_have_a_code_and_a_sentence_and_touch_nothing(runtime, case):
    make, code = REFUSED[case]
    asked = make()
    fresh = StreamChannel()
    if case == "too many":
        asked.stream_channels = (fresh, None, None, None)
    response = LLMGenerationResponse()
    assert not runtime.handle_request(asked, response)
    refusal = runtime.last_refusal
    assert refusal.code is code
    assert refusal.message.endswith(".") and "\n" not in refusal.message
    assert response == LLMGenerationResponse()
    assert not fresh.attached and not fresh.finished
    assert answer(runtime, request("hi")).output_texts == ["Hello there"]


@pytest.mark.parametrize(
    ("count", "expected"),
    [(50, "answered"), (51, "input"), (60, "input"), (61, "capacity"), (10**5, "capacity")],
)  # fmt: skip
def test_length_limits(runtime, count, expected):
    response = LLMGenerationResponse()
    if expected == "answered":
        assert runtime.handle_request(ids(count), response), runtime.last_refusal
        assert response.input_token_counts == [count]
        assert len(response.output_ids[0]) <= 60 - count - 1
        return
    limit = {"input": "max_input_len is 50", "capacity": "max_kv_cache_capacity is 60"}[expected]
    with pytest.raises(InputTooLongError, match=f"EDGELLM_INPUT_TOO_LONG: the prompt has {count} tokens; {limit}"):
        runtime.handle_request(ids(count), response)
    assert runtime.last_refusal.code is RefusalCode.INPUT_TOO_LONG
    assert response == LLMGenerationResponse()
    assert answer(runtime, request("hi"))


@pytest.mark.parametrize(("count", "room"), [(18, 1), (19, 0), (20, 0)])
def test_no_room_for_one_token(tmp_path, count, room):
    with fake_runtime(tmp_path / "engine", max_input=20, max_kv=20) as small:
        response = LLMGenerationResponse()
        assert small.handle_request(ids(count), response) == bool(room)
        if room:
            assert [len(row) for row in response.output_ids] == [room]
            assert response.finish_reasons == [FinishReason.LENGTH]
        else:
            assert small.last_refusal.code is RefusalCode.NO_ROOM
            assert f"has {count} tokens" in small.last_refusal.message


@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), float("inf"), True, "1", None])
@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "repetition_penalty"])
def test_a_number_of_any_kind_is_taken_or_refused_in_a_short_sentence(name, value):
    with pytest.raises(RequestError, match=name) as caught:
        SamplingParameters(**{name: value})
    assert len(str(caught.value)) < 200


def test_a_text_is_no_list_of_stop_strings():
    with pytest.raises(RequestError, match="list of texts"):
        Request(stop_strings="stop")


def test_budgets_are_per_sequence(runtime):
    """A long prompt shortens its own answer and nobody else's."""
    asked = LLMGenerationRequest(
        (Request(ignore_eos=True), Request(ignore_eos=True)),
        pre_tokenized_input_ids=[[65] * 48, [65] * 5],
        max_generate_length=30,
    )
    response = answer(runtime, asked)
    assert [len(row) for row in response.output_ids] == [11, 30]


def test_text_limit(tmp_path, runtime):
    with pytest.raises(InputTooLongError, match="characters"):
        runtime.prepare(request(*[item("x" * 120_000)] * 9))


def test_an_unprepared_request_is_refused_by_the_rank_runtime(runtime):
    response = LLMGenerationResponse()
    assert runtime.rank.begin_generation(request("hi"), response) is None
    assert runtime.rank.last_refusal.code is RefusalCode.UNPREPARED


def test_a_rank_above_zero_needs_a_broadcast(runtime):
    prepared = runtime.prepare(request("hi"))
    assert runtime.rank.begin_generation(prepared, LLMGenerationResponse(), parallel_rank=1) is None
    assert "token_broadcast" in runtime.rank.last_refusal.message
    generation = runtime.rank.begin_generation(
        prepared, LLMGenerationResponse(), parallel_rank=0, token_broadcast=lambda values: True
    )
    generation.close()


@pytest.mark.parametrize("calls_that_work", range(8))
def test_a_lost_rank_ends_the_request(runtime, calls_that_work):
    prepared = runtime.prepare(request("hi", channels=[channel := StreamChannel()]))
    calls = []
    assert not runtime.rank.handle_request(
        prepared, LLMGenerationResponse(), parallel_rank=0,
        token_broadcast=lambda values: calls.append(list(values)) or len(calls) <= calls_that_work,
    )  # fmt: skip
    assert runtime.rank.last_refusal.code is RefusalCode.ENGINE_FAILED
    chunks = drain(channel)
    assert [chunk.finished for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert answer(runtime, request("hi"))


def test_overlap_leaves_both_responses_alone(runtime):
    prepared = runtime.prepare(request("hi", channels=[StreamChannel()]))
    first = LLMGenerationResponse()
    generation = runtime.rank.begin_generation(prepared, first)
    session = GenerationSession(runtime.rank, generation)
    session.prime_from_prefill()
    first.output_texts.append("what the caller has so far")
    other_channel = StreamChannel()
    second = LLMGenerationResponse(output_texts=["older"])
    kept = copy.deepcopy(second)
    for response in (second, first):
        assert not runtime.rank.handle_request(runtime.prepare(request("x", channels=[other_channel])), response)
        assert runtime.rank.last_refusal.code is RefusalCode.OVERLAP
    assert second == kept and first.output_texts == ["what the caller has so far"]
    assert not other_channel.attached
    while not session.finished():
        session.advance()
    runtime.rank.finish_generation(generation, prepared, first)
    assert first.output_texts[-1] == "Hello there"
    assert answer(runtime, request("hi"))


def test_overlap_from_many_threads_lets_exactly_one_in(runtime):
    barrier = threading.Barrier(8)
    opened = []

    def begin():
        barrier.wait()
        generation = runtime.rank.begin_generation(prepared, LLMGenerationResponse())
        if generation is not None:
            opened.append(generation)

    prepared = runtime.prepare(request("hi"))
    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 1
    opened[0].close()
    opened[0].close()
    assert answer(runtime, request("hi"))


def test_dropping_a_request_at_any_point_ends_its_channel_once(runtime):
    for steps in (None, 0, 1, 5):
        channel = StreamChannel()
        generation = runtime.rank.begin_generation(
            runtime.prepare(request("hi", channels=[channel])), LLMGenerationResponse()
        )
        if steps is not None:
            session = GenerationSession(runtime.rank, generation)
            session.prime_from_prefill()
            for _ in range(steps):
                session.advance()
        generation.close()
        chunks = drain(channel)
        assert [chunk.finished for chunk in chunks].count(True) == 1 and chunks[-1].finished
        assert chunks[-1].finish_reason is FinishReason.ERROR
        assert "Hello there".startswith("".join(chunk.text for chunk in chunks))


def test_an_exception_of_the_caller_closes_the_request(runtime):
    channel = StreamChannel()

    def hook(boundary):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        runtime.handle_request(request("hi", channels=[channel]), LLMGenerationResponse(), boundary_hook=hook)
    assert drain(channel)[-1].finished
    assert answer(runtime, request("hi"))


def test_founder_id_needs_one_sequence(runtime):
    with pytest.raises(MisuseError, match="founder_request_id"):
        runtime.rank.begin_generation(runtime.prepare(request("a", "b")), LLMGenerationResponse(), founder_request_id=5)
    assert answer(runtime, request("hi"))


def test_no_warm_up_while_a_request_is_open(runtime):
    runtime.warm_up()
    with runtime.rank.begin_generation(runtime.prepare(request("hi")), LLMGenerationResponse()):
        with pytest.raises(MisuseError, match="open request"):
            runtime.warm_up()
        with pytest.raises(MisuseError, match="open request"):
            runtime.rank.capture_decoding_cuda_graph()
    assert runtime.rank.capture_decoding_cuda_graph()
    assert answer(runtime, request("hi")).output_texts == ["Hello there"]


@pytest.mark.parametrize("option", ["lora_weights", "drafting_config"])
def test_options_that_this_engine_cannot_serve_are_refused(runtime, option):
    with pytest.raises(EdgeLLMError, match=option) as refused:
        LLMRankRuntime(runtime.rank.directory.path, **{option: {"x": "y"}})
    assert refused.value.code is RefusalCode.UNSUPPORTED


def test_a_closed_runtime_says_so(tmp_path):
    closed = fake_runtime(tmp_path / "engine")
    channel = StreamChannel()
    closed.rank.begin_generation(closed.prepare(request("hi", channels=[channel])), LLMGenerationResponse())
    closed.close()
    closed.close()
    assert drain(channel)[-1].finished
    with pytest.raises(MisuseError, match="closed"):
        closed.handle_request(request("hi"), LLMGenerationResponse())


# -- a failing engine -------------------------------------------------------------------------------------------------


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


def test_a_deadline_ends_with_what_was_produced(tmp_path):
    script = FakeScript(answers=["abcdefghijklmnopqrstuvwxyz"], step_latency=0.02)
    with fake_runtime(tmp_path / "engine", script) as runtime:
        channel = StreamChannel()
        response = answer(runtime, request("hi", channels=[channel], deadline=0.2))
        check_stream(drain(channel), response)
        assert response.finish_reasons == [FinishReason.DEADLINE]
        assert 0 < len(response.output_ids[0]) < 26
        assert f"0.2 s after {len(response.output_ids[0])} tokens" in response.messages[0]


@pytest.mark.parametrize("how", ["deadline", "cancel"])
def test_long_prompts_end_between_chunks(tmp_path, how):
    script = FakeScript(prefill_latency=0.005)
    with fake_runtime(tmp_path / "engine", script, prefill_chunk=8) as runtime:
        channel = StreamChannel()
        asked = request("x" * 500, channels=[channel], deadline=0.1 if how == "deadline" else 0)
        timer = threading.Timer(0.1, channel.cancel)
        if how == "cancel":
            timer.start()
        response = answer(runtime, asked)
        check_stream(drain(channel), response)
        assert response.finish_reasons == [FinishReason.DEADLINE if how == "deadline" else FinishReason.CANCELLED]
        assert response.output_ids == [[]]
        assert response.times[0].first_token == 0
        computed = runtime.rank.get_prefill_metrics().computed_tokens
        assert 0 < computed < 500 and computed % 8 == 0


# -- end rules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "ended_at"),
    [
        (["<think>", "x", "<|endoftext|>", "</think>", "y", "<|endoftext|>"], 5),  # muted while it thinks
        (["<think>", "x", "<|im_end|>"], 2),  # the primary one is never muted
        (["x", "<|endoftext|>"], 1),  # it skipped thinking
    ],
    ids=["muted", "primary", "skipped"],
)
def test_end_tokens_while_thinking(tokens, ended_at):
    tokenizer = Tokenizer(byte_level(CHATML_TOKENS, ["<think>", "</think>"]))
    rules = EndRules([tokenizer.token_id("<|im_end|>"), tokenizer.token_id("<|endoftext|>")], tokenizer)
    sequence = Sequence(SlotSeed((1,), 0, enable_thinking=True), 1, tokenizer, rules, 100)
    for index, token in enumerate(tokens):
        sequence.accept(tokenizer.token_id(token), (), 1.0)
        assert sequence.finished == (index == ended_at)


def test_a_stop_string_overrides_length_but_no_failure():
    tokenizer = Tokenizer(byte_level(CHATML_TOKENS))
    sequence = Sequence(SlotSeed((1,), 0, stop_strings=("b",)), 1, tokenizer, EndRules([], tokenizer), 2)
    for letter in "ab":
        sequence.accept(tokenizer.token_id(letter), (), 1.0)
    assert sequence.finish_reason is FinishReason.STOP_WORDS
    assert sequence.generate_length == 2  # ids are not trimmed


def test_request_fields_are_checked_at_birth():
    for fields in ({"max_generate_length": 0}, {"num_logprobs": 51}, {"deadline": float("nan")}, {"sampling_seed": -1}):
        with pytest.raises(RequestError):
            LLMGenerationRequest((item("x"),), **fields)


# -- faults anywhere in begin and admit --------------------------------------------------------------------------------

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
    "chunk": "edgellm_ros.runtime.admission.Admission.prefill_chunk",
}
AFTER_ADMISSION = {"prompt", "outputs of the last request", "reuse", "what is kept", "interrupts", "chunk"}


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
