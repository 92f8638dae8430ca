"""The benchmark's figures against values worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from fakes import VOCAB, FakeDrafter, FakeTarget, continuation
from tiny import BLOCK, CONTEXT, DIM, KV, write_bundle
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dflash_compile.cli.bench import suite as suites
from dflash_compile.cli.bench.answers import WARM_UP_TOKENS, Answers, interleave, warm_up
from dflash_compile.cli.bench.cache import cache_record
from dflash_compile.cli.bench.context import context_record, make_prompt
from dflash_compile.cli.bench.memory import MemoryWatch
from dflash_compile.cli.bench.records import MemoryRecord, SpreadRecord
from dflash_compile.cli.bench.run import Run
from dflash_compile.cli.bench.spread import quartiles, spread
from dflash_compile.cli.bench.suite import Suite, open_suites, suite_names
from dflash_compile.cli.bench.suite_record import suite_record
from dflash_compile.cli.bench.variants import BASELINE, BLOCKS, DFLASH, SessionVariant, drafting_variants, widths
from dflash_compile.runtime.bundle.read import read_manifest
from dflash_compile.runtime.engines import Engines
from dflash_compile.runtime.errors import UsageError
from dflash_compile.runtime.session import Session
from dflash_compile.runtime.statistics import Statistics
from dflash_compile.runtime.text import Text

PROMPT = [3, 1, 4, 1]
NO_MEMORY = MemoryRecord(peak_rss_bytes=None, major_faults=None, swapped_bytes=None)


def fake_session(right) -> Session:
    """Fake engines; a block of 8."""
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate("abcdefghijk")}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    manifest = SimpleNamespace(pairing=SimpleNamespace(block=8), text=SimpleNamespace(eos_ids=[]))
    return Session(manifest, Engines(FakeTarget(), FakeDrafter(right)), Text(tokenizer, None, VOCAB))


def measured(right, most=17):
    """The record of one prompt on fake engines, and the answers."""
    session = fake_session(right)
    answers = interleave(
        {**drafting_variants(session), BASELINE: SessionVariant(session, draft=False)}, PROMPT, most, 2
    )
    return suite_record("one", [answers], 10, NO_MEMORY), answers


@pytest.mark.parametrize(
    ("right", "tau", "acceptance"),
    [
        (lambda position: True, 8, [1.0] * 7),
        (lambda position: False, 1, [0.0] * 7),
        # The anchor stands at 4: 5 6 7 are right and 8 is not, so every cycle gives four tokens.
        (lambda position: position % 4 != 0, 4, [1, 1, 1, 0, 0, 0, 0]),
        # Anchors 4, 6, 7, 12: accepted 1, 0, 4, 7 proposals; 2 + 1 + 5 + 8 tokens.
        (lambda position: position not in {6, 7, 12}, 4, [3 / 4, 1 / 2, 1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 4]),
    ],
)
def test_tau_and_acceptance_of_whole_blocks(right, tau, acceptance):
    record, answers = measured(right)
    assert (record.tau, record.acceptance, record.tokens, record.lossless) == (tau, acceptance, 17, True)
    assert list(answers.runs[BLOCKS][0].tokens) == continuation(PROMPT, 17)
    assert (record.longest, record.kv_bytes) == (21, 210)
    assert record.sides[BASELINE].role_ms_per_token.keys() <= {"decode", "host"}
    assert record.sides[BLOCKS].role_ms_per_token.keys() <= {"inject", "draft", "verify", "host"}


def test_an_answer_of_one_token_has_no_speed():
    record, _ = measured(lambda position: True, most=1)
    assert (
        record.tokens,
        record.tau,
        record.acceptance,
        record.speedup,
        record.answer_speedup,
        record.worst_speedup,
    ) == (1, 0, [], 0, None, None)


def made_up(
    decode,
    *,
    seconds=(),
    first=0.25,
    latency=None,
    prompt=(),
    cycles=4,
    drafted=4,
    tokens=(1, 2, 3, 4, 5),
    prompt_tokens=7,
) -> Run:
    """A run with the times of a test; `prompt` and `seconds` are of the two phases by role."""
    common = {
        "prompt_tokens": prompt_tokens,
        "offered_at": (drafted,),
        "accepted_at": (0,),
        "prefill_seconds": 0.2,
        "finish": None,
    }
    begun = Statistics(tokens=1, cycles=0, decode_seconds=0.0, seconds=dict(prompt), **common)
    total = {
        role: dict(prompt).get(role, 0.0) + dict(seconds).get(role, 0.0) for role in {*dict(prompt), *dict(seconds)}
    }
    ended = Statistics(tokens=len(tokens), cycles=cycles, decode_seconds=decode, seconds=total, **common)
    return Run(tokens, "text", first, latency if latency is not None else first + decode, begun, ended)


def test_speeds_are_of_median_times_and_spreads_of_single_answers():
    runs = {
        BLOCKS: tuple(made_up(seconds) for seconds in (2.0, 2.0, 2.0)),
        DFLASH: tuple(made_up(seconds, first=first) for seconds, first in ((1.0, 0.5), (0.5, 0.25), (4.0, 0.75))),
        BASELINE: tuple(made_up(seconds) for seconds in (2.0, 1.0, 2.0)),
    }
    record = suite_record("made up", [Answers(runs)], 3, NO_MEMORY)
    assert (record.tokens_per_second, record.baseline_tokens_per_second, record.speedup) == (4.0, 2.0, 2.0)
    assert record.answer_speedup == SpreadRecord(lower=1.25, median=2.0, upper=2.0)  # 2, 2, 0.5
    assert (record.ttft_ms, record.latency_ms) == (500, 1500)
    assert record.sides[DFLASH].ttft_ms == SpreadRecord(lower=375, median=500, upper=625)
    assert record.kv_bytes == 12 * 3


def test_the_worst_prompt_is_told_by_its_median_times():
    def answers(*drafted: float) -> Answers:
        runs = {
            BLOCKS: (made_up(2.0),) * 3,
            DFLASH: tuple(made_up(seconds) for seconds in drafted),
            BASELINE: tuple(made_up(2.0) for _ in drafted),
        }
        return Answers(runs)

    record = suite_record(
        "made up", [answers(1.0, 1.0, 1.0), answers(2.5, 2.0, 40.0), answers(1.6, 1.6, 1.6)], 3, NO_MEMORY
    )
    assert record.worst_speedup == 2.0 / 2.5


def test_roles_are_of_decoding_and_the_prompt_stands_apart():
    drafted = made_up(
        1.0,
        prompt={"prefill": 3.0, "inject": 0.5},
        seconds={"inject": 0.125, "draft": 0.25, "verify": 0.5},
        tokens=(1, 2, 3, 4, 5),
        cycles=2,
        drafted=2,
    )
    plain = made_up(2.0, prompt={"prefill": 3.0}, seconds={"decode": 1.0})
    record = suite_record(
        "roles", [Answers({BLOCKS: (drafted,), DFLASH: (drafted,), BASELINE: (plain,)})], 1, NO_MEMORY
    )
    assert record.sides[DFLASH].role_ms_per_token == {"inject": 31.25, "draft": 62.5, "verify": 125.0, "host": 31.25}
    assert record.sides[DFLASH].host_ms_per_cycle == 62.5
    assert {role: it.median for role, it in record.sides[DFLASH].prompt_ms.items()} == {"prefill": 3000, "inject": 500}
    assert record.sides[BASELINE].role_ms_per_token == {"decode": 250, "host": 250}


def test_tokens_that_were_looked_up_are_of_the_session_that_chooses():
    looked, other = made_up(1.0), made_up(1.0)
    looked = replace(looked, statistics=replace(looked.statistics, looked_up=3, looked_up_accepted=1))
    record = suite_record(
        "looked up", [Answers({BLOCKS: (other,), DFLASH: (looked,), BASELINE: (other,)})], 1, NO_MEMORY
    )
    assert record.looked_up == 1 / 4


def test_the_typical_run_is_the_one_in_the_middle():
    several = tuple(made_up(seconds) for seconds in (5.0, 1.0, 3.0, 4.0))
    assert Answers({DFLASH: several}).typical(DFLASH).decode_seconds == 3.0
    assert Answers({DFLASH: several[:3]}).typical(DFLASH).decode_seconds == 3.0


@pytest.mark.parametrize(
    ("values", "wanted"), [([4.0], (4, 4, 4)), ([1.0, 2.0], (1.25, 1.5, 1.75)), ([5.0, 1.0, 3.0, 2.0, 4.0], (2, 3, 4))]
)
def test_quartiles(values, wanted):
    lower, middle, upper = wanted
    assert quartiles(values) == spread(values) == SpreadRecord(lower=lower, median=middle, upper=upper)
    assert spread([]) is None


def test_tau_needed_follows_from_what_cycles_cost():
    # A cycle of the width 2: 10 of draft, 25 of verify, 5 of host, and 15 of inject in all but the first of 4 cycles.
    wide = made_up(0.205, seconds={"inject": 0.045, "draft": 0.04, "verify": 0.1}, cycles=4, drafted=4)
    record = context_record(
        32, [2], Answers({DFLASH: (wide,), "block 2": (wide,), BASELINE: (made_up(0.08, cycles=4, drafted=0),)}), 2
    )
    width = record.widths[0]
    assert width.role_ms == pytest.approx({"inject": 15, "draft": 10, "verify": 25, "host": 5})
    assert record.baseline_token_ms == pytest.approx(20)
    assert {it.speedup: it.tau for it in width.needed} == pytest.approx({1.0: 2.75, 1.2: 3.3, 1.5: 4.125, 1.9: 5.225})
    assert (record.prompt_tokens, record.kv_bytes, record.speedup) == (7, 24, pytest.approx(0.08 / 0.205))


def test_sides_take_turns_forth_and_back_after_a_warm_up_of_all():
    calls = []
    sides = {
        name: SimpleNamespace(run=lambda prompt, most, name=name: calls.append((name, prompt, most)) or made_up(1.0))
        for name in "abc"
    }
    warm_up(sides, "p")
    ticks = []
    answers = interleave(sides, "p", 9, 3, lambda: ticks.append(len(calls)))
    assert calls[:3] == [(name, "p", WARM_UP_TOKENS) for name in "abc"]
    assert [name for name, _, most in calls[3:] if most == 9] == list("abccbaabc")
    assert ticks == list(range(3, 12))
    assert {name: len(runs) for name, runs in answers.runs.items()} == {"a": 3, "b": 3, "c": 3}


@pytest.mark.parametrize(("block", "wanted"), [(2, [2]), (4, [2, 4]), (6, [2, 4, 6]), (16, [2, 4, 8, 16])])
def test_widths(block, wanted):
    assert list(widths(block)) == wanted


@pytest.mark.parametrize("length", [16, 17, 64, 500])
def test_a_prompt_of_a_length_keeps_both_ends_of_the_template(length):
    def encode(text):
        return [1000, 1001, *text.encode(), 2000, 2001]

    ids = make_prompt(encode, ["one", "another"], length)
    assert len(ids) == length
    assert (ids[:2], ids[-2:]) == ([1000, 1001], [2000, 2001])


def test_cache_sizes_come_from_the_ports(tmp_path):
    cache = cache_record(read_manifest(write_bundle(tmp_path / "bundle")))
    one = 2 * KV * CONTEXT * DIM * 4  # keys and values, float32
    assert (cache.target_bytes, cache.drafter_bytes, cache.bytes_per_token) == (one, one, 2 * one // CONTEXT)
    assert BLOCK < CONTEXT


def test_memory_sees_what_was_held_meanwhile():
    watch = MemoryWatch()
    before = watch.record().peak_rss_bytes
    if before is None:
        pytest.skip("this system does not tell")
    held = bytearray(b"x") * (64 << 20)
    after = watch.record().peak_rss_bytes
    assert len(held) == 64 << 20
    assert after - before > 32 << 20


def test_suites_are_files_of_lines_or_folders_of_files(tmp_path, monkeypatch):
    (tmp_path / "lines.txt").write_text("one\n\n two \nthree\n", encoding="utf-8")
    (tmp_path / "texts").mkdir()
    for name, text in (("b.txt", "second\nof two lines\n"), ("a.txt", "first"), ("notes.md", "no prompt")):
        (tmp_path / "texts" / name).write_text(text, encoding="utf-8")
    lines, texts = Suite("lines", ("one", "two", "three")), Suite("texts", ("first", "second\nof two lines\n"))
    assert open_suites([str(tmp_path / "lines.txt"), str(tmp_path / "texts")]) == [lines, texts]
    monkeypatch.setattr(suites, "SUITES", tmp_path)
    assert suite_names() == ["lines", "texts"]
    assert open_suites(["texts", "all"]) == [texts, lines]
    assert open_suites(["lines"], most=2) == [Suite("lines", ("one", "two"))]
    with pytest.raises(UsageError, match="unknown suite"):
        open_suites(["line"])


def test_every_suite_that_ships_can_be_opened():
    assert {"chat", "code", "reasoning", "tools"} <= set(suite_names())
    assert all(len(suite.prompts) >= 5 for suite in open_suites(["all"]))
