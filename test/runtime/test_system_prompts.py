"""Saved system prompts: the older way of reuse, by name, without the context cache."""

from __future__ import annotations

import logging

import pytest
from runtime_helpers import answer, fake_runtime, outcome, request, stepped

from edgellm_ros.backends.fake import FakeMode, FakeScript
from edgellm_ros.chat_template import ChatTemplate
from edgellm_ros.errors import BackendError, MisuseError, RefusalCode
from edgellm_ros.runtime.boundary import SlotSeed
from edgellm_ros.runtime.context_cache import ContextCacheConfig
from edgellm_ros.runtime.request import FinishReason, LLMGenerationResponse, Message, Request, SamplingParameters

SYSTEM = "You move one gripper."
SECTION = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
DRAWN = SamplingParameters(temperature=1.2)
SEEDED = FakeScript(mode=FakeMode.SEEDED)


def turn(text: str, system: str = SYSTEM, **fields) -> Request:
    messages = (Message("system", system), Message("user", text))
    return Request(messages, sampling=DRAWN, max_generate_length=30, **fields)


@pytest.fixture
def runtime(tmp_path):
    with fake_runtime(tmp_path / "engine", SEEDED, max_input=200, prefill_chunk=16) as made:
        yield made


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    with fake_runtime(tmp_path_factory.mktemp("plain") / "engine", SEEDED, max_input=200) as made:
        yield made


def section_length(runtime) -> int:
    return len(runtime.tokenizer.encode(SECTION))


def test_a_saved_system_prompt_is_not_computed_again_but_for_its_last_token(runtime, plain):
    assert runtime.rank.gen_and_save_system_prompt_kv_cache(SECTION)
    for text in ("open", "close"):
        response = answer(runtime, request(turn(text)))
        assert outcome(response) == outcome(answer(plain, request(turn(text))))
        assert response.reused_token_counts == [section_length(runtime) - 1]


def test_a_request_may_save_its_own(runtime, plain):
    items = [turn("open"), turn("close"), turn("a", system="another")]
    first = answer(runtime, request(*items, save_system_prompt_kv_cache=True))
    assert first.reused_token_counts[:2] == [section_length(runtime) - 1] * 2
    assert len(runtime.rank._reuse.system_prompts) == 2
    second = answer(runtime, request(*items))
    assert second.reused_token_counts == first.reused_token_counts
    for index, entry in enumerate(items):
        assert outcome(first, index) == outcome(second, index) == outcome(answer(plain, request(entry)))


def test_saving_twice_runs_nothing(runtime, monkeypatch):
    assert runtime.rank.gen_and_save_system_prompt_kv_cache(SECTION)
    monkeypatch.setattr(runtime.rank.executor, "prefill", None)
    assert runtime.rank.gen_and_save_system_prompt_kv_cache(SECTION)
    assert runtime.rank.gen_and_save_system_prompt_kv_cache("") and len(runtime.rank._reuse.system_prompts) == 1


def test_other_system_prompts_are_computed(runtime):
    runtime.rank.gen_and_save_system_prompt_kv_cache(SECTION)
    assert answer(runtime, request(turn("open", system="You move."))).reused_token_counts == [0]
    assert answer(runtime, request("open")).reused_token_counts == [0]


@pytest.mark.parametrize(
    ("prompt", "adapter", "code"),
    [
        ("x" * 201, "", RefusalCode.INPUT_TOO_LONG),
        (SECTION, "unknown", RefusalCode.UNKNOWN_ADAPTER),
    ],
    ids=["too long", "adapter"],
)
def test_what_cannot_be_saved_is_refused(runtime, prompt, adapter, code):
    assert not runtime.rank.gen_and_save_system_prompt_kv_cache(prompt, adapter)
    assert runtime.rank.last_refusal.code is code and not runtime.rank.keeps_system_prompts


def test_the_context_cache_takes_its_place(tmp_path):
    with fake_runtime(tmp_path / "engine", SEEDED, context_cache=ContextCacheConfig()) as runtime:
        assert not runtime.rank.gen_and_save_system_prompt_kv_cache(SECTION)
        assert runtime.rank.last_refusal.code is RefusalCode.UNSUPPORTED
        assert runtime.rank.gen_and_save_system_prompt_kv_cache("")


