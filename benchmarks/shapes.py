"""Which drafter is fastest: train, build and time one for every combination of layers, block and draft vocabulary.

    python benchmarks/shapes.py TARGET OUT --layers 1 --layers 3 --block 6 --block 8 (--minutes 60 | --steps 2000)
        [--vocabulary 8192] [--features DIR] [--set learning_rate=1e-3] [--prompts 8] [--max-new-tokens 128] [--json]

Every shape is trained for the same budget on the same features (made first where `--features`, by default OUT/features,
holds too few), built into a bundle and timed on the prompt suites against plain decoding on the same bundle, taking
turns. Run the same command again to go on: a shape with a result is not touched, one under way is resumed.
Tokens a second of different shapes are taken at different times; on a machine that does other things, trust the speed-up.
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

from dflash_compile.cli.demo.compare import compare
from dflash_compile.cli.demo.prompts import DemoPrompt
from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.export import open_target
from dflash_compile.export.checkpoint import TargetCheckpoint
from dflash_compile.runtime import load
from dflash_compile.runtime.errors import DFlashError, UsageError
from dflash_compile.train.options import TrainOptions
from dflash_compile.train.recipe import train

ROOT = Path(__file__).parents[1]
SUITES = ROOT / "artifacts" / "prompts"
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
        """Training options of this shape. Raises `UsageError` for one that training does not have, or a value that cannot be."""
        given = {**shared, "layers": self.layers, "block": self.block}
        if self.vocabulary is not None:
            given[VOCABULARY_OPTION] = self.vocabulary
        unknown = sorted(set(given) - {field.name for field in fields(TrainOptions)})
        if unknown:
            raise UsageError(f"training has no option {', '.join(unknown)}", fix="leave it out, or see dflash_compile.train.options")
        return TrainOptions(**given)


@dataclass(frozen=True)
class Judge:
    """How a bundle is timed."""

    prompts: Sequence[DemoPrompt]
    max_new_tokens: int
    repeats: int

    def figures(self, bundle: Path) -> dict[str, object]:
        """τ of whole blocks, tokens a second with and without the drafter, and whether the text was the same."""
        with load(bundle) as session:
            result = compare(session, self.prompts, self.max_new_tokens, self.repeats, lambda *_, **__: None)
        return {"lossless": result.lossless, **{name: round(value, 3) for name, value in result.total.as_dict().items()}}


def prompts_of(folder: Path, count: int) -> list[DemoPrompt]:
    """The first `count` prompts of every suite in `folder`. Raises `UsageError` when there are none."""
    found = [DemoPrompt(file.stem, line) for file in sorted(folder.glob("*.txt")) for line in file.read_text(encoding="utf-8").splitlines()[:count]]
    if not found:
        raise UsageError("no prompts to time", where=str(folder), fix="give a folder of .txt files, one prompt a line, to --suites")
    return found


def try_shape(
    checkpoint: TargetCheckpoint, shape: Shape, options: TrainOptions, folder: Path, features: Path, build_options: BuildOptions, judge: Judge
) -> dict[str, Any]:
    """The result of `shape`, from `folder` when it is there, else made and kept there."""
    result = folder / "result.json"
    asked = json.loads(json.dumps({"training": asdict(options), "precision": build_options.precision, "new tokens": judge.max_new_tokens}))
    if result.exists():
        found: dict[str, Any] = json.loads(result.read_text())
        if found["asked"] != asked:
            raise UsageError("this shape was tried with other settings", where=str(result), fix="use another OUT folder, or delete the shape's")
        return found
    work = folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "features").is_symlink():
        (work / "features").symlink_to(features.resolve(), target_is_directory=True)
    trained = train(checkpoint, folder / "drafter", options, work, force=True)
    bundle = build(checkpoint, trained.drafter, folder / "bundle", build_options)
    found = {"shape": asdict(shape), "held_out_tau": trained.acceptance.tau, **judge.figures(bundle), "asked": asked}
    partial = result.with_suffix(".partial")
    partial.write_text(json.dumps(found, indent=1) + "\n")
    partial.replace(result)
    return found


def table(results: Sequence[dict[str, Any]]) -> str:
    """Results, the fastest first."""
    lines = ["layers  block  vocabulary  held-out τ  τ      tok/s    plain    speed-up  same text"]
    for row in sorted(results, key=lambda row: -row["tokens_per_second"]):
        shape = row["shape"]
        lines.append(
            f"{shape['layers']:<7} {shape['block']:<6} {shape['vocabulary'] or 'all':<11} {row['held_out_tau']:<11.3f} {row['tau']:<6.3f} "
            f"{row['tokens_per_second']:<8.2f} {row['baseline_tokens_per_second']:<8.2f} {row['speedup']:<9.3f} {'yes' if row['lossless'] else 'NO'}"
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
    parser.add_argument("--vocabulary", type=int, action="append", help="may be given again; 0, the default, is the whole")
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float, help="of training, for every shape")
    budget.add_argument("--steps", type=int, help="of training, for every shape")
    parser.add_argument("--features", type=Path, help="the `features` folder of a training run; OUT/features by default")
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="NAME=VALUE", help="another training option, for every shape")
    parser.add_argument("--precision", default="int8", help="of the bundles")
    parser.add_argument("--suites", type=Path, default=SUITES)
    parser.add_argument("--prompts", type=int, default=8, help="of every suite")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Try every shape and print the table, or the error of the first that cannot be."""
    given = parse(arguments)
    try:
        judge = Judge(prompts_of(given.suites, given.prompts), given.max_new_tokens, given.repeats)
        shared = {**dict(given.set), **({"minutes": given.minutes} if given.steps is None else {"steps": given.steps})}
        shapes = [Shape(layers, block, vocabulary or None) for layers, block, vocabulary in product(given.layers, given.block, given.vocabulary or [0])]
        options = {shape: shape.options(shared) for shape in shapes}  # all of them are checked before the first takes its hours
        checkpoint, features = open_target(given.target), given.features or given.out / "features"
        features.mkdir(parents=True, exist_ok=True)
        results = []
        for shape in options:
            print(f"trying {shape.name}", file=sys.stderr, flush=True)
            build_options = BuildOptions(precision=given.precision, force=True)
            results.append(try_shape(checkpoint, shape, options[shape], given.out / shape.name, features, build_options, judge))
    except DFlashError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(json.dumps({"shapes": results}) if given.json else table(results))
    return 0 if all(row["lossless"] for row in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
