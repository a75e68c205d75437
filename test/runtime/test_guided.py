"""Guided answers: always of the asked form, whoever shares the batch and however the request is driven."""

from __future__ import annotations

import json
import re

import pytest
from runtime_helpers import answer, check_stream, drain, fake_runtime, item, outcome, request, stepped
from tokenizers_for_tests import CHATML_TOKENS, byte_level

from edgellm_ros.backends.fake import FakeMode, FakeScript
from edgellm_ros.errors import RefusalCode, RequestError
from edgellm_ros.runtime.boundary import SlotSeed
from edgellm_ros.runtime.guide_grammar import Guide, GuideKind
from edgellm_ros.runtime.guided import GuideCompiler
from edgellm_ros.runtime.reasoning import ReasoningRules
from edgellm_ros.runtime.request import FinishReason, SamplingParameters
from edgellm_ros.runtime.scheduler import RequestEngine, RequestEngineConfig
from edgellm_ros.runtime.sequence import EndRules, Sequence
from edgellm_ros.runtime.streaming import StreamChannel
from edgellm_ros.runtime.tokenizer import Tokenizer

pytest.importorskip("llguidance")

WARM = SamplingParameters(temperature=1.5)
SCHEMA = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "maxLength": 8},
        "grip": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["place", "grip"],
    "additionalProperties": False,
}


def valid_pick(text: str) -> bool:
    content = json.loads(text)
    return list(content) == ["place", "grip"] and len(content["place"]) <= 8 and content["grip"] in range(10)


def matches(pattern: str):
    return lambda text: re.fullmatch(pattern, text) is not None


GUIDES = {
    "json_schema": (Guide.json_schema(SCHEMA), valid_pick),
    "json_object": (Guide(GuideKind.JSON_OBJECT), lambda text: isinstance(json.loads(text), dict)),
    "regex": (Guide("regex", "(left|right) [0-9]{1,3}°"), matches("(left|right) [0-9]{1,3}°")),
    "ebnf": (Guide("ebnf", 'root ::= "go" (" " [a-c]){1,3}'), matches("go( [a-c]){1,3}")),
    "lark": (Guide("ebnf", 'start: "go " N\nN: /[0-9]{2}/'), matches("go [0-9]{2}")),
    "choice": (Guide.choice("drop", "dröp", "hold on"), ("drop", "dröp", "hold on").__contains__),
    "choice of lines": (Guide("choice", "up\ndown\n"), ("up", "down").__contains__),
    "structural_tag": (
        Guide(
            "structural_tag",
            json.dumps({"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}),
        ),
        lambda text: all(valid_pick(part) for part in re.findall("<f>(.*?)</f>", text, re.DOTALL)),
    ),
}
PICK = GUIDES["json_schema"][0]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    with fake_runtime(tmp_path_factory.mktemp("seeded"), FakeScript(mode=FakeMode.SEEDED, peak=3.0)) as runtime:
        yield runtime


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", GUIDES)
def test_an_answer_has_the_form_of_its_guide(runtime, name, seed):
    guide, valid = GUIDES[name]
    channel = StreamChannel()
    asked = request(
        item("q", guided_decoding=guide),
        channels=[channel],
        sampling=WARM,
        sampling_seed=seed,
        max_generate_length=300,
    )
    response = answer(runtime, asked)
    check_stream(drain(channel), response)
    if response.finish_reasons == [FinishReason.END_ID]:
        assert valid(response.output_texts[0]), response.output_texts
    else:  # free text goes on for ever; the reason says that it was cut
        assert response.finish_reasons == [FinishReason.LENGTH] and name in ("json_object", "structural_tag")


def test_stepping_gives_what_blocking_gives(runtime):
    asked = [request(item("q", guided_decoding=PICK), sampling=WARM, sampling_seed=5) for _ in range(2)]
    assert outcome(stepped(runtime, asked[0])) == outcome(answer(runtime, asked[1]))


def test_rows_with_different_guides_and_none_answer_as_they_do_alone(runtime):
    items = [item(f"q{place}", guided_decoding=guide) for place, (guide, _) in enumerate(list(GUIDES.values())[:3])]
    items.append(item("free"))
    together = answer(runtime, request(*items, sampling=WARM, max_generate_length=80))
    for place, one in enumerate(items):
        alone = answer(runtime, request(one, sampling=WARM, max_generate_length=80))
        assert outcome(together, place) == outcome(alone)


def test_a_joiner_with_a_guide_answers_as_it_does_alone(runtime):
    joiner = request(item("later", guided_decoding=PICK), sampling=WARM, max_generate_length=60)
    alone = answer(runtime, joiner)
    joined = {}

    def before_step(session, index):
        if index == 3:
            session.admit_request(runtime.prepare(joiner), 7, 8)
        for key, result in session.take_completed_at_or_above(7).items():
            joined[key] = session.materialize_result(result)

    founders = [item("a", guided_decoding=GUIDES["regex"][0]), item("b" * 40)]
    response = stepped(runtime, request(*founders, sampling=WARM, max_generate_length=90), before_step)
    assert GUIDES["regex"][1](response.output_texts[0])
    assert 7 in joined and outcome(joined[7]) == outcome(alone)


@pytest.mark.parametrize("step", [0, 1, 5, 12])
def test_a_cancelled_object_is_the_start_of_the_whole_one(runtime, step):
    asked = request(item("q", guided_decoding=PICK), sampling=WARM)
    whole = answer(runtime, asked).output_texts[0]
    channel = StreamChannel()
    cut = stepped(
        runtime,
        request(item("q", guided_decoding=PICK), sampling=WARM, channels=[channel]),
        lambda session, index: channel.cancel() if index == step else None,
    )
    assert cut.finish_reasons == [FinishReason.CANCELLED]
    assert whole.startswith(cut.output_texts[0]) and len(cut.output_ids[0]) == step + 1


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"max_generate_length": 7}, FinishReason.LENGTH), ({"stop_strings": ('"grip',)}, FinishReason.STOP_WORDS)],
    ids=["length", "stop string"],
)
def test_a_cut_object_says_so_by_its_reason(runtime, fields, reason):
    whole = answer(runtime, request(item("q", guided_decoding=PICK))).output_texts[0]
    cut = answer(runtime, request(item("q", guided_decoding=PICK, **fields)))
    assert cut.finish_reasons == [reason] and cut.output_texts[0] != whole
    assert whole.startswith(cut.output_texts[0])


