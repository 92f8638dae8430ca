"""An engine in a process of its own: opened once, then answers over a pipe until the pipe ends.

    python -m peer.worker FILE VARIANT MODEL WORK THREADS CONTEXT

A line of JSON in for each request, a line out for each reply. Imports nothing but the standard library until the engine
does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TextIO

from peer import Peer, Setup
from peer.finding import read_class


def main(words: list[str]) -> None:
    """Serve until standard input ends."""
    replies = _private_output()
    file, variant, model, work, threads, context = words
    try:
        setup = Setup(variant, Path(model), Path(work), int(threads), int(context))
        peer = read_class(Path(file))(setup)
    except ImportError as fault:
        _say(replies, {"missing": str(fault)})
        return
    except Exception as fault:  # whatever a library throws: the runner leaves the engine out and says why
        _say(replies, {"failed": f"{type(fault).__name__}: {fault}"})
        return
    _say(replies, {"version": peer.version, "weights": peer.weights})
    for request in _requests():
        try:
            _say(replies, answer(peer, request["prompt"], request["new_tokens"]))
        except Exception as fault:
            _say(replies, {"failed": f"{type(fault).__name__}: {fault}"})
            return


def answer(peer: Peer, prompt: list[int], new_tokens: int) -> dict[str, Any]:
    """Tokens; seconds to the first, from there to the last, and this process's CPU seconds in the latter."""
    tokens: list[int] = []
    clock: list[tuple[float, float]] = []

    def on_token(token: int) -> None:
        tokens.append(token)
        clock.append((perf_counter(), process_time()))

    asked = perf_counter()
    own = dict(peer.generate(prompt, new_tokens, on_token))
    (first, first_cpu), (last, last_cpu) = clock[0], clock[-1]
    return {
        "tokens": tokens,
        "first_seconds": first - asked,
        "decode_seconds": last - first,
        "cpu_seconds": last_cpu - first_cpu,
        "own": own,
    }


def _private_output() -> TextIO:
    """Standard output as it was, for replies alone: what libraries print goes to standard error from now on."""
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return private


def _requests() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def _say(replies: TextIO, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # nothing is left to save, and some libraries take seconds to take themselves down
