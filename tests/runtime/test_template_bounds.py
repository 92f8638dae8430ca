"""Templates that would run for ever or fill the memory are stopped soon, and long chats are not."""

from __future__ import annotations

import time
from threading import Thread

import pytest

from dflash_compile.runtime import template_budget
from dflash_compile.runtime.chat import ChatTemplate
from dflash_compile.runtime.errors import BundleError, DFlashError, UsageError

MESSAGES = [{"role": "user", "content": "x"}]
TWICE = "{{% set ns = namespace(v={start}) %}}{{% for i in range(60) %}}{{% set ns.v = {again} %}}{{% endfor %}}{end}"


def render(source, messages=MESSAGES):
    return ChatTemplate(source, bos_token=None, eos_token=None).render(messages)


def twice(start, again, end="{{ ns.v | length }}"):
    return TWICE.format(start=start, again=again, end=end)


ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops with a test": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "loops of filters": "{% for a in range(99999) %}{% set b = range(99999) | map('string') | list %}{% endfor %}",
    "sums": "{% for a in range(99999) %}{% set b = range(99999) | sum %}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "recursive loops": "{% for a in range(300) recursive %}{{ loop(range(300)) if loop.depth0 < 5 }}{% endfor %}",
    "tests": "{% for a in range(99999) %}{% set b = range(99999) | select('odd') | list %}{% endfor %}",
}
HUGE = {
    "product": "{{ 'a' * 10**9 }}",
    "product the other way": "{{ 10**9 * 'a' }}",
    "list": "{{ ([0] * 10**9) | length }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "squares": twice("9", "ns.v * ns.v", "{{ ns.v }}"),
    "json indented": "{{ range(1000) | list | tojson(indent=1000000) | length }}",
    "json apart": "{{ range(1000) | list | tojson(separators=(',' * 99999, ':')) | length }}",
    "width": "{{ '{:999999999}'.format(1) }}",
    "computed width": "{{ '{:{}}'.format(1, 999999999) }}",
    "width of a map": "{{ '{a:999999999}'.format_map({'a': 1}) }}",
    "many widths": "{{ ('{0:9999999}' * 1000).format(1) }}",
    "percent": "{{ '%999999999d' % 1 }}",
    "computed percent": "{{ '%*d' % (999999999, 1) }}",
    "precision": "{{ '%.999999999f' % 1.5 }}",
    "format filter": "{{ '%999999999s' | format('a') }}",
    "ljust": "{{ 'a'.ljust(999999999) }}",
    "rjust": "{{ 'a'.rjust(999999999) }}",
    "centre": "{{ 'a'.center(999999999) }}",
    "centre filter": "{{ 'a' | center(999999999) }}",
    "zfill": "{{ 'a'.zfill(999999999) }}",
    "tabs": "{{ ('\t' * 1000).expandtabs(1000000) }}",
    "indent": "{{ ('a\n' * 1000) | indent(1000000) }}",
    "indent by text": "{{ ('a\n' * 100000) | indent('b' * 100000) }}",
    "join": "{{ ('a' * 100000).join(range(9999) | map('string')) }}",
    "join of a text": "{{ ('a' * 100000).join('b' * 100000) }}",
    "join filter": "{{ range(9999) | join('a' * 100000) }}",
    "replace": "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "replace filter": "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
    "replace nothing": "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
    "translate": "{{ ('a' * 10000).translate({97: 'b' * 1000000}) }}",
    "batch": "{{ [1] | batch(999999999, 0) | list }}",
    "slice": "{{ [1] | slice(999999999) | list }}",
    "bytes": "{{ (5).to_bytes(999999999, 'big') }}",
    "tojson": "{{ [1] | tojson(indent=99999999) }}",
    "joined twice": twice("'a'", "ns.v ~ ns.v"),
    "added twice": twice("'a'", "ns.v + ns.v"),
    "lists added": twice("[0]", "ns.v + ns.v"),
    "lists in lists": twice("[0]", "[ns.v, ns.v]", "{{ ns.v }}"),
    "tuples in tuples": twice("(0,)", "(ns.v, ns.v)", "{{ {ns.v: 1} | length }}"),
    "dictionaries": twice("{}", "{'a': ns.v, 'b': ns.v}", "{{ ns.v | tojson }}"),
    "batches": twice("[0]", "([ns.v] + [ns.v]) | batch(2) | list", "{{ ns.v }}"),
    "namespaces": twice("0", "namespace(a=ns.v, b=ns.v)", "{{ ns.v }}"),
    "deep": "{% set ns = namespace(v=[]) %}{% for i in range(3000) %}{% set ns.v = [ns.v] %}{% endfor %}{{ ns.v }}",
    "output": "{% set a = 'a' * 100000 %}{% for i in range(99999) %}{{ a }}{% endfor %}",
    "blocks": "{% set a = 'a' * 9999999 %}{% set b %}{% for i in range(99999) %}{{ a }}{% endfor %}{% endset %}",
    "hoard": twice("[]", "ns.v + ['a' * 9999999 ~ i]"),
}


@pytest.mark.parametrize("name", [*ENDLESS, *HUGE])
def test_it_is_stopped(name, monkeypatch):
    monkeypatch.setattr(template_budget, "MOST_SECONDS", 0.7)
    started = time.thread_time()
    with pytest.raises(DFlashError) as caught:
        render((ENDLESS | HUGE)[name])
    assert time.thread_time() - started < 5
    assert "out of bounds" in caught.value.what or "refuses" in caught.value.what


