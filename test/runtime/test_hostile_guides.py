"""Guides that would take a process down, or never end, are refused with a sentence or end their own row."""

from __future__ import annotations

import json
import threading
import time

import pytest
from runtime_helpers import answer, fake_runtime, item, request

from edgellm_ros.errors import RefusalCode, RequestError
from edgellm_ros.runtime import guide_grammar, guided
from edgellm_ros.runtime.guide_grammar import Guide, GuideKind, check_guide
from edgellm_ros.runtime.guide_thread import compile_apart
from edgellm_ros.runtime.request import FinishReason, LLMGenerationResponse

pytest.importorskip("llguidance")


def chain(count: int, rule: str, last: str) -> str:
    """Rules that each name the next one."""
    return "\n".join(rule.format(here=f"{index:x}", there=f"{index + 1:x}") for index in range(count)) + last.format(
        there=f"{count:x}"
    )


def nested(schema: dict, depth: int) -> dict:
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def references(count: int, depth: int) -> str:
    links = {f"{index:x}": nested({"$ref": f"#/$defs/{index + 1:x}"}, depth) for index in range(count)}
    return json.dumps({"$defs": {**links, f"{count:x}": {"type": "null"}}, "$ref": "#/$defs/0"}, separators=(",", ":"))


LONG_ROWS = {
    "rules": (GuideKind.EBNF, "start: a0\n" + chain(10_000, "a{here}:a{there}", '\na{there}:"a"')),
    "tokens": (GuideKind.EBNF, "start: A0\n" + chain(8_000, "A{here}:A{there}", '\nA{there}:"a"').upper()),
    "twice each": (GuideKind.EBNF, "start: a0\n" + chain(4_000, "a{here}:a{there} a{there}", '\na{there}:"a"')),
    "references": (GuideKind.JSON_SCHEMA, references(2_500, 1)),
    "references and items": (GuideKind.JSON_SCHEMA, references(1_700, 4)),
}
REFUSED = {
    "a schema nested too deeply": (GuideKind.JSON_SCHEMA, '{"items":' * 200 + "{}" + "}" * 200, "recursion limit"),
    "deeper than Python reads": (GuideKind.JSON_SCHEMA, '{"items":' * 9000 + "{}" + "}" * 9000, "recursion depth"),
    "a number beyond floats": (GuideKind.JSON_SCHEMA, '{"maximum": 1e400}', "out of range"),
    "no number": (GuideKind.JSON_SCHEMA, '{"maximum": NaN}', "NaN is no number"),
    "parentheses": (GuideKind.REGEX, "(" * 20_000 + "a" + ")" * 20_000, "nested parentheses"),
    "groups": (GuideKind.EBNF, "start: " + "(" * 10_000 + '"a"' + ")" * 10_000, "too deeply nested"),
    "a rule of itself alone": (GuideKind.EBNF, "start: start", "no text can follow"),
    "rules in a circle": (GuideKind.EBNF, "start: a\na: b\nb: a", "no text can follow"),
    "a schema of itself alone": (GuideKind.JSON_SCHEMA, '{"$ref": "#"}', "no text can follow"),
    "an empty class": (GuideKind.REGEX, r"[^\s\S]", "no text can follow"),
    "doubled forty times": (
        GuideKind.EBNF, "root ::= r0\n" + chain(40, "r{here} ::= r{there} r{there}", '\nr{there} ::= "a"'), "too big",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    with fake_runtime(tmp_path_factory.mktemp("fake") / "engine") as made:
        yield made


def on_a_small_stack(work) -> None:
    """As any thread of a node may have it."""
    failures = []

    def run():
        try:
            work()
        except BaseException as error:
            failures.append(error)

    before = threading.stack_size(1 << 20)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    if failures:
        raise failures[0]


@pytest.mark.parametrize("case", LONG_ROWS)
def test_rules_that_name_each_other_in_a_long_row_do_not_end_the_process(runtime, case):
    guide = Guide(*LONG_ROWS[case])

    def use():
        for step in (
            lambda: check_guide(guide),
            lambda: runtime.handle_request(
                request(item("hi", guided_decoding=guide), max_generate_length=3), LLMGenerationResponse()
            ),
        ):
            try:
                step()
            except RequestError as error:
                assert error.code is RefusalCode.BAD_GUIDE and "\n" not in str(error)

    on_a_small_stack(use)
    assert answer(runtime, request("hi"))


@pytest.mark.parametrize("case", REFUSED)
def test_a_guide_that_nothing_can_come_of_is_refused_with_a_sentence(runtime, case):
    kind, text, reason = REFUSED[case]
    response = LLMGenerationResponse()
    assert not runtime.handle_request(request(item("hi", guided_decoding=Guide(kind, text))), response)
    assert runtime.last_refusal.code is RefusalCode.BAD_GUIDE
    assert reason in runtime.last_refusal.message
    assert len(runtime.last_refusal.message) < 450 and "\n" not in runtime.last_refusal.message


def test_a_guide_that_grows_too_large_on_the_way_says_why(runtime):
    """Its first token is fine, and there are too many ways to go on."""
    guide = Guide.json_schema({"type": "object", "properties": {f"k{index}": {} for index in range(1000)}})
    response = answer(runtime, request(item("hi", guided_decoding=guide), max_generate_length=9))
    assert response.finish_reasons == [FinishReason.ERROR]
    assert response.messages[0].startswith("the guide cannot go on: ") and "max is 2000" in response.messages[0]
    assert "<state>" not in response.messages[0] and "\n" not in response.messages[0]


def test_a_guide_that_takes_too_long_is_refused(monkeypatch):
    def never(work):
        raise TimeoutError

    monkeypatch.setattr(guide_grammar, "compile_apart", never)
    with pytest.raises(RequestError, match=r"the regex guide takes longer than 30 s to compile; make it smaller\."):
        check_guide(Guide("regex", "a"))


def test_work_apart_is_waited_for_no_longer_than_said():
    go_on = threading.Event()
    start = time.monotonic()
    try:
        with pytest.raises(TimeoutError):
            compile_apart(lambda: go_on.wait(60), 0.05)
        assert time.monotonic() - start < 30
    finally:
        go_on.set()
    assert compile_apart(lambda: 5) == 5
    with pytest.raises(KeyError):
        compile_apart(lambda: {}["missing"])


def test_a_guide_that_takes_long_keeps_no_other_waiting(runtime, monkeypatch):
    """Least of all the thread of a batch, which looks up the guide of everybody who joins."""
    runtime.rank.admission.check(runtime.prepare(request(item("hi", guided_decoding=Guide.choice("a")))))
    begun, go_on = threading.Event(), threading.Event()
    slow, compiled = Guide.choice("slow"), guided.compiled

    def compiling(guide, work):
        if guide is slow:
            begun.set()
            assert go_on.wait(60)
        return compiled(guide, work)

    monkeypatch.setattr(guided, "compiled", compiling)
    asked = runtime.prepare(request(item("hi", guided_decoding=slow)))
    checking = threading.Thread(target=runtime.rank.admission.check, args=(asked,))
    checking.start()
    try:
        assert begun.wait(60)
        answered: list[str] = []
        other = threading.Thread(
            target=lambda: answered.extend(
                answer(runtime, request(item("hi", guided_decoding=Guide.choice("b")))).output_texts
            )
        )
        other.start()
        other.join(20)
        assert answered == ["b"]
    finally:
        go_on.set()
        checking.join(60)
