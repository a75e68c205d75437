"""Arguments that no call can do anything with: misuse or a refusal with a sentence, and nothing has changed."""

from __future__ import annotations

import dataclasses

import pytest
from runtime_helpers import WAIT, answer, fake_runtime, request, stepped

from edgellm_ros.backends.fake import FakeBackend, FakeScript
from edgellm_ros.errors import EdgeLLMError, MisuseError, RefusalCode, RequestError
from edgellm_ros.runtime.artifacts import ModelArtifacts
from edgellm_ros.runtime.boundary import SlotSeed
from edgellm_ros.runtime.handle import unstarted_response
from edgellm_ros.runtime.inference_runtime import LLMInferenceRuntime
from edgellm_ros.runtime.rank_runtime import LLMRankRuntime
from edgellm_ros.runtime.request import FinishReason, LLMGenerationRequest, LLMGenerationResponse
from edgellm_ros.runtime.scheduler import RequestEngine, RequestEngineConfig
from edgellm_ros.runtime.session import GenerationSession
from edgellm_ros.runtime.streaming import StreamChannel


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    with fake_runtime(tmp_path_factory.mktemp("fake") / "engine", FakeScript(answers=["abcdefgh"])) as made:
        yield made


@pytest.fixture
def engine(runtime):
    made = RequestEngine(runtime)
    yield made
    assert made.shutdown(timeout=WAIT)


def test_arguments_of_another_kind_are_misuse(runtime):
    rank, response = runtime.rank, LLMGenerationResponse()
    prepared = runtime.prepare(request("hi"))
    for call in (
        lambda: runtime.prepare(None),
        lambda: runtime.handle_request(request("hi"), response, boundary_hook=5),
        lambda: rank.begin_generation(None, response),
        lambda: rank.begin_generation(prepared, None),
        lambda: rank.begin_generation(prepared, response, founder_request_id="1"),
        lambda: rank.begin_generation(prepared, response, parallel_rank="0"),
        lambda: rank.begin_generation(prepared, response, token_broadcast=5),
        lambda: rank.finish_generation(None, prepared, response),
        lambda: rank.gen_and_save_system_prompt_kv_cache(5),
        lambda: rank.gen_and_save_system_prompt_kv_cache("x", None),
        lambda: GenerationSession(runtime, None),
        lambda: GenerationSession(rank, None),
        lambda: LLMRankRuntime.from_artifacts(None),
        lambda: ModelArtifacts.load(rank.directory.path, tokenizer="x"),
        lambda: ModelArtifacts.load(rank.directory.path, chat_template=5),
        lambda: RequestEngine(rank),
        lambda: RequestEngine(runtime, 5),
    ):
        with pytest.raises(MisuseError, match=r"want|not open"):
            call()
    for make in (
        lambda: LLMInferenceRuntime(None),
        lambda: LLMInferenceRuntime(rank.directory.path, 5),
        lambda: LLMInferenceRuntime(rank.directory.path, backend=5),
        lambda: LLMInferenceRuntime(rank.directory.path, backend=FakeBackend(), lora_weights=5),
        lambda: LLMRankRuntime(rank.directory.path, mapping=5),
        lambda: RequestEngineConfig(compatibility=5),
        lambda: StreamChannel(interval="1"),
        lambda: rank.set_visual_pruner_config(5),
        lambda: runtime.warm_up("x"),
        lambda: runtime.warm_up(-1),
    ):
        with pytest.raises(EdgeLLMError, match="want"):
            make()
    assert rank.get_base_model_hidden_states([1]) is None
    assert answer(runtime, request("hi")).output_texts == ["abcdefgh"]


def test_a_scheduler_takes_no_other_arguments(engine):
    for call in (
        lambda: engine.submit(None),
        lambda: engine.handle_request(None, LLMGenerationResponse()),
        lambda: engine.handle_request(request("hi"), None),
        lambda: engine.cancel(None),
        lambda: engine.shutdown("cancel"),
    ):
        with pytest.raises(MisuseError, match="want"):
            call()
    assert engine.submit(request("hi")).get(WAIT).output_texts == ["abcdefgh"]


@pytest.mark.parametrize("given", ["two for one sequence", "one in each place"])
def test_a_channel_that_nobody_would_end_is_refused(engine, given):
    channels = [StreamChannel(), StreamChannel()]
    with pytest.raises(RequestError) as refused:
        if given == "one in each place":
            engine.submit(request("hi", channels=channels[:1]), channels[1])
        else:
            engine.submit(request("hi", channels=channels))
    assert refused.value.code is RefusalCode.BAD_CHANNEL
    assert not any(channel.attached for channel in channels)
    same = channels[0]
    assert engine.submit(request("hi", channels=[same]), same).get(WAIT).output_texts == ["abcdefgh"]


