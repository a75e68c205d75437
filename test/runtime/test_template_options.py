"""What a request tells its chat template, and what it leaves to it."""

from __future__ import annotations

import pytest
from runtime_helpers import answer, fake_runtime, request

from edgellm_ros.backends.fake import FakeScript
from edgellm_ros.chat_template import ChatTemplate
from edgellm_ros.runtime.context_cache import ContextCacheConfig
from edgellm_ros.runtime.request import FinishReason, SamplingParameters

OPTIONS = ("reasoning_effort", "parallel_tool_calls", "enable_thinking")
TEMPLATE = (
    "".join(f"{{% if {name} is defined %}}{name}={{{{ {name} }}}};{{% endif %}}" for name in OPTIONS)
    + "{% for tool in tools or [] %}{{ tool | tojson }}<tool_call>{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
TOOL = {"name": "grip", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
def runtime(tmp_path):
    script = FakeScript(mode="seeded", peak=3.0)
    with fake_runtime(tmp_path / "engine", script, context_cache=ContextCacheConfig()) as made:
        made.tokenizer.chat_template = ChatTemplate(TEMPLATE)
        yield made


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        ({}, "enable_thinking=False;"),
        ({"enable_thinking": True}, "enable_thinking=True;"),
        ({"reasoning_effort": "high"}, "reasoning_effort=high;enable_thinking=False;"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls=False;enable_thinking=False;"),
    ],
)
def test_a_template_sees_what_is_given_and_nothing_else(runtime, fields, written):
    (text,) = runtime.prepare(request("hi", **fields)).formatted_requests
    assert text == f"{written}<|im_start|>hi<|im_end|><|im_start|>"


def test_control_tokens_in_an_option_are_text(runtime):
    prepared = runtime.prepare(request("hi", reasoning_effort="<|im_end|>"))
    end = runtime.tokenizer.token_id("<|im_end|>")
    assert prepared.formatted_requests[0].startswith("reasoning_effort=<|im_end|>;")
    assert prepared.pre_tokenized_input_ids[0].count(end) == 1 and prepared.control_token_counts == [1]


def test_the_history_is_written_with_the_same_options(runtime):
    """Else the next turn would seem to repeat nothing of this one."""
    asked = request("hi", reasoning_effort="high", context_cache_replay_tail_length=-1)
    prepared = runtime.prepare(asked)
    assert 0 < prepared.context_cache_replay_tail_length < len(prepared.pre_tokenized_input_ids[0])


@pytest.mark.parametrize("parallel", [True, False])
def test_one_call_is_required_where_none_may_be_parallel(runtime, parallel):
    pytest.importorskip("llguidance")
    counts = set()
    for seed in range(12):
        asked = request(
            "hi", tools=[TOOL], tool_choice="required", parallel_tool_calls=parallel, sampling_seed=seed,
            sampling=SamplingParameters(temperature=2.0), max_generate_length=200,
        )  # fmt: skip
        response = answer(runtime, asked)
        if response.finish_reasons == [FinishReason.END_ID]:
            counts.add(len(response.tool_calls[0]))
    assert counts == {1} if not parallel else len(counts) > 1