def test_time_itself_is_bounded(monkeypatch):
    monkeypatch.setattr(template_budget, "MOST_SECONDS", 0.05)
    with pytest.raises(BundleError, match="out of bounds") as caught:
        render("{% for a in range(99999) %}{% for b in range(20) %}{% endfor %}{% endfor %}")
    assert "seconds" in caught.value.why


@pytest.mark.parametrize("name", ["urlize", "xmlattr", "striptags", "wordwrap"])
def test_filters_with_slow_expressions_are_left_out(name):
    with pytest.raises(BundleError, match="cannot be read"):
        render("{{ 'a' | " + name + " }}")
    with pytest.raises(UsageError):
        render("{{ ['a'] | map('" + name + "') | list }}")


def test_a_template_without_end():
    with pytest.raises(BundleError, match="cannot be read"):
        render("a" * (1 << 20) + "b")


LONG_CHAT = (
    "{%- set ns = namespace(seen=[], last=messages | length - 1) -%}"
    "{%- for message in messages[::-1] -%}{%- if message.role == 'user' and not ns.seen -%}"
    "{%- set ns.seen = ns.seen + [messages | length - loop.index] -%}{%- endif -%}{%- endfor -%}"
    "{%- for message in messages -%}{%- set content = message.content -%}"
    "{{- '<|im_start|>' + message.role + '\n' + content | trim + '<|im_end|>\n' -}}"
    "{%- for call in message.tool_calls or [] -%}{{- '{:>4}'.format(loop.index) ~ call.arguments | tojson -}}"
    "{%- endfor -%}"
    "{%- for part in content.split('</think>') -%}{{- part[-3:] -}}{%- endfor -%}"
    "{%- if loop.last %}{{ ', '.join(messages | map(attribute='role') | unique) }}{% endif -%}{%- endfor -%}"
)


@pytest.mark.parametrize(("count", "length"), [(2, 10), (1000, 500), (20, 200_000)])
def test_a_long_chat_is_not(count, length):
    from transformers.utils.chat_template_utils import render_jinja_template

    calls = [{"name": "look", "arguments": {"deep": [{"er": [1, 2, {"and": "deeper"}]}] * 5}}]
    messages = [
        {
            "role": "user" if number % 2 else "assistant",
            "content": f" {number} " + "word " * (length // 5),
            "tool_calls": calls,
        }
        for number in range(count)
    ]
    started = time.thread_time()
    said = render(LONG_CHAT, messages)
    assert time.thread_time() - started < 5
    assert said == render_jinja_template([messages], chat_template=LONG_CHAT, add_generation_prompt=True)[0][0]


@pytest.mark.parametrize(
    "source",
    [
        "{% for a, b in {'x': 1, 'y': 2}.items() %}{{ loop.index }}{{ a }}{{ b }}{{ loop.length }}{% endfor %}",
        "{% for a in range(5) if a is odd %}{{ a }}{{ loop.last }}{% else %}none{% endfor %}",
        "{% for a in [] %}{% else %}none{% endfor %}{% for a in 'abc' %}{{ a }}{% endfor %}",
        "{% for a in [1, [2, [3]]] recursive %}{{ loop(a) if a is iterable else a }}{% endfor %}",
        "{% for a in (1, 2, 3) | reverse %}{% for b in range(a) %}{{ b }}{% continue %}{% endfor %}{% endfor %}",
        "{% macro m(a, b=(1, 2)) %}{{ a }}{{ b[0] }}{{ varargs }}{% endmacro %}{{ m(1) }}{{ m(1, [3], 4) }}",
        "{% set a, b = 1, 2 %}{{ a ~ b ~ none ~ [1] }}{% set c %}{{ a }}|{% endset %}{{ c * 3 }}",
        "{{ '%s-%5.1f-%d' % ('a', 1.25, 3) }}{{ '{a:>5}{b!r}'.format(a=1, b='c') }}{{ '%s' | format(1) }}",
        "{{ [3, 1, 2] | sort | join(', ') }}{{ {'b': 1, 'a': 2} | dictsort }}{{ 'a b' | replace(' ', '_') | upper }}",
        "{{ 'x\ny' | indent(2) }}{{ [1, 2, 3] | batch(2) | list }}{{ 7 // 2 }}{{ 2 ** 10 }}{{ -7 % 3 }}",
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages[0] | tojson(indent=2) }}",
        "{{ missing }}{{ missing is defined }}{{ missing | default('d') }}{{ messages[5] is undefined }}",
        "{{ 'abc'.startswith('a') }}{{ 'a,b'.split(',') | last }}{{ ' a '.strip() }}{{ 'abc'[::-1] }}",
    ],
)
def test_what_stays_within_bounds_is_as_in_transformers(source):
    from transformers.utils.chat_template_utils import render_jinja_template

    assert render(source) == render_jinja_template([MESSAGES], chat_template=source, add_generation_prompt=True)[0][0]


def test_each_rendering_has_a_budget_of_its_own_in_every_thread():
    template = ChatTemplate(
        "{% for a in range(60000) %}{% endfor %}{{ messages[0].content }}", bos_token="", eos_token=""
    )
    said = []
    threads = [Thread(target=lambda: said.extend(template.render(MESSAGES) for _ in range(12))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == ["x"] * 36
