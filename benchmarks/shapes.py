"""Which drafter is fastest: train, build and time one for every combination of layers, block and draft vocabulary.

    python benchmarks/shapes.py TARGET OUT --layers 1 --layers 3 --block 6 --block 8 (--minutes 60 | --steps 2000)
        [--vocabulary 8192] [--from DRAFTER] [--engine BUNDLE] [--features DIR ...] [--set learning_rate=1e-3]
        [--prompts 8] [--max-new-tokens 128] [--threads 1] [--json]

Every shape is trained for the same budget on the same features (made first where `--features`, by default OUT/features,
hold too few), built into a bundle and timed on the prompt suites against plain decoding on the same bundle, taking
turns: with blocks of every width, whose CPU time counts this process alone, so that the table holds on a busy machine
too. A shape's speed-up is that of its best width. `--from` begins at the first layers of a trained drafter instead of
at the target's last. Run the same command again to go on: a shape with a result is not touched, one under way is
resumed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from bundle.answers import SUITES, Variant, interleave

from dflash_compile.cli.bench.suite import open_suites
from dflash_compile.cli.bench.variants import widths
from dflash_compile.cli.compiled_target import open_compiled_target
from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from dflash_compile.runtime import load
from dflash_compile.runtime.errors import DFlashError, UsageError
from dflash_compile.train.compiled_target import CompiledTarget
from dflash_compile.train.from_drafter import options_of, start_identity
from dflash_compile.train.options import TrainOptions, default_taps
from dflash_compile.train.recipe import train

VOCABULARY_OPTION = "draft_vocabulary"
"""the training option that --vocabulary sets"""


@dataclass(frozen=True)
class Shape:
    """One point of the search. `vocabulary` None means the target's whole vocabulary."""

    layers: int
    block: int
    vocabulary: int | None = None

    @property
    def name(self) -> str:
        """Names its folder."""
        return f"layers{self.layers}-block{self.block}" + (f"-vocabulary{self.vocabulary}" if self.vocabulary else "")

    def options(self, shared: dict[str, Any]) -> TrainOptions:
        """Training options of this shape.

        Raises `UsageError` for one that training does not have, or a value that cannot be.
        """
        given = {**shared, "layers": self.layers, "block": self.block}
        if self.vocabulary is not None:
            given[VOCABULARY_OPTION] = self.vocabulary
        unknown = sorted(set(given) - {field.name for field in fields(TrainOptions)})
        if unknown:
            raise UsageError(
                f"training has no option {', '.join(unknown)}", fix="leave it out, or see dflash_compile.train.options"
            )
        return TrainOptions(**given)


@dataclass(frozen=True)
class Judge:
    """How a bundle is timed."""

    prompts: Sequence[str]
    max_new_tokens: int
    threads: int | None

    def figures(self, bundle: Path) -> dict[str, Any]:
        """τ and cost of plain decoding and of every width, the best one's speed-up, and whether the text was always
        the same.
        """
        with load(bundle, threads=self.threads) as session:
            variants = [Variant(session, width) for width in (0, *widths(session.manifest.pairing.block))]
            same = interleave(variants, self.prompts, self.max_new_tokens)
        plain, *blocks = (variant.row() for variant in variants)
        best = max(blocks, key=lambda block: block["tokens_per_cpu_second"])
        return {
            "lossless": same,
            "tau": blocks[-1]["tau"],
            "speedup": round(best["tokens_per_cpu_second"] / plain["tokens_per_cpu_second"], 3),
            "best_width": best["width"],
            "plain": plain,
            "widths": blocks,
        }


@dataclass(frozen=True)
class Search:
    """What all shapes share."""

    checkpoint: TargetCheckpoint
    out: Path
    features: Sequence[Path]
    start: DrafterCheckpoint | None
    engine: CompiledTarget | None
    precision: str
    judge: Judge

    def try_shape(self, shape: Shape, options: TrainOptions) -> dict[str, Any]:
        """The result of `shape`, from its folder when it is there, else made and kept there."""
        folder = self.out / shape.name
        result = folder / "result.json"
        start = None if self.start is None else start_identity(self.start)
        tokens = self.judge.max_new_tokens
        settings = {"training": asdict(options), "start": start, "precision": self.precision, "new tokens": tokens}
        asked = json.loads(json.dumps(settings))
        if result.exists():
            found: dict[str, Any] = json.loads(result.read_text())
            if found["asked"] != asked:
                raise UsageError(
                    "this shape was tried with other settings",
                    where=str(result),
                    fix="use another OUT folder, or delete the shape's",
                )
            return found
        own, *more = [path.resolve() for path in self.features]
        work = folder / "work"
        work.mkdir(parents=True, exist_ok=True)
        if not (work / "features").is_symlink():
            (work / "features").symlink_to(own, target_is_directory=True)
        drafter, given = folder / "drafter", {"force": True, "start": self.start, "engine": self.engine}
        trained = train(self.checkpoint, drafter, options, work, tuple(more), **given)
        bundle = build(
            self.checkpoint, trained.drafter, folder / "bundle", BuildOptions(precision=self.precision, force=True)
        )
        found = {"shape": asdict(shape), "held_out_tau": trained.acceptance.tau, **self.judge.figures(bundle)}
        found["asked"] = asked
        partial = result.with_suffix(".partial")
        partial.write_text(json.dumps(found, indent=1) + "\n")
        partial.replace(result)
        return found


