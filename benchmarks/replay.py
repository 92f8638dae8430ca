"""What the session's controller makes of real answers, with nothing left to chance: every prompt again on recorded
tokens, proposals and prices.

    python benchmarks/replay.py BUNDLE [--suite code] [--prompts 12] [--max-new-tokens 96] [--recording FILE] [--worst
    4] [--json]

First each answer is recorded: what plain decoding gives, what the drafter would propose at each place in blocks of each
width, and what calls cost, in CPU time of one thread. `--recording FILE` keeps that, or takes it from FILE where it is
there. Then the session's loop decodes the recorded answers again on a clock that moves by those prices alone: with
look-ups, with the drafter, with both, and with both but a drafter that does not say how sure it is; in one session,
prompt after prompt, and each in a session of its own, which has everything to learn. Speeds are against plain decoding
at the same prices: the suite's, quartiles of single prompts and the worst of them. For the `--worst` prompts it is told
of each kind of cycle how many there were and how many plain steps they saved, less than none where they lost. Last, how
sure the drafter was of its proposals at each slot whose predecessors stood, and the share of them that stood.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import msgspec
from bundle.answers import SUITES
from replayed.answer import Answer, Recording, read, record, save
from replayed.decode import PLAIN, Replay, Way, decode

from dflash_compile.cli.bench.suite import open_suites
from dflash_compile.runtime import load
from dflash_compile.runtime.errors import DFlashError, UsageError

WAYS = {
    "look-ups": Way(lookup=True),
    "drafts": Way(drafter=True),
    "both": Way(drafter=True, lookup=True),
    "both, silent": Way(drafter=True, lookup=True, chances=False),
}
_CLASSES = 5
"""of chances that the drafter gives, in the table of what came of them"""


def recorded(given: argparse.Namespace) -> Recording:
    """From the file, if it is there; else of the bundle, and into the file.

    Raises `UsageError` for a file that is no recording.
    """
    if given.recording is not None and given.recording.exists():
        print(
            f"replaying {given.recording}: what it holds was recorded before, whatever bundle and prompts are"
            " named now",
            file=sys.stderr,
        )
        try:
            return read(given.recording)
        except (OSError, msgspec.DecodeError) as fault:
            raise UsageError(
                "no recording", where=str(given.recording), why=str(fault), fix="remove it, and it is recorded again"
            ) from fault
    with load(given.bundle, threads=1) as session:
        recording = record(
            session, open_suites(given.suite or SUITES, given.prompts), given.max_new_tokens, given.rounds
        )
    if given.recording is not None:
        save(recording, given.recording)
    return recording


def replay(recording: Recording, way: Way, keep: bool) -> list[Replay]:
    """Every answer; in one session if `keep`, else each in its own."""
    controller = way.controller(recording)
    return [
        decode(recording, answer, way, controller if keep else way.controller(recording))
        for answer in recording.answers
    ]


def rows(recording: Recording) -> list[dict[str, Any]]:
    """By way, session and suite: speeds against plain decoding of the whole suite, and of single prompts."""
    plain, table = [it.seconds for it in replay(recording, PLAIN, keep=False)], []
    for name, way in WAYS.items():
        for keep in (True, False):
            replays = replay(recording, way, keep)
            for suite in dict.fromkeys(answer.suite for answer in recording.answers):
                pairs = [
                    (p, it.seconds)
                    for answer, p, it in zip(recording.answers, plain, replays, strict=True)
                    if answer.suite == suite and p
                ]
                speeds = [p / seconds for p, seconds in pairs]
                quartiles = quantiles(speeds, n=4, method="inclusive") if len(speeds) > 1 else speeds * 3
                table.append(
                    {
                        "way": name,
                        "session": "one" if keep else "each",
                        "suite": suite,
                        "speed": round(sum(p for p, _ in pairs) / sum(seconds for _, seconds in pairs), 3),
                        "quartiles": [round(it, 3) for it in quartiles],
                        "worst": round(min(speeds), 3),
                    }
                )
    return table


def confidence(recording: Recording) -> list[dict[str, Any]]:
    """By slot of the widest blocks and class of the chances that the drafter gave: their mean, and the share that
    stood.
    """
    seen: dict[tuple[int, int], list[tuple[float, bool]]] = defaultdict(list)
    for answer in recording.answers:
        for place, said in enumerate(answer.chances):
            for slot, (chance, token) in enumerate(zip(said[-1], answer.proposals[place][-1], strict=True)):
                stood = token == answer.tokens[place + 1 + slot]
                seen[slot, min(int(chance * _CLASSES), _CLASSES - 1)].append((chance, stood))
                if not stood:
                    break
    return [
        {
            "slot": slot,
            "proposals": len(pairs),
            "said": round(fmean(chance for chance, _ in pairs), 3),
            "stood": round(fmean(it for _, it in pairs), 3),
        }
        for (slot, _), pairs in sorted(seen.items())
    ]


def worst(recording: Recording, most: int) -> list[dict[str, Any]]:
    """The prompts that gained least with everything on, and why."""
    plain, found = replay(recording, PLAIN, keep=False), []
    for keep in (True, False):
        pairs = zip(recording.answers, plain, replay(recording, WAYS["both"], keep), strict=True)
        side = [_told(recording, keep, index, *pair) for index, pair in enumerate(pairs) if pair[1].seconds]
        found += sorted(side, key=lambda it: it["speed"])[:most]
    return found


def _told(
    recording: Recording, keep: bool, index: int, answer: Answer, before: Replay, after: Replay
) -> dict[str, Any]:
    step = recording.prices.verify[recording.exact_width]
    return {
        "session": "one" if keep else "each",
        "suite": answer.suite,
        "answer": index,
        "tokens": answer.length,
        "speed": round(before.seconds / after.seconds, 3),
        "saved": {kind: [after.cycles[kind], round(seconds / step, 2)] for kind, seconds in after.saved.items()},
    }


def main(words: Sequence[str] | None = None) -> int:
    """Record, replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="for ONNX Runtime")
    parser.add_argument(
        "--suite",
        action="append",
        help="a suite's name, or a file or folder of prompts; may be given again; the four short ones by default",
    )
    parser.add_argument("--prompts", type=int, default=12, help="of each suite (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=96, help="of each answer (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=30, help="calls of each kind that are timed, at least 2 (default: %(default)s)"
    )
    parser.add_argument(
        "--recording",
        type=Path,
        metavar="FILE",
        help="keeps the recording, or is replayed instead of the bundle where it is there",
    )
    parser.add_argument(
        "--worst",
        type=int,
        default=4,
        help="prompts of each kind of session that are told about (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="one document instead of lines")
    given = parser.parse_args(words)
    if min(given.prompts, given.max_new_tokens) < 1 or given.rounds < 2:
        parser.error("at least one prompt, one token and two rounds")
    try:
        recording = recorded(given)
    except DFlashError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    table, least, sure = rows(recording), worst(recording, given.worst), confidence(recording)
    if given.json:
        print(json.dumps({"rows": table, "worst": least, "confidence": sure}))
        return 0
    for row in [*table, *least, *sure]:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