BOUNDARY = {
    "no request": lambda session, prepared: session.admit_request(None, 5, 50),
    "an index of text": lambda session, prepared: session.admit_request(prepared, "5", 50),
    "an index below zero": lambda session, prepared: session.admit_request(prepared, -1, 50),
    "a request id of zero": lambda session, prepared: session.admit_request(prepared, 5, 0),
    "no request id": lambda session, prepared: session.admit_request(prepared, 5, None),
    "no seed": lambda session, prepared: session.admit_sequence(None),
    "results from text on": lambda session, prepared: session.take_completed_at_or_above("x"),
    "no result": lambda session, prepared: session.materialize_result(None),
}


@pytest.mark.parametrize("call", BOUNDARY.values(), ids=BOUNDARY)
def test_the_boundary_takes_no_other_arguments(runtime, call):
    prepared = runtime.prepare(request("late"))

    def before_step(session, step):
        if step == 1:
            with pytest.raises(MisuseError, match="want"):
                call(session, prepared)
            assert session.resident_count() == 1

    assert stepped(runtime, request("hi"), before_step).output_texts == ["abcdefgh"]


NAN = float("nan")
SEEDS = [
    ("prompt_ids", "abc"), ("prompt_ids", (1.5,)), ("prompt_ids", ()), ("prompt_ids", (10**9,)), ("prompt_ids", (-1,)),
    ("original_index", -1), ("original_index", "x"), ("sampling", None), ("sampling_seed", -1), ("sampling_seed", "x"),
    ("max_generate_length", 0), ("max_generate_length", "x"), ("lora_weights_name", 5), ("lora_weights_name", "x"),
    ("stop_strings", "abc"), ("stop_strings", ("",)), ("logit_bias", {10**9: 1.0}), ("logit_bias", {-1: 1.0}),
    ("logit_bias", {65: NAN}), ("logit_bias", {65: 101}), ("logit_bias", {"a": 1}), ("logit_bias", 5),
    ("logit_bias", dict.fromkeys(range(1025), 0)), ("ignore_eos", 1), ("guided_decoding", "a"),
    ("skip_special_tokens", None), ("enable_thinking", "no"), ("tool_format", None), ("num_logprobs", 51),
    ("num_logprobs", -1), ("deadline", NAN), ("deadline", "x"), ("stream_channel", 5), ("on_token_generated", 5),
    ("system_prompt", 5), ("cache", None), ("media", 5), ("visual_pruner", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), SEEDS, ids=[f"{name}-{str(value)[:20]}" for name, value in SEEDS])
def test_a_seed_with_a_field_of_anything_else_is_refused(runtime, name, value):
    """Also the one that goes wrong only where the engine looks at it: its neighbours would be lost with it."""

    def before_step(session, step):
        if step == 1:
            with pytest.raises(RequestError, match=r"\.$"):
                session.admit_sequence(SlotSeed(**{"prompt_ids": (65, 66), "original_index": 5, name: value}))
            assert session.resident_count() == 1

    assert stepped(runtime, request("hi"), before_step).output_texts == ["abcdefgh"]


def test_a_bias_is_the_one_that_was_checked(runtime):
    """The caller's own mapping may change; a number that nobody looked at would end the row."""
    bias = {65: 1.0}
    asked = request("hi")
    (sequence,) = asked.requests
    asked.requests = (dataclasses.replace(sequence, logit_bias=bias),)
    bias[66] = NAN
    assert answer(runtime, asked).finish_reasons == [FinishReason.END_ID]


def test_a_request_that_never_began_has_a_response_of_one_sequence(engine):
    blocker = engine.submit(request("hi"))
    waiting = engine.submit(LLMGenerationRequest(request("hi").requests))
    waiting.cancel()
    for response in (waiting.get(WAIT), unstarted_response(waiting, FinishReason.ERROR, "x")):
        assert {len(getattr(response, field.name)) for field in dataclasses.fields(response)} == {1}
    assert blocker.get(WAIT)


def test_a_chat_template_may_be_given_as_text(runtime):
    artifacts = ModelArtifacts.load(runtime.rank.directory.path, chat_template="{{ messages[0].content }}!")
    rank = LLMRankRuntime.from_artifacts(artifacts, backend=FakeBackend())
    assert rank.tokenizer.chat_template.render([{"content": "hi"}]) == "hi!"
    rank.close()
