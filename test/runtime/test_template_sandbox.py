"""What a chat template may cost: a hostile one becomes a sentence in bounded time and memory."""

from __future__ import annotations

import pytest

from edgellm_ros import template_sandbox
from edgellm_ros.chat_template import ChatTemplate
from edgellm_ros.errors import EngineDirectoryError, RequestError

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
NESTED = "{% set ns = namespace(v=['a']) %}{% for i in range(60) %}{% set ns.v = [ns.v, ns.v] %}{% endfor %}"

ENDLESS = {
    "loops in loops": "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "a macro that calls itself": (
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
}
LARGE = {
    "a repeated text": "{{ 'a' * 4000000000 }}",
    "a repeated text in a constant": "{{ ('a' * 4000000000)|upper }}",
    "a repeated list": "{{ (range(90000)|list * 90000)|length }}",
    "a doubled text": (
        "{% set ns = namespace(s='a') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}"
    ),
    "a doubled sum": (
        "{% set ns = namespace(s='a') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}"
    ),
    "a doubled block": "{% set s %}aaaaaaaa{% endset %}" + "{% set s %}{{ s }}{{ s }}{% endset %}" * 40 + "{{ s }}",
    "text in a loop": "{% for i in range(90000) %}" + "x" * 100_000 + "{% endfor %}",
    "a wide field": "{{ 'a'.ljust(4000000000) }}",
    "a wide filter": "{{ 'a'|center(4000000000) }}",
    "a wide percent format": "{{ '%4000000000d'|format(1) }}",
    "a wide percent operator": "{{ '%4000000000d' % 1 }}",
    "a width that is given": "{{ '%*d' % (4000000000, 1) }}",
    "a wide brace format": "{{ '{:4000000000}'.format(1) }}",
    "a replacement": "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}",
    "a method that replaces": "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "joined copies": "{{ (['a' * 1000000] * 1000)|join }}",
    "indented JSON": "{{ messages|tojson(indent=400000000) }}",
    "nested lists": NESTED + "{{ ns.v }}",
    "nested lists as JSON": NESTED + "{{ ns.v|tojson }}",
    "nested lists as text": NESTED + "{{ ns.v|string|length }}",
    "nested lists in a text": NESTED + "{{ ns.v ~ '' }}",
    "a power": "{{ 9 ** 9999999 }}",
    "a power of powers": "{{ (9 ** 1000) * (9 ** 1000) }}",
}


@pytest.mark.parametrize("case", ENDLESS)
def test_a_template_that_loops_for_ever_is_stopped(case, monkeypatch):
    monkeypatch.setattr(template_sandbox, "MAX_SECONDS", 0.2)
    with pytest.raises(RequestError, match=r"does not come to an end|makes too much text"):
        ChatTemplate(ENDLESS[case]).render(MESSAGES)


@pytest.mark.parametrize("case", LARGE)
def test_a_template_that_wants_all_memory_is_stopped_before_it_has_it(case, monkeypatch):
    monkeypatch.setattr(template_sandbox, "MAX_PARTS", 1 << 14)
    with pytest.raises(RequestError, match=r"makes too (much text|large a number)"):
        ChatTemplate(LARGE[case]).render(MESSAGES)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}{{ m.role ~ ':' ~ none ~ loop.index ~ loop.last }};{% endfor %}",
         "user:None1False;assistant:None2True;"),
        ("{% for m in [] %}x{% else %}none{% endfor %}", "none"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content * 3 }}{% break %}{% endfor %}", "hihihi"),
        ("{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "3210"),
        ("{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{% endcall %}", "<x>"),
        ("{{ '%s-%05d' % ('a', 3) }}{{ '%5.1f'|format(2) }}{{ '{:>4}'.format('b') }}{{ 2 ** 10 }}",
         "a-00003  2.0   b1024"),
        ("{{ 'a-b'.split('-')|join('+') }}{{ 'aXb'.replace('X', '/')|upper|trim }}{{ '-' * 3 }}{{ [1] + [2] }}",
         "a+bA/B---[1, 2]"),
        ("{{ {'a': [1, none, true]}|tojson }}{{ messages|map(attribute='role')|list|length }}",
         '{"a": [1, null, true]}2'),
        ("{% for a in [[1, [2]]] recursive %}{{ a if a is number else loop(a) }}{% endfor %}", "12"),
    ],
)  # fmt: skip
def test_ordinary_templates_render_as_in_plain_jinja(template, text):
    assert ChatTemplate(template).render(MESSAGES) == text


def test_every_rendering_has_an_account_of_its_own(monkeypatch):
    monkeypatch.setattr(template_sandbox, "MAX_OPERATIONS", 150)
    template = ChatTemplate("{% for i in range(100) %}{% endfor %}done")
    assert [template.render(MESSAGES) for _ in range(5)] == ["done"] * 5


def test_a_long_conversation_is_no_hostile_one():
    template = ChatTemplate("{% for m in messages %}{{ '<' + m.role + '>' + m.content|trim + '\n' }}{% endfor %}")
    messages = [{"role": "user", "content": "x" * 15_000}] * 64
    assert len(template.render(messages)) == 64 * (15_000 + len("<user>\n"))


def test_what_a_template_says_stays_on_one_short_line():
    with pytest.raises(RequestError) as caught:
        ChatTemplate("{{ raise_exception('no\n way' * 1000) }}").render(MESSAGES)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize("template", ["{{ 1 if }}", "{% block a %}{% endblock %}{% block a %}{% endblock %}",
                                      "{{ " + "(" * 300 + "1" + ")" * 300 + " }}"])  # fmt: skip
def test_a_template_that_does_not_compile_is_refused(template):
    with pytest.raises(EngineDirectoryError, match="not valid Jinja"):
        ChatTemplate(template)


@pytest.mark.parametrize(
    "template",
    ["{{ lipsum.__globals__.os }}", "{{ cycler.__init__.__globals__ }}", "{{ strftime_now.__globals__ }}",
     "{{ messages.__class__.__mro__[1] }}", "{{ ''|attr('__class__')|attr('__mro__') }}",
     "{{ '{0.__class__.__mro__}'.format(messages) }}", "{{ ''.format.__self__.__class__.__base__ }}"],
)  # fmt: skip
def test_python_objects_stay_out_of_reach(template):
    try:
        text = ChatTemplate(template).render(MESSAGES)
    except RequestError:
        return
    assert text == ""
