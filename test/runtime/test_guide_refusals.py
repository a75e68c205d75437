"""Guides that are refused: where they are wrong, and what they do not go with."""

from __future__ import annotations

import sys

import pytest
from runtime_helpers import answer, fake_runtime, item, outcome, request

from edgellm_ros.backends.fake import FakeMode, FakeScript
from edgellm_ros.errors import MissingPackageError, RefusalCode, RequestError
from edgellm_ros.runtime.guide_grammar import MAX_GUIDE_BYTES, Guide
from edgellm_ros.runtime.request import FinishReason, LLMGenerationResponse, Request

pytest.importorskip("llguidance")

EITHER = Guide.choice("yes", "no")


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    with fake_runtime(tmp_path_factory.mktemp("seeded"), FakeScript(mode=FakeMode.SEEDED, peak=3.0)) as runtime:
        yield runtime


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("json_schema", '{"a":', "not JSON: Expecting value at line 1, column 6"),
        ("json_schema", "[]", "want an object"),
        ("json_schema", '{\n "items": {"uniqueItems": true}}', "line 2, column 13: Unimplemented"),
        ("json_schema", '{"type": "objet"}', "line 1, column 11: Invalid type: objet"),
        ("json_schema", '{"type": "string", "pattern": "b(a"}', "character 2 of 'b(a': unclosed group"),
        ("regex", "(a|b", "character 1: unclosed group"),
        ("regex", "a\n(b", "character 3: unclosed group"),
        ("regex", "a(?=b)", "character 2: look-around"),
        ("ebnf", "root ::= (foo", "Expected ')' at line 1"),
        ("ebnf", 'root ::=\n  foo "a"', "line 2, column 3: Rule 'foo' not found"),
        ("ebnf", "start: foo", 'line 1, column 8: unknown name: "foo"'),
        ("ebnf", 'foo: "a"', "no start rule"),
        ("choice", '["a", 3]', "choice 2 is 3"),
        ("choice", '["a",', "column 6"),
        ("choice", "[]", "empty"),
        ("structural_tag", "{}", "triggers"),
        (
            "structural_tag",
            '{"triggers": ["<g"], "structures": [{"begin": "<f>", "schema": {}, "end": ""}]}',
            "trigger",
        ),
    ],
)
def test_bad_guides_are_refused_with_the_place(runtime, kind, text, words):
    asked = request(item("q", guided_decoding=Guide(kind, text)))
    assert not runtime.handle_request(asked, LLMGenerationResponse())
    assert runtime.last_refusal.code is RefusalCode.BAD_GUIDE
    assert words in runtime.last_refusal.message and "\n" not in runtime.last_refusal.message
    assert outcome(answer(runtime, request("hi", max_generate_length=2)))[2] is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("yaml", "x", "want one of json_object"),
        ("regex", " ", "empty"),
        ("json_object", "{}", "leave it empty"),
        ("regex", 3, "want a string"),
        ("regex", "x" * (MAX_GUIDE_BYTES + 1), "at most"),
    ],
)
def test_guides_are_checked_at_birth(kind, text, words):
    with pytest.raises(RequestError, match=words):
        Guide(kind, text)


def test_what_a_guide_does_not_go_with_is_refused():
    with pytest.raises(RequestError, match="ignore_eos"):
        Request(guided_decoding=EITHER, ignore_eos=True)
    with pytest.raises(RequestError, match="want a Guide"):
        Request(guided_decoding="yes")


def test_a_missing_package_is_one_sentence(runtime, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingPackageError, match="pip install llguidance"):
        answer(runtime, request(item("q", guided_decoding=EITHER)))
    monkeypatch.undo()
    assert answer(runtime, request(item("q", guided_decoding=EITHER))).output_texts[0] in ("yes", "no")
