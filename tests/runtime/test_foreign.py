"""What libraries raise, panics of Rust included, reaches nobody as it is."""

from __future__ import annotations

import base64
import json

import pytest
from tiny import VOCAB, make_tokenizer, write_manifest
from tokenizers import Tokenizer

from dflash_compile.runtime import load
from dflash_compile.runtime.bundle.read import open_bundle, read_manifest
from dflash_compile.runtime.chat import ChatTemplate
from dflash_compile.runtime.errors import BundleError, UsageError
from dflash_compile.runtime.foreign import foreign_errors
from dflash_compile.runtime.text import Text, open_text

MESSAGES = [{"role": "user", "content": "x"}]


def tokenizer_file(**parts):
    return json.dumps(json.loads(make_tokenizer().to_str()) | parts)


def test_a_panic_at_load(tiny_bundle):
    broken = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\0\0\0").decode()}
    (tiny_bundle / "tokenizer/tokenizer.json").write_text(tokenizer_file(normalizer=broken))
    write_manifest(tiny_bundle, read_manifest(tiny_bundle))
    with pytest.raises(BundleError, match="tokenizer cannot be read"):
        open_text(open_bundle(tiny_bundle))


@pytest.mark.parametrize(
    "parts",
    [
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        {"normalizer": {"type": "Prepend", "prepend": ""}},
        {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}},
        {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "<unk>"}},
    ],
    ids=lambda parts: json.dumps(parts)[:60],
)
def test_a_fault_of_the_tokenizer_at_encoding(parts):
    text = Text(Tokenizer.from_str(tokenizer_file(**parts)), None, VOCAB)
    with pytest.raises(BundleError, match="cannot take this text"):
        text.encode("some text, é", raw=True)


@pytest.mark.parametrize("start", [0, 9])
def test_a_fault_of_the_tokenizer_at_decoding(start):
    parts = {"decoder": {"type": "Strip", "content": "a", "start": start, "stop": 9}}
    stream = Text(Tokenizer.from_str(tokenizer_file(**parts)), None, VOCAB).stream()
    with pytest.raises(BundleError, match="cannot write the token 97"):
        stream.feed(97)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ range(10**9) }}",
        "{{ {}['a']['b'] }}",
        "{{ [].pop() }}",
        "{{ messages[0].content.encode('no such thing') }}",
        "{{ strftime_now(5) }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ '%d' % 'x' }}",
        "{{ '{'.format(1) }}",
        "{{ messages | map('nothing') | list }}",
    ],
)
def test_a_template_that_fails_at_use(source):
    with pytest.raises(UsageError, match="refuses these messages"):
        ChatTemplate(source, bos_token=None, eos_token=None).render(MESSAGES)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in b %}" * 21 + "{% endfor %}" * 21,
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "-" * 5000 + "1 }}",
        "{% if a %}" * 150 + "{% endif %}" * 150,
        "{% unheard %}",
    ],
    ids=["loops", "brackets", "signs", "conditions", "tag"],
)
def test_a_template_that_does_not_compile(source):
    with pytest.raises(BundleError, match="template cannot be read"):
        ChatTemplate(source, bos_token=None, eos_token=None).render(MESSAGES)


@pytest.mark.parametrize("variables", [5, [1], "ab"])
def test_variables_are_a_mapping(variables):
    text = Text(make_tokenizer(), ChatTemplate("", bos_token=None, eos_token=None), VOCAB)
    with pytest.raises(UsageError, match="chat_template_kwargs"):
        text.encode("x", raw=False, variables=variables)


def test_a_template_that_is_no_utf8(tiny_bundle):
    (tiny_bundle / "tokenizer/chat_template.jinja").write_bytes(b"\xff\xfe")
    write_manifest(tiny_bundle, read_manifest(tiny_bundle))
    with pytest.raises(BundleError, match="template cannot be read"):
        load(tiny_bundle)


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_the_program_is_no_fault(end):
    with pytest.raises(end), foreign_errors(BundleError, "nothing"):
        raise end
