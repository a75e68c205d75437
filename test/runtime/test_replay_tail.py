"""How much of a prompt the next turn repeats, as the chat template tells."""

from __future__ import annotations

import pytest
from runtime_helpers import answer, fake_runtime, request

from edgellm_ros.backends.fake import FakeScript
from edgellm_ros.chat_template import ChatTemplate
from edgellm_ros.runtime.cache_policy import CacheLookupPolicy
from edgellm_ros.runtime.context_cache import ContextCacheConfig
from edgellm_ros.runtime.request import Message, Request

TURNS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' and message.reasoning_content and keep %}"
    "<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}<|im_end|>\n{% endfor %}"
)
PLAIN = TURNS + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
# The answer is to begin with empty reasoning, which is left out of the history.
STRIPS = TURNS + "{% if add_generation_prompt %}<|im_start|>assistant\n<think></think>{% endif %}"
REFUSES = "{% if messages[-1].role == 'assistant' %}{{ raise_exception('no answers') }}{% endif %}" + PLAIN
FOREIGN = "{{ messages|length }}" + PLAIN  # nothing of it is repeated
ANSWER = "an answer that is longer than one block of tokens, to be sure"


@pytest.fixture
def runtime(tmp_path):
    script = FakeScript(answers=[ANSWER])
    with fake_runtime(tmp_path / "engine", script, context_cache=ContextCacheConfig()) as made:
        yield made


def tail(runtime, template: str | None, *messages: Message, **fields) -> int:
    if template is not None:
        runtime.tokenizer.chat_template = ChatTemplate(template)
    messages = messages or (Message("user", "Open the gripper."),)
    fields = {"context_cache_replay_tail_length": -1, **fields}
    return runtime.prepare(request(Request(messages), **fields)).context_cache_replay_tail_length


@pytest.mark.parametrize(
    ("template", "wanted"),
    [(None, 1), (PLAIN, 1), (STRIPS, 1 + len("<think></think>")), (REFUSES, 0), (FOREIGN, 0)],
    ids=["the model's own", "repeated whole", "reasoning left out", "refuses an answer", "nothing repeated"],
)
def test_the_tail_is_what_the_history_writes_differently(runtime, template, wanted):
    assert tail(runtime, template) == wanted
    assert tail(runtime, template, Message("user", "a"), Message("assistant", "b"), Message("user", "c")) == wanted


def test_control_tokens_in_a_prompt_do_not_matter(runtime):
    assert tail(runtime, None, Message("user", "literally <|im_end|> and <|im_start|>")) == 1


def test_it_is_derived_only_where_that_can_be(runtime, tmp_path):
    assert tail(runtime, STRIPS, add_generation_prompt=False) == 0
    assert tail(runtime, STRIPS, apply_chat_template=False) == 0
    assert tail(runtime, STRIPS, pre_tokenized_input_ids=[[1, 2, 3]]) == 0
    assert tail(runtime, STRIPS, context_cache_replay_tail_length=7) == 7
    two = request("a", "b", context_cache_replay_tail_length=-1)
    assert runtime.prepare(two).context_cache_replay_tail_length == 0
    with fake_runtime(tmp_path / "plain") as plain:
        assert tail(plain, None) == 0


def _second_turn(runtime, template: str) -> tuple[int, int, int]:
    """Prompt tokens of a first turn, its blocks, and what the next turn reused of it."""
    runtime.tokenizer.chat_template = ChatTemplate(template)
    first_turn = (Message("system", "x" * 40), Message("user", "open"))
    first = answer(runtime, request(Request(first_turn), context_cache_replay_tail_length=-1))
    kept = runtime.rank.get_context_cache_metrics().published_tokens
    turns = (*first_turn, Message("assistant", first.output_texts[0]), Message("user", "close"))
    second = answer(runtime, request(Request(turns), context_cache_replay_tail_length=-1))
    return first.input_token_counts[0], kept, second.reused_token_counts[0]


def test_an_answer_is_kept_where_the_next_turn_repeats_it(runtime):
    prompt, kept, reused = _second_turn(runtime, PLAIN)
    assert kept == reused == (prompt + len(ANSWER)) // 16 * 16


def test_nothing_is_kept_that_the_next_turn_cannot_find(runtime):
    prompt, kept, reused = _second_turn(runtime, STRIPS)
    assert kept == reused == (prompt - 16) // 16 * 16


def test_a_bypass_needs_no_tail(runtime):
    asked = request("hi", context_cache_lookup_policy=CacheLookupPolicy.BYPASS, context_cache_replay_tail_length=-1)
    assert answer(runtime, asked).reused_token_counts == [0]
