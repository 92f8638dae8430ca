"""Requests on a session: pieces, callbacks, ends, early leave, one at a time."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from fakes import VOCAB, FakeDrafter, FakeTarget, continuation
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import edit_manifest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dflash_compile.runtime import load
from dflash_compile.runtime.engines import Engines
from dflash_compile.runtime.errors import LengthError, UsageError
from dflash_compile.runtime.session import Session
from dflash_compile.runtime.text import Text

LETTERS = "abcdefghijk"
PROMPT = [3, 1, 4]


def fake_session(right=lambda position: position % 3 != 0, eos=()):
    """A session over fake engines whose token i reads as the i-th letter."""
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(LETTERS)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    manifest = SimpleNamespace(pairing=SimpleNamespace(block=8), text=SimpleNamespace(eos_ids=list(eos)))
    return Session(manifest, Engines(FakeTarget(), FakeDrafter(right)), Text(tokenizer, None, VOCAB))


def spelled(tokens):
    return "".join(LETTERS[token] for token in tokens)


ANSWER = continuation(PROMPT, 60)


@settings(deadline=None)
@given(
    most=st.integers(1, 50), draft=st.booleans(), stop_at=st.none() | st.tuples(st.integers(0, 40), st.integers(1, 3))
)
def test_pieces_ids_and_statistics_agree(most, draft, stop_at):
    session, ids = fake_session(), []
    stop = spelled(ANSWER[stop_at[0] : sum(stop_at)]) if stop_at else ()
    text = "".join(session.generate(PROMPT, max_new_tokens=most, draft=draft, stop=stop, on_token=ids.append))

    whole = spelled(ANSWER[:most])
    stopped = bool(stop) and stop in whole
    assert text == (whole[: whole.index(stop)] if stopped else whole)
    assert session.statistics.finish == ("stop" if stopped else "max_new_tokens")
    # Ids are handed out up to the one that completes the stop string, and no further.
    assert ids == ANSWER[: whole.index(stop) + len(stop) if stopped else most]
    assert session.statistics.tokens == len(ids)


def test_end_of_sequence_is_an_id_but_not_text():
    session = fake_session(eos=[ANSWER[5]])
    first = ANSWER.index(ANSWER[5])
    assert list(session.tokens(PROMPT)) == ANSWER[: first + 1]
    assert session.statistics.finish == "eos"
    assert "".join(session.generate(PROMPT)) == spelled(ANSWER[:first])
    assert session.statistics.tokens == first + 1


def test_held_back_text_is_shown_where_the_answer_ends():
    session = fake_session()
    assert "".join(session.generate(PROMPT, max_new_tokens=4, stop=spelled(ANSWER[3:6]))) == spelled(ANSWER[:4])


def test_leaving_early_leaves_the_session_usable():
    session = fake_session()
    pieces = session.generate(PROMPT, max_new_tokens=30)
    next(pieces)
    next(pieces)
    pieces.close()
    assert session.statistics.finish is None
    assert session.statistics.tokens == 2
    for _ in session.generate(PROMPT):
        break
    assert list(session.tokens(PROMPT, max_new_tokens=10)) == ANSWER[:10]


def test_a_callback_that_fails_leaves_the_session_usable():
    session = fake_session()

    def fail(token):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        list(session.generate(PROMPT, on_token=fail))
    assert list(session.tokens(PROMPT, max_new_tokens=3)) == ANSWER[:3]


def test_one_request_at_a_time():
    session = fake_session()
    first = session.generate(PROMPT, max_new_tokens=20)
    second = session.tokens(PROMPT, max_new_tokens=5)
    shown = next(first)
    with pytest.raises(UsageError, match="already generating"):
        next(second)
    assert shown + "".join(first) == spelled(ANSWER[:20]), "the refused request disturbed the running one"
    assert list(session.tokens(PROMPT, max_new_tokens=5)) == ANSWER[:5]


def test_a_request_never_started_blocks_nothing():
    session = fake_session()
    idle = session.generate(PROMPT)
    assert list(session.tokens(PROMPT, max_new_tokens=5)) == ANSWER[:5]
    idle.close()


@pytest.mark.parametrize(
    "wrong", [{"max_new_tokens": 0}, {"block": 1}, {"block": 9}, {"prompt": []}, {"prompt": [VOCAB]}, {"stop": ""}]
)
def test_bad_requests_fail_at_once(wrong):
    session = fake_session()
    with pytest.raises(UsageError):
        session.generate(**{"prompt": PROMPT, **wrong})
    with pytest.raises(UsageError, match="no request"):
        _ = session.statistics


def test_a_prompt_too_long_fails_at_once():
    with pytest.raises(LengthError, match="65 tokens"):
        fake_session().generate([1] * 65)


@pytest.mark.parametrize("block", range(2, 9))
def test_narrower_blocks_give_the_same(block):
    session = fake_session()
    assert list(session.tokens(PROMPT, block=block)) == continuation(PROMPT, 61)
    assert session.statistics.finish == "length"
    assert session.statistics.tau <= block


def test_closed(tiny_bundle):
    with load(tiny_bundle) as session:
        assert "".join(session.generate("hi", max_new_tokens=3))
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.generate("hi")
    assert session.statistics.tokens == 3


def test_ids_of_a_prompt_are_those_of_its_answer(tiny_bundle):
    with load(tiny_bundle) as session:
        ids = session.encode("hi")
        assert bytes(ids) == b"user: hi\nassistant:"
        assert session.encode("hi", raw=True) == session.encode([*b"hi"]) == [*b"hi"]
        assert list(session.tokens(ids, max_new_tokens=5)) == list(session.tokens("hi", max_new_tokens=5))
        assert session.engines.target.context == session.manifest.context
    with pytest.raises(UsageError, match="closed"):
        _ = session.engines


def test_closed_in_the_middle_of_an_answer(tiny_bundle):
    session = load(tiny_bundle)
    answer = session.tokens("hi", max_new_tokens=20)
    next(answer)
    session.close()
    with pytest.raises(UsageError, match="closed"):
        list(answer)


def test_a_foreign_template_is_noted(tiny_bundle):
    assert load(tiny_bundle).notes == ()
    edit_manifest(tiny_bundle, lambda document: document["pairing"].__setitem__("template_sha256", "0" * 64))
    assert "another chat template" in load(tiny_bundle).notes[0]


def test_runtime_imports_no_build_tools(tiny_bundle):
    script = f"""
import pkgutil, sys
import dflash_compile.runtime as runtime
assert not {{"onnxruntime", "numpy", "tokenizers", "jinja2"}} & sys.modules.keys(), "importing must stay instant"
for module in pkgutil.walk_packages(runtime.__path__, runtime.__name__ + "."):
    __import__(module.name)
assert "onnxruntime" not in sys.modules, "a back-end's library is imported when a bundle needs it"
assert "".join(runtime.load({str(tiny_bundle)!r}).generate("hi", max_new_tokens=5))
banned = ["torch", "transformers", "onnx", *("dflash_compile." + n for n in ("export", "compile", "train", "cli"))]
found = [name for name in sys.modules if any(name == ban or name.startswith(ban + ".") for ban in banned)]
assert not found, found
"""
    subprocess.run([sys.executable, "-c", script], check=True)
