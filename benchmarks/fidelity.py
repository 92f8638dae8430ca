"""How near bundles are to the weights they were built from, on what a model says: agreement of greedy tokens,
divergence, cross-entropy.

    python benchmarks/fidelity.py TARGET BUNDLE [BUNDLE ...] [--suite code] [--prompts 4] [--max-new-tokens 48] [--json]

The first bundle answers the prompts; transformers with TARGET's weights in float32, and each bundle's target, then read
prompt and answer, every row knowing the same tokens before it. At each token of the answers: "agreement" is the share
of places where a bundle's first choice is that of the float32 weights, "divergence" the mean of KL(float32 || bundle),
"cross_entropy" that of the answer's tokens, in nats; that of the float32 weights comes first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from bundle.answers import SUITES

from dflash_compile.cli.bench.suite import open_suites
from dflash_compile.export.checkpoints.torch_model import load_model
from dflash_compile.export.opening import open_target
from dflash_compile.runtime import load
from dflash_compile.runtime.cycles import chunk_rows
from dflash_compile.runtime.session import Session

Rows = npt.NDArray[np.float64]


def of_bundle(session: Session, tokens: Sequence[int], rows: int) -> Rows:
    """Log-probabilities after each of the last `rows` of `tokens`, [rows, vocab]."""
    target: Any = session.engines.target
    tokens, found, start = list(tokens), [], 0
    for size in chunk_rows(len(tokens), target.max_rows, target.min_verify_rows):
        target.verify(tokens[start : start + size], start)
        found.append(np.stack([target.row_logits(row) for row in range(size)]))
        start += size
    return normalised(np.concatenate(found)[-rows:])


def normalised(logits: npt.NDArray[np.floating[Any]]) -> Rows:
    """Log-probabilities of logits [rows, vocab]."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))  # type: ignore[no-any-return]


class Distance:
    """Of one bundle from the float32 weights, over all answers."""

    def __init__(self) -> None:
        self.places = self.agreed = 0
        self.divergence = self.entropy = 0.0

    def add(self, reference: Rows, found: Rows, said: Sequence[int]) -> None:
        """Rows [places, vocab] of both, and the tokens that were said there."""
        self.places += len(said)
        self.agreed += int((reference.argmax(-1) == found.argmax(-1)).sum())
        self.divergence += float((np.exp(reference) * (reference - found)).sum())
        self.entropy -= float(found[range(len(said)), list(said)].sum())

    def row(self) -> dict[str, float]:
        """Means."""
        return {
            "places": self.places,
            "agreement": round(self.agreed / self.places, 4),
            "divergence": round(self.divergence / self.places, 4),
            "cross_entropy": round(self.entropy / self.places, 4),
        }


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    parser.add_argument(
        "--suite",
        action="append",
        help="a suite's name, or a file or folder of prompts; may be given again; the four short ones by default",
    )
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    model, own, distances = load_model(open_target(given.target)), Distance(), [Distance() for _ in given.bundles]
    with ExitStack() as stack:
        sessions = [stack.enter_context(load(bundle, threads=1)) for bundle in given.bundles]
        for prompt in [
            prompt for suite in open_suites(given.suite or SUITES, given.prompts) for prompt in suite.prompts
        ]:
            ids = sessions[0].encode(prompt)
            said = list(sessions[0].tokens(ids, max_new_tokens=given.max_new_tokens))
            tokens = [*ids, *said[:-1]]
            with torch.no_grad():
                reference = normalised(model(torch.tensor([tokens])).logits[0, -len(said) :].numpy())
            own.add(reference, reference, said)
            for session, distance in zip(sessions, distances, strict=True):
                distance.add(reference, of_bundle(session, tokens, len(said)), said)
    rows = [
        {"weights": "float32", **own.row()},
        *({"weights": str(bundle), **it.row()} for bundle, it in zip(given.bundles, distances, strict=True)),
    ]
    print(
        json.dumps(rows)
        if given.json
        else "\n".join("  ".join(f"{key} {value}" for key, value in row.items()) for row in rows)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