def table(results: Sequence[dict[str, Any]]) -> str:
    """Results, the fastest first."""
    lines = [
        "layers  block  vocabulary  held-out τ  τ      speed-up  at width  CPU of that cycle  of plain's  same text"
    ]
    for result in sorted(results, key=lambda result: -result["speedup"]):
        shape, best = (
            result["shape"],
            next(width for width in result["widths"] if width["width"] == result["best_width"]),
        )
        ratio, same = best["cycle_cpu_ms"] / result["plain"]["cycle_cpu_ms"], "yes" if result["lossless"] else "NO"
        trained = (
            f"{shape['layers']:<7} {shape['block']:<6} {shape['vocabulary'] or 'all':<11}"
            f" {result['held_out_tau']:<11.3f} {result['tau']:<6.3f}"
        )
        lines.append(
            f"{trained} {result['speedup']:<9.3f} {result['best_width']:<9} {best['cycle_cpu_ms']:<6.2f} ms         "
            f" {ratio:<11.2f} {same}"
        )
    return "\n".join(lines)


def setting(text: str) -> tuple[str, Any]:
    """`name=value` with a JSON value, or a plain word."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = value
    return name.replace("-", "_"), tuple(parsed) if isinstance(parsed, list) else parsed


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, action="append", required=True, help="may be given again")
    parser.add_argument("--block", type=int, action="append", required=True, help="may be given again")
    parser.add_argument(
        "--vocabulary", type=int, action="append", help="may be given again; 0, the default, is the whole"
    )
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float, help="of training, for every shape")
    budget.add_argument("--steps", type=int, help="of training, for every shape")
    parser.add_argument(
        "--features",
        type=Path,
        action="append",
        help="the `features` folder of a training run, may be given again; OUT/features by default",
    )
    parser.add_argument(
        "--from", dest="start", type=Path, metavar="DRAFTER", help="begin at the first layers of this drafter"
    )
    parser.add_argument("--engine", type=Path, metavar="BUNDLE", help="the compiled target that the features are of")
    parser.add_argument(
        "--set",
        type=setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another training option, for every shape",
    )
    parser.add_argument("--precision", default="int8", help="of the bundles")
    parser.add_argument("--suite", action="append", help="as of `dflash-compile bench`; the four short ones by default")
    parser.add_argument("--prompts", type=int, default=8, help="of every suite")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Try every shape and print the table, or the error of the first that cannot be."""
    given = parse(arguments)
    try:
        suites = open_suites(given.suite or SUITES, given.prompts)
        prompts = [prompt for suite in suites for prompt in suite.prompts]
        judge = Judge(prompts, given.max_new_tokens, given.threads)
        start = None if given.start is None else open_drafter(given.start)
        answered = (
            {}
            if start is None
            else {name: value for name, value in options_of(start.spec).items() if name not in ("layers", "block")}
        )
        shared = {
            **answered,
            **dict(given.set),
            **({"minutes": given.minutes} if given.steps is None else {"steps": given.steps}),
        }
        shapes = [
            Shape(layers, block, vocabulary or None)
            for layers, block, vocabulary in product(given.layers, given.block, given.vocabulary or [0])
        ]
        options = {
            shape: shape.options(shared) for shape in shapes
        }  # all of them are checked before the first takes its hours
        checkpoint, features = open_target(given.target), given.features or [given.out / "features"]
        features[0].mkdir(parents=True, exist_ok=True)
        taps = options[shapes[0]].taps or default_taps(checkpoint.spec.layers)
        engine = None if given.engine is None else open_compiled_target(given.engine, checkpoint, taps)
        search, results = Search(checkpoint, given.out, features, start, engine, given.precision, judge), []
        for shape in shapes:
            print(f"trying {shape.name}", file=sys.stderr, flush=True)
            results.append(search.try_shape(shape, options[shape]))
    except DFlashError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(json.dumps({"shapes": results}) if given.json else table(results))
    return 0 if all(result["lossless"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
