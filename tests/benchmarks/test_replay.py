"""The replay on a bundle of a few kilobytes: what it decodes again is what the session did, and its clock counts
nothing but the prices.
"""

from __future__ import annotations

import json

import msgspec
import pytest
import replay
from replayed.answer import Recording, read, record, save
from replayed.decode import PLAIN, Way, decode
from tiny import BLOCK, EXACT, write_bundle

from dflash_compile.cli.bench.suite import Suite
from dflash_compile.runtime import load
from dflash_compile.runtime.policy.controller import FixedWidth

PROMPTS = ("abcabcab", "a word", "fedcba fedcba")
TOKENS = 24


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("replay") / "bundle")


@pytest.fixture(scope="module")
def recording(bundle) -> Recording:
    with load(bundle, threads=1) as session:
        return record(session, [Suite("tiny", PROMPTS)], TOKENS, rounds=2)


def test_it_records_what_the_session_does(bundle, recording):
    with load(bundle, threads=1) as session:
        for prompt, answer in zip(PROMPTS, recording.answers, strict=True):
            assert list(session.tokens(prompt, max_new_tokens=TOKENS)) == answer.tokens[: answer.length]
            for width in range(2, BLOCK + 1):
                list(session.tokens(prompt, max_new_tokens=TOKENS, block=width))
                again = decode(recording, answer, Way(drafter=True), FixedWidth(width))
                # Near the end of the cache a block may be narrower; the replay's ends with the answer.
                assert sum(again.cycles.values()) == session.statistics.cycles, "the drafter proposed something else"


def test_it_records_what_the_drafter_says_of_its_proposals(bundle, recording):
    answer = recording.answers[0]
    assert [[len(said) for said in place] for place in answer.chances] == [list(range(1, BLOCK))] * len(
        answer.proposals
    )
    with load(bundle, threads=1) as session:
        list(session.tokens(PROMPTS[0], max_new_tokens=1))
        drafter = session.engines.drafter
        drafter.draft(answer.tokens[0], len(answer.prompt), BLOCK)
        assert [drafter.confidence(slot) for slot in range(BLOCK - 1)] == pytest.approx(answer.chances[0][-1])


def told(recording, said, way):
    """Seconds of all answers with a drafter that costs nothing and gives every proposal the chance `said`."""
    prices = msgspec.structs.replace(
        recording.prices,
        draft=dict.fromkeys(recording.prices.draft, 0.0),
        inject=dict.fromkeys(recording.prices.inject, 0.0),
    )
    free = msgspec.structs.replace(recording, prices=prices)
    answers = [
        msgspec.structs.replace(it, chances=[[[said] * len(row) for row in place] for place in it.chances])
        for it in recording.answers
    ]
    return [decode(free, it, way, way.controller(free)).seconds for it in answers]


def test_what_the_drafter_says_decides_how_much_of_a_block_is_verified(recording):
    assert told(recording, 0.0, Way(drafter=True)) != told(recording, 1.0, Way(drafter=True))


def test_a_silent_drafter_is_another_way(recording):
    silent = Way(drafter=True, chances=False)
    assert told(recording, 0.0, silent) == told(recording, 1.0, silent)
    assert told(recording, 1.0, silent) != told(recording, 1.0, Way(drafter=True))


def test_it_tells_how_sure_the_drafter_was_and_how_often_it_was_right(recording):
    sure = replay.confidence(recording)
    places = sum(len(answer.proposals) for answer in recording.answers)
    assert sum(row["proposals"] for row in sure if row["slot"] == 0) == places
    reached = [sum(row["proposals"] for row in sure if row["slot"] == slot) for slot in range(BLOCK - 1)]
    stood = [sum(row["proposals"] * row["stood"] for row in sure if row["slot"] == slot) for slot in range(BLOCK - 1)]
    assert stood[:-1] == pytest.approx(reached[1:], abs=0.1)
    assert all(0 <= row["said"] <= 1 for row in sure)


def test_time_is_made_of_prices(recording):
    step, host = recording.prices.verify[EXACT], recording.prices.hosted(False, False)
    for answer in recording.answers:
        plain = decode(recording, answer, PLAIN, PLAIN.controller(recording))
        assert plain.cycles == {"plain": answer.length - 1}
        assert plain.seconds == pytest.approx((answer.length - 1) * (step + host))
        whole = decode(recording, answer, Way(drafter=True), FixedWidth(BLOCK))
        cycles = whole.cycles[f"draft {BLOCK}"]
        least = recording.prices.verify[BLOCK] + recording.prices.draft[BLOCK] + recording.prices.hosted(True, False)
        assert (
            cycles * least
            < whole.seconds
            < cycles * (least + recording.prices.injected(BLOCK) + recording.prices.inject[1])
        )
        assert whole.saved[f"draft {BLOCK}"] < 0 or cycles < answer.length - 1


def test_a_saved_recording_gives_the_same_and_needs_no_bundle(recording, tmp_path, capsys):
    file = tmp_path / "recording.json"
    save(recording, file)
    assert read(file) == recording
    told = []
    for _ in range(2):
        assert replay.main([str(tmp_path / "no bundle"), "--recording", str(file), "--worst", "2", "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]
    assert {(row["way"], row["session"], row["suite"]) for row in told[0]["rows"]} == {
        (way, side, "tiny") for way in replay.WAYS for side in ("one", "each")
    }
    assert [it["session"] for it in told[0]["worst"]] == ["one", "one", "each", "each"]
    assert all(row["worst"] <= row["quartiles"][0] <= row["quartiles"][2] for row in told[0]["rows"])


def test_it_records_a_bundle_once(bundle, tmp_path, capsys):
    prompts, file = tmp_path / "mine.txt", tmp_path / "recording.json"
    prompts.write_text("abc\n", encoding="utf-8")
    words = [
        str(bundle),
        "--suite",
        str(prompts),
        "--max-new-tokens",
        "8",
        "--rounds",
        "2",
        "--recording",
        str(file),
        "--json",
    ]
    assert replay.main(words) == 0
    before, kept = capsys.readouterr().out, file.read_bytes()
    assert replay.main(words) == 0
    assert (capsys.readouterr().out, file.read_bytes()) == (before, kept)


@pytest.mark.parametrize("rubbish", [b"rubbish", b"{}", b"[1, 2]", b'{"block": 4', b"\x80\x81"])
def test_a_file_that_is_no_recording_is_named_and_kept(rubbish, tmp_path, capsys):
    file = tmp_path / "recording.json"
    file.write_bytes(rubbish)
    assert replay.main([str(tmp_path), "--recording", str(file)]) == 2
    assert str(file) in capsys.readouterr().err
    assert file.read_bytes() == rubbish


def test_a_bundle_that_is_not_there_is_an_error_and_no_traceback(tmp_path, capsys):
    assert replay.main([str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        replay.main([str(tmp_path), "--rounds", "1"])
