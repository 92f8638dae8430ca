"""Text to ids and back: templates, whole characters, stop strings."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import EOS, VOCAB, edit_manifest, make_tokenizer, write_manifest
from tokenizers import processors

from dflash_compile.runtime import load
from dflash_compile.runtime.bundle.manifest import ThinkingRecord
from dflash_compile.runtime.bundle.read import open_bundle, read_manifest
from dflash_compile.runtime.chat import ChatTemplate
from dflash_compile.runtime.errors import BundleError, UsageError
from dflash_compile.runtime.stops import StopFilter
from dflash_compile.runtime.text import Text, open_text

TOKENIZER = make_tokenizer()
PLAIN = Text(TOKENIZER, None, VOCAB)


def template(source, **tokens):
    return ChatTemplate(source, **{"bos_token": None, "eos_token": None, **tokens})


@given(st.text())
def test_streamed_text_is_the_text(text):
    stream = PLAIN.stream()
    pieces = [stream.feed(token) for token in TOKENIZER.encode(text).ids]
    assert "".join(pieces) == text


@given(st.lists(st.sampled_from(["a", "é", "€", "😀", "👩‍👩‍👧", "e\u0301"]), min_size=1))
def test_no_piece_holds_half_a_character(letters):
    text = "".join(letters)
    stream = PLAIN.stream()
    shown = ""
    for token in text.encode():
        piece = stream.feed(token)
        assert "\ufffd" not in piece
        shown += piece
        assert text.startswith(shown)
    assert shown == text


@given(st.text(), st.integers(1, 3))
def test_an_answer_cut_inside_a_character_ends_before_it(text, cut):
    whole = text.replace("\ufffd", "") + "😀"
    stream = PLAIN.stream()
    assert "".join(stream.feed(token) for token in whole.encode()[:-cut]) == whole[:-1]


@given(st.lists(st.integers(0, 255), max_size=30))
def test_any_bytes_can_be_streamed(tokens):
    stream = PLAIN.stream()
    shown = "".join(stream.feed(token) for token in tokens)
    whole = TOKENIZER.decode(tokens)
    assert whole.startswith(shown)
    assert set(whole[len(shown) :]) <= {"\ufffd"}


def test_special_tokens_are_not_shown():
    stream = PLAIN.stream()
    assert "".join(stream.feed(token) for token in [*b"ab", EOS, *b"c"]) == "abc"


@given(
    text=st.text(alphabet="abc", max_size=30),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 30)),
)
def test_stops_do_not_depend_on_the_pieces(text, stops, cuts):
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    expected = text[: min(ends)[1]] if ends else text

    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    stopper, shown = StopFilter(stops), ""
    for start, end in pairwise(edges):
        shown += stopper.feed(text[start:end])
        assert expected.startswith(shown), "something was shown that had to be taken back"
        if stopper.stopped:
            break
    assert stopper.stopped == bool(ends)
    assert shown + stopper.flush() == expected


def test_text_that_cannot_become_a_stop_is_shown_at_once():
    stopper = StopFilter(["END"])
    assert [stopper.feed(piece) for piece in ("a", "E", "N", "x", "EN", "D", "E")][:6] == ["a", "", "", "ENx", "", ""]
    assert stopper.stopped


def test_the_stop_completed_first_ends_the_text():
    assert StopFilter(["abcd", "bc"]).feed("abcd") == "a"
    assert StopFilter(["bc", "abc"]).feed("abcd") == ""


def test_an_empty_stop_is_refused():
    with pytest.raises(UsageError):
        StopFilter(["a", ""])


def test_prompts(tiny_bundle):
    text = open_text(open_bundle(tiny_bundle))
    assert bytes(text.encode("hi", raw=False)) == b"user: hi\nassistant:"
    assert bytes(text.encode("hi", raw=True)) == b"hi"
    assert (
        bytes(text.encode([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], raw=False))
        == b"system: s\nuser: u\nassistant:"
    )
    assert text.encode([5, 6], raw=False) == [5, 6]
    assert text.encode("", raw=True) == text.encode([], raw=False) == []
    # Whatever a user types, special tokens in it are what the tokenizer makes of them; the template's own ones must be.
    assert EOS in text.encode("<eos>", raw=True)


def test_only_raw_text_gets_the_tokenizers_own_special_tokens():
    tokenizer = make_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", EOS)])
    text = Text(tokenizer, template("{{ messages[0].content }}"), VOCAB)
    assert text.encode("a", raw=True) == [EOS, *b"a"]
    assert text.encode("a", raw=False) == list(b"a")


@pytest.mark.parametrize("prompt", [[VOCAB], [-1], [1, {"role": "user", "content": "x"}]])
def test_bad_ids(prompt):
    with pytest.raises(UsageError, match="ids"):
        PLAIN.encode(prompt, raw=True)


@pytest.mark.parametrize(
    "prompt",
    [None, 5, b"ab", {"role": "user", "content": "x"}, ["a", "b"], [1.0], [{"role": "user", "content": "x"}, "b"]],
    ids=repr,
)
def test_what_is_no_prompt_is_said_to_be_none(prompt):
    with pytest.raises(UsageError, match="prompt"):
        Text(TOKENIZER, template("{{ messages[0].content }}"), VOCAB).encode(prompt, raw=False)


def test_arrays_of_ids_are_ids():
    chatty = Text(TOKENIZER, template("{{ messages | length }}"), VOCAB)
    for ids in (np.array([5, 6]), [np.int64(5), np.int32(6)], iter([5, 6])):
        assert chatty.encode(ids, raw=False) == [5, 6]


@pytest.mark.parametrize("raw", [True, False])
def test_bytes_that_were_no_utf8_are_refused(raw):
    with pytest.raises(UsageError, match="Unicode"):
        Text(TOKENIZER, template("{{ messages[0].content }}"), VOCAB).encode(
            b"a\xff".decode(errors="surrogateescape"), raw=raw
        )


@pytest.mark.parametrize("stop", [None, 5, b"a", ["a", 5]], ids=repr)
def test_stop_strings_are_strings(tiny_bundle, stop):
    with load(tiny_bundle) as session, pytest.raises(UsageError, match="stop"):
        session.generate([1], stop=stop)


def test_messages_need_a_template():
    with pytest.raises(UsageError, match="no chat template"):
        PLAIN.encode([{"role": "user", "content": "x"}], raw=False)
    with pytest.raises(UsageError, match="messages"):
        PLAIN.encode([{"role": "user", "content": "x"}], raw=True)
    assert bytes(PLAIN.encode("hi", raw=False)) == b"hi"


def test_template_globals():
    source = (
        "{{ bos_token }}{{ messages[0].content | tojson }}{{ strftime_now('%Y') | length }}{% for m in messages %}{%"
        " break %}{% endfor %}"
    )
    assert template(source, bos_token="<s>").render([{"role": "user", "content": "<é>"}]) == '<s>"<é>"4'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% if tools is not none %}tools{% endif %}{% if documents is not none %}documents{% endif %}", ""),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=True, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}z", "axz"),
    ],
)
def test_templates_render_as_in_transformers(source, expected):
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": "user", "content": "x"}]
    assert (
        template(source).render(messages) == expected == render_jinja_template([messages], chat_template=source)[0][0]
    )


def test_template_that_refuses():
    with pytest.raises(UsageError, match="refuses") as caught:
        template("{{ raise_exception('roles must alternate') }}").render([])
    assert "roles must alternate" in caught.value.why
    with pytest.raises(BundleError, match="template"):
        template("{% if %}").render([])


def test_a_bundle_with_a_broken_template_still_takes_raw_prompts(tiny_bundle):
    (tiny_bundle / "tokenizer/chat_template.jinja").write_text("{% if %}")
    write_manifest(tiny_bundle, read_manifest(tiny_bundle))
    text = open_text(open_bundle(tiny_bundle))
    assert bytes(text.encode("hi", raw=True)) == b"hi"
    with pytest.raises(BundleError, match="template"):
        text.encode("hi", raw=False)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.keys() }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_template_cannot_leave_the_sandbox(source):
    with pytest.raises(UsageError):
        template(source).render([{"role": "user", "content": "x"}])


def test_a_tokenizer_of_another_model(tiny_bundle):
    def shrink(document):
        document["target"]["vocab"], document["pairing"]["mask_id"] = 257, 256
        for model in ("target", "drafter"):
            for port in (
                port for graph in document[model]["graphs"] for port in graph["outputs"] if port["name"] == "logits"
            ):
                port["shape"][-1] = 257

    edit_manifest(tiny_bundle, shrink)
    with pytest.raises(BundleError, match="vocabulary is 257"):
        open_text(open_bundle(tiny_bundle))


def test_a_tokenizer_saved_with_truncation_and_padding_does_neither(tiny_bundle):
    manifest = open_bundle(tiny_bundle).manifest
    tokenizer = make_tokenizer()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tiny_bundle / "tokenizer/tokenizer.json"))
    write_manifest(tiny_bundle, manifest)
    assert open_text(open_bundle(tiny_bundle)).encode("abcdef", raw=True) == list(b"abcdef")


def test_a_broken_tokenizer(tiny_bundle):
    manifest = open_bundle(tiny_bundle).manifest
    (tiny_bundle / "tokenizer/tokenizer.json").write_text("{}")
    write_manifest(tiny_bundle, manifest)
    with pytest.raises(BundleError, match="tokenizer cannot be read"):
        open_text(open_bundle(tiny_bundle))


THINKING = (
    "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}!{% endif %}{% if tools %}{{"
    " tools | length }}{% endif %}"
)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (None, "hi"),
        ({}, "hi"),
        ({"enable_thinking": True}, "hi"),
        ({"enable_thinking": False}, "hi!"),
        ({"tools": [{}, {}]}, "hi2"),
    ],
)
def test_a_template_reads_what_it_is_given(variables, said):
    text = Text(TOKENIZER, template(THINKING), VOCAB)
    assert text.encode("hi", raw=False, variables=variables) == list(said.encode())
    assert text.encode([{"role": "user", "content": "hi"}], raw=False, variables=variables) == list(said.encode())


@pytest.mark.parametrize("prompt", ["hi", list(b"hi")])
def test_variables_that_nobody_reads_are_refused(prompt):
    text = Text(TOKENIZER, template(THINKING), VOCAB)
    with pytest.raises(UsageError, match="without a chat"):
        text.encode(prompt, raw=True, variables={"enable_thinking": False})
    with pytest.raises(UsageError, match="without a chat"):
        PLAIN.encode(prompt, raw=False, variables={"enable_thinking": False})


def test_variables_do_not_replace_the_sessions_own():
    with pytest.raises(UsageError, match="add_generation_prompt, messages"):
        template(THINKING).render([], {"messages": [], "add_generation_prompt": False})


SWITCH = ThinkingRecord(variable="enable_thinking", default=True, drafter=False)


@pytest.mark.parametrize(
    ("record", "variables", "noted"),
    [
        (SWITCH, None, True),
        (SWITCH, {"tools": [{}]}, True),
        (SWITCH, {"enable_thinking": True}, True),
        (SWITCH, {"enable_thinking": False}, False),
        (msgspec.structs.replace(SWITCH, drafter=True), None, False),
        (msgspec.structs.replace(SWITCH, drafter=True), {"enable_thinking": False}, True),
        (msgspec.structs.replace(SWITCH, default=None), None, False),
        (msgspec.structs.replace(SWITCH, drafter=None), {"enable_thinking": False}, False),
        (None, {"enable_thinking": False}, False),
    ],
)
def test_a_chat_in_the_other_mode_than_the_drafters_is_noted(record, variables, noted):
    text = Text(TOKENIZER, template(THINKING), VOCAB, record)
    text.encode("hi", raw=True)
    text.encode(list(b"hi"), raw=False)
    assert text.note is None, "no template, no mode"
    text.encode("hi", raw=False, variables=variables)
    assert bool(text.note) == noted
    if text.note is not None:
        assert f"trained {'with' if record.drafter else 'without'} thinking" in text.note
        assert f'{{"enable_thinking": {str(record.drafter).lower()}}}' in text.note


def test_a_mode_is_noted_once():
    text = Text(TOKENIZER, template(THINKING), VOCAB, SWITCH)
    text.encode("hi", raw=False)
    first = text.note
    text.encode("hi", raw=False, variables={"enable_thinking": True})
    text.encode("hi", raw=False, variables={"enable_thinking": False})
    assert text.note == first
