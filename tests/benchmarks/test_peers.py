"""The comparison with other engines: the script itself on a tiny bundle and engines made up for it, and its figures
worked out by hand.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from peer.conversion import gguf_form, made_once, work_folder
from peer.figures import OVERALL, figures, leading
from peer.finding import engine_files, read_class
from peer.process import Answer, LeftOutError
from peer.rounds import Question, Turn, interleave, plan, rotated
from peer.table import tables
from tiny import write_bundle

from dflash_compile.runtime import load

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "peers.py"
ENGINES = Path(__file__).parent / "engines"
PROMPTS = ("abc", "fade")
TOKENS = 12


def turn(engine, question, count, tokens, seconds, **own):
    suite = QUESTIONS[question].suite
    return Turn(
        engine,
        suite,
        question,
        count,
        Answer(tuple(tokens), first_seconds=0.25, decode_seconds=seconds, cpu_seconds=2 * seconds, own=own),
    )


# Two answers of 4 and 3 tokens: 3 and 2 are decoded.
QUESTIONS = [Question("code", (1,), (5, 6, 7, 8)), Question("chat", (2,), (9, 9, 9))]
SAME, OTHER = [(5, 6, 7, 8), (9, 9, 9)], [(5, 6, 0, 8), (9, 9, 9)]
TURNS = [
    turn(engine, question, count, answers[question], seconds[count][question], **own)
    for engine, answers, seconds, own in (
        ("b plain", SAME, [(3, 1), (3, 1), (6, 4)], {"cycles": 2, "drafted": 0, "undrafted_tokens": 2}),
        ("b DFlash", SAME, [(1, 1), (1.5, 1), (2, 2)], {"cycles": 2, "drafted": 1, "undrafted_tokens": 1}),
        ("peer", OTHER, [(1.5, 2), (1, 2), (3, 1)], {}),
    )
    for count in range(3)
    for question in range(2)
]


def test_figures_by_hand():
    code, chat, overall = figures(TURNS, QUESTIONS, ["b plain", "b DFlash", "peer"], ["b DFlash"])
    assert (code.name, chat.name, overall.name) == ("code", "chat", OVERALL)
    assert (code.prompts, code.new_tokens, overall.prompts, overall.new_tokens) == (1, 4, 2, 7)
    plain, dflash, peer = code.rows
    # Rounds: 3 tokens in 3, 3, 6 seconds; in 1, 1.5, 2; in 1.5, 1, 3.
    assert [plain.tokens_per_second.median, dflash.tokens_per_second.median, peer.tokens_per_second.median] == [1, 2, 2]
    assert (peer.tokens_per_second.lower, peer.tokens_per_second.upper) == (1.5, 2.5)
    # Against the plain decoding of the same round, never the drafting side, however fast: 3/2, 2/3, 1.5/1.
    assert code.fastest_plain == "peer"
    assert dflash.against_plain.median == pytest.approx(1.5)
    assert (peer.against_plain.lower, peer.against_plain.upper) == (1, 1)
    assert plain.cpu_ms_per_token.median == 2000
    assert plain.ttft_ms.median == 250
    assert (plain.equal_answers, plain.equal_leading, peer.equal_answers, peer.equal_leading) == (1, 1, 0, 0.5)
    # Of two cycles one drafted: three decoded tokens, one of the cycle that did not.
    assert (dflash.tau, dflash.drafted) == (2, 0.5)
    assert (plain.tau, plain.drafted, peer.tau, peer.drafted) == (None, None, None, None)
    assert chat.fastest_plain == "b plain"
    # Both suites of a round together: 5 tokens in 4, 4, 10 seconds against 3.5, 3, 4.
    assert overall.fastest_plain == "peer"
    assert [row.tokens_per_second.median for row in overall.rows] == pytest.approx([5 / 4, 2, 5 / 3.5])
    assert (overall.rows[2].equal_answers, overall.rows[2].equal_leading) == (1, 0.75)


@pytest.mark.parametrize(("tokens", "share"), [((1, 2, 3, 4), 1), ((1, 2, 0, 4), 0.5), ((0, 2, 3, 4), 0)])
def test_the_leading_share_ends_at_the_first_difference(tokens, share):
    assert leading(tokens, (1, 2, 3, 4)) == share


class Replayed:
    """An engine that gives the same tokens to every prompt, as many as it has."""

    def __init__(self, name, tokens, log):
        self.name, self.tokens, self.log = name, tokens, log

    def answer(self, prompt, new_tokens):
        self.log.append((self.name, tuple(prompt), new_tokens))
        return Answer(tuple(self.tokens[:new_tokens]), 0.1, 0.2, 0.3, {})


def test_nobody_is_asked_past_the_end_of_a_bundles_answer():
    short, long = Replayed("short", range(10), []), Replayed("long", range(100, 130), [])
    assert plan([long, short], [("code", [[1], [2]])], 20) == [
        Question("code", (word,), tuple(range(100, 110))) for word in (1, 2)
    ]
    assert plan([long], [("code", [[1]])], 20)[0].expected == tuple(range(100, 120))
    assert plan([Replayed("tiny", range(7), [])], [("code", [[1]])], 20) == []


def test_every_engine_has_every_turn_once_and_each_begins():
    log = []
    engines = [Replayed(name, range(50), log) for name in "abc"]
    turns, failed = interleave(engines, QUESTIONS, 3, lambda text: None)
    assert failed == []
    assert {(turn.engine, turn.question, turn.round) for turn in turns} == {
        (name, question, count) for name in "abc" for question in range(2) for count in range(3)
    }
    assert len(turns) == 18
    measured = log[3:]
    assert [(prompt, asked) for _, prompt, asked in measured[:6]] == [((1,), 4)] * 3 + [((2,), 3)] * 3
    assert {measured[start][0] for start in range(0, 18, 3)} == set("abc")
    assert [engine.name for engine in rotated(engines, 4)] == ["b", "c", "a"]


def run(folder, *more):
    """The script on a tiny bundle: its document, and what it exits with."""
    bundle = write_bundle(folder / "bundle")
    (folder / "prompts.txt").write_text("\n".join(PROMPTS))
    (folder / "model.gguf").write_bytes(b"GGUF")
    given = [
        "--bundle",
        bundle,
        "--model",
        folder / "model.gguf",
        "--suite",
        folder / "prompts.txt",
        "--engines",
        ENGINES,
        "--work",
        folder / "work",
    ]
    given += ["--threads", 1, "--new-tokens", TOKENS, "--rounds", 2, *more]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *(str(word) for word in given)], capture_output=True, text=True, check=False
    )
    return bundle, done


def test_the_script_on_engines_that_work_and_one_that_is_missing(tmp_path):
    bundle, done = run(tmp_path, "--peer", "steady", "--peer", "absent", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [engine["name"] for engine in document["engines"]] == [
        "bundle plain",
        "bundle DFlash",
        "steady once",
        "steady twice",
    ]
    assert document["engines"][2]["weights"] == "none; 1 threads; model.gguf"
    (absent,) = document["left_out"]
    assert (absent["name"], absent["missing"]) == ("absent any", True)
    assert "No module named 'no_such_library'" in absent["why"]
    assert "pip install no-such-library" in absent["why"]
    (suite,) = document["suites"]
    assert (suite["name"], suite["prompts"]) == ("prompts", 2)
    rows = {row["engine"]: row for row in suite["rows"]}
    for name in ("bundle plain", "bundle DFlash"):
        assert (rows[name]["equal_answers"], rows[name]["equal_leading"]) == (2, 1)
        assert rows[name]["tokens_per_second"]["median"] > 0
    assert rows["bundle DFlash"]["drafted"] is not None
    with load(bundle, threads=1) as session:
        answers = [list(session.tokens(prompt, max_new_tokens=TOKENS, draft=False)) for prompt in PROMPTS]
    assert suite["new_tokens"] == sum(len(answer) for answer in answers)
    assert rows["steady once"]["equal_answers"] == 0


def test_engines_that_fail_are_named_and_the_others_go_on(tmp_path):
    _, done = run(tmp_path, "--peer", "faulty", "--peer", "steady")
    assert done.returncode == 1, done.stderr
    for words in (
        "opening: RuntimeError: a damaged file",
        "crashing: its process ended with 7",
        "raising: ValueError: out of luck",
        "short: it gave 11 tokens",
    ):
        assert f"left out: faulty {words}" in done.stdout
    assert "steady twice" in done.stdout
    assert "faulty" not in done.stdout.split("left out")[0]


def test_a_bundle_that_cannot_run_ends_it(tmp_path):
    bundle = write_bundle(tmp_path / "damaged")
    graph = bundle / "target" / "target.onnx"
    graph.write_bytes(bytes(graph.stat().st_size))
    _, done = run(tmp_path, "--bundle", bundle, "--peer", "steady")
    assert done.returncode == 1
    assert "error: damaged plain: BundleError" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--peer", "steddy"), "unknown steddy; known: absent, faulty, steady"),
        (("--threads", 0), "--threads"),
        (("--new-tokens", 7), "at least 8"),
    ],
)
def test_wrong_options_are_refused(tmp_path, more, words):
    _, done = run(tmp_path, *more)
    assert done.returncode == 2
    assert words in done.stderr


def test_every_engine_that_ships_says_what_it_needs_without_its_library():
    found = {name: read_class(file) for name, file in engine_files().items()}
    assert sorted(found) == ["llama_cpp", "onnxruntime_genai", "openvino_genai", "transformers_eager"]
    assert all(peer.VARIANTS and peer.INSTALL for peer in found.values())


def test_a_conversion_that_fails_leaves_nothing_and_is_made_once(tmp_path):
    def fail(path):
        path.mkdir()
        (path / "half").write_text("written")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        made_once(tmp_path / "form", fail)
    assert not (tmp_path / "form").exists()
    calls = []
    for _ in range(2):
        assert made_once(tmp_path / "form", lambda path: (path.mkdir(), calls.append(path))) == tmp_path / "form"
    assert len(calls) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "form"]


def test_forms_belong_to_the_very_file(tmp_path):
    first, second = tmp_path / "a" / "m.Q4_1.gguf", tmp_path / "b" / "m.Q4_1.gguf"
    for file in (first, second):
        file.parent.mkdir()
        file.write_text(str(file))
    assert work_folder(tmp_path, first) != work_folder(tmp_path, second)
    assert gguf_form(first, tmp_path, "Q4_1") == first


def test_the_table_shows_what_was_left_out():
    parts = tables(
        figures(TURNS[:6], QUESTIONS, ["b plain"], []),
        [SimpleNamespace(name="b plain", weights="int8", version="1")],
        [LeftOutError("x", "gone", missing=True)],
    )
    assert parts[-1] == "left out: x: gone"