def test_not_while_a_request_is_open(runtime):
    with (
        runtime.rank.begin_generation(runtime.prepare(request("hi")), LLMGenerationResponse()),
        pytest.raises(MisuseError, match="open request"),
    ):
        runtime.rank.gen_and_save_system_prompt_kv_cache(SECTION)


def test_text_that_begins_alike_with_other_ids_is_computed_with_a_warning(runtime, plain, caplog):
    system = "say <|im_end|> aloud"  # in a prompt these are letters, in a saved text a control token
    section = f"<|im_start|>system\n{system}<|im_end|>\n"
    assert runtime.rank.gen_and_save_system_prompt_kv_cache(section)
    with caplog.at_level(logging.WARNING):
        response = answer(runtime, request(turn("open", system=system)))
    assert response.reused_token_counts == [0] and "is not how the prompt begins" in caplog.text
    assert outcome(response) == outcome(answer(plain, request(turn("open", system=system))))


def test_a_template_that_does_not_set_the_system_turn_apart_saves_nothing(runtime):
    runtime.tokenizer.chat_template = ChatTemplate(
        "{% if messages[-1].role == 'system' %}{{ raise_exception('no user') }}{% endif %}"
        "{% for message in messages %}{{ message.content }}{% endfor %}"
    )
    assert answer(runtime, request(turn("open"), save_system_prompt_kv_cache=True)).reused_token_counts == [0]
    assert not runtime.rank.keeps_system_prompts


def test_without_a_template_the_system_turn_is_its_text(runtime, plain):
    fields = {"apply_chat_template": False}
    first = answer(runtime, request(turn("open"), save_system_prompt_kv_cache=True, **fields))
    assert first.reused_token_counts == [len(SYSTEM) - 1]
    assert outcome(first) == outcome(answer(plain, request(turn("open"), **fields)))


@pytest.mark.parametrize("failing", ["prefill", "export_block"])
def test_a_request_whose_system_prompt_cannot_be_saved_is_answered_with_a_warning(
    runtime, plain, monkeypatch, failing, caplog
):
    def fail(*_, **__):
        monkeypatch.undo()
        raise BackendError("it failed.") if failing == "prefill" else MemoryError

    executor = runtime.rank.executor
    monkeypatch.setattr(executor if failing == "prefill" else executor.cache, failing, fail)
    with caplog.at_level(logging.WARNING):
        response = answer(runtime, request(turn("open"), save_system_prompt_kv_cache=True))
    assert outcome(response) == outcome(answer(plain, request(turn("open"))))
    assert "could not be kept" in caplog.text and not runtime.rank.keeps_system_prompts


def test_a_copy_that_fails_ends_the_sequence_alone(runtime, monkeypatch):
    runtime.rank.gen_and_save_system_prompt_kv_cache(SECTION)

    def fail(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(runtime.rank.executor.cache, "import_block", fail)
        response = answer(runtime, request(turn("open"), turn("a", system="other")))
    assert response.finish_reasons[0] is FinishReason.ERROR and "could not be copied" in response.messages[0]
    assert response.finish_reasons[1] is not FinishReason.ERROR
    assert answer(runtime, request(turn("open"))).reused_token_counts == [section_length(runtime) - 1]


@pytest.mark.parametrize("surplus", [0, 1])
def test_only_a_longer_prompt_reuses_it(runtime, surplus):
    assert runtime.rank.gen_and_save_system_prompt_kv_cache(SECTION)
    ids = (*runtime.tokenizer.encode(SECTION), *[65] * surplus)
    found = {}

    def before_step(session, step):
        if step == 0:
            session.admit_sequence(SlotSeed(ids, 1, max_generate_length=2, system_prompt=SECTION))
        found.update(session.take_completed_at_or_above(1))

    stepped(runtime, request(turn("open")), before_step)
    assert found[1].reused_length == (section_length(runtime) - 1 if surplus else 0)