def test_an_end_is_allowed_only_where_the_answer_is_complete(tmp_path):
    """The script ends at once and later talks on; the guide lets it do neither."""
    with fake_runtime(tmp_path, FakeScript(answers=[""])) as ends_at_once:
        assert answer(ends_at_once, request(item("q", guided_decoding=Guide.choice("yes")))).output_texts == ["yes"]
    with fake_runtime(tmp_path / "talks", FakeScript(answers=["yes and much more"])) as talks_on:
        response = answer(talks_on, request(item("q", guided_decoding=Guide.choice("yes"))))
        assert response.output_texts == ["yes"] and response.finish_reasons == [FinishReason.END_ID]


@pytest.mark.parametrize(
    ("thinks", "pieces", "text"),
    [
        (True, ["<think>", "h", "m", "</think>", "n", "o"], "no"),
        (True, ["<think>", "<|im_end|>", "h", "</think>", "y"], "yes"),  # an end inside reasoning is not allowed
        (True, ["S", "u", "r", "e"], "yes"),  # it skips reasoning: the guide holds from the first token on
        (False, ["<think>", "h", "m", "</think>", "n", "o"], "no"),  # reasoning that was not asked for is not allowed
    ],
    ids=["reasons", "wants to end early", "skips reasoning", "no reasoning asked"],
)
def test_the_guide_begins_where_reasoning_ends(tmp_path, thinks, pieces, text):
    script = FakeScript(answers=[pieces, ["<think>", "</think>"]])
    guide = Guide.choice("yes", "no")
    with fake_runtime(tmp_path, script) as runtime:
        asked = request(item("q", guided_decoding=guide), enable_thinking=thinks, max_generate_length=40)
        response = answer(runtime, asked)
    assert response.finish_reasons == [FinishReason.END_ID]
    assert response.output_texts[0].split("</think>")[-1] in ("yes", "no")
    if thinks and pieces[0] == "<think>" and text == "no":
        assert response.output_texts[0].endswith("no")


def test_masks_are_the_next_characters_that_the_guide_allows():
    tokenizer = Tokenizer(byte_level(CHATML_TOKENS))
    end = tokenizer.token_id("<|im_end|>")
    compiler = GuideCompiler(tokenizer, tokenizer.vocab_size + 3, (end,), ReasoningRules(tokenizer))
    texts = ("ab", "ac", "b")
    guide = compiler.start(Guide.choice(*texts), (), False)
    done = ""
    for character in ("a", "c", None):
        mask = guide.take_mask()
        assert guide.take_mask() is None  # unchanged
        allowed = {token for token in range(tokenizer.vocab_size + 3) if mask[token // 32] >> (token % 32) & 1}
        wanted = {text for text in texts if text.startswith(done)}
        pieces = {tokenizer.token_bytes(token).decode() for token in allowed - {end}}
        assert {piece[0] for piece in pieces} == {text[len(done)] for text in wanted if text != done}
        assert (end in allowed) == (done in texts)
        if character:
            assert guide.accept(tokenizer.token_id(character))
            done += character
    assert guide.accept(end)


def test_without_an_end_id_a_complete_answer_ends_by_itself():
    tokenizer = Tokenizer(byte_level(CHATML_TOKENS))
    compiler = GuideCompiler(tokenizer, tokenizer.vocab_size, (), ReasoningRules(tokenizer))
    guide = compiler.start(Guide.choice("ab"), (), False)
    sequence = Sequence(
        SlotSeed((65,), 0, guided_decoding=Guide.choice("ab")), 1, tokenizer, EndRules((), tokenizer), 9
    )
    sequence.guide = guide
    for letter, ended in (("a", False), ("b", True)):
        sequence.accept(tokenizer.token_id(letter), (), 1.0)
        assert guide.complete is sequence.finished is ended
    assert sequence.finish_reason is FinishReason.END_ID


def test_a_token_that_the_guide_forbids_ends_the_row_with_what_it_had(runtime, monkeypatch):
    """As where another rank did not obey the mask."""
    monkeypatch.setattr("edgellm_ros.runtime.guided.SequenceGuide.take_mask", lambda self: None)
    response = answer(runtime, request(item("q", guided_decoding=PICK), item("free", max_generate_length=3)))
    assert response.finish_reasons == [FinishReason.ERROR, FinishReason.LENGTH]
    assert response.output_ids[0] == [] and "guide" in response.messages[0]


def test_a_guide_that_cannot_go_on_ends_its_row_alone(runtime, monkeypatch):
    free = answer(runtime, request(item("free", max_generate_length=9)))

    def fail(self):
        raise RequestError("the guide cannot go on: too complex.", RefusalCode.BAD_GUIDE)

    monkeypatch.setattr("edgellm_ros.runtime.guided.SequenceGuide.take_mask", fail)
    response = answer(runtime, request(item("q", guided_decoding=PICK), item("free", max_generate_length=9)))
    assert response.finish_reasons[0] is FinishReason.ERROR and response.messages[0].startswith("the guide cannot")
    assert outcome(response, 1) == outcome(free)


def test_a_scheduler_serves_guided_and_free_requests_together(runtime):
    engine = RequestEngine(runtime, RequestEngineConfig(max_batch_size=4))
    try:
        with pytest.raises(RequestError, match="unclosed"):
            engine.submit(request(item("q", guided_decoding=Guide("regex", "("))))
        handles = [engine.submit(request(item("q", guided_decoding=guide), sampling=WARM, max_generate_length=60))
                   for guide, _ in GUIDES.values()]  # fmt: skip
        for handle, (_, valid) in zip(handles, GUIDES.values(), strict=True):
            response = handle.get(20)
            assert response.finish_reasons[0] is FinishReason.LENGTH or valid(response.output_texts[0])
    finally:
        engine.shutdown()


def test_log_probabilities_leave_out_what_the_guide_forbids(runtime):
    response = answer(runtime, request(item("q", guided_decoding=Guide.choice("no", "on")), num_logprobs=5))
    first = {entry.piece for entry in response.logprobs[0][0]}
    assert first == {b"n", b"o"}
