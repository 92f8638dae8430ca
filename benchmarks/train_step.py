"""Rows a second of training steps at the shape of a real target, and where the time goes.

    python benchmarks/train_step.py [TARGET] [--precision bfloat16] [--steps 8] [--profile] [--json]

Sequences are random tokens with random features: half of them plain text of 256 tokens, half a prompt of 20 to 120
tokens and an answer of 40 to 256. Measured are steps on the frequent tokens, steps on the whole vocabulary, and one
evaluation of two answers. CPU seconds are the process's own, of all its threads: on a machine that does other things
they are what to compare. With --profile, torch's table of operators goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from dflash_compile.export import open_target
from dflash_compile.export.checkpoints.torch_model import load_model
from dflash_compile.export.dflash.v1 import DflashV1
from dflash_compile.export.spec import TargetSpec
from dflash_compile.train.compute import choose_compute
from dflash_compile.train.data import Corpus
from dflash_compile.train.features import FeatureStore
from dflash_compile.train.options import PRECISIONS, TrainOptions
from dflash_compile.train.raw_text import TAG
from dflash_compile.train.shape import drafter_spec
from dflash_compile.train.teacher import Teacher
from dflash_compile.train.trainer import Trainer

SEQUENCES, WARM_UP, RARE = 96, 1, 12_000


def fill(folder: Path, taps: tuple[int, ...], target: TargetSpec) -> FeatureStore:
    """A store of `SEQUENCES` random sequences."""
    store = FeatureStore(folder, len(taps) * target.hidden, taps, "random")
    generator = torch.Generator().manual_seed(0)
    for index in range(SEQUENCES):
        prompt = 1 if index % 2 else int(torch.randint(20, 121, (1,), generator=generator))
        length = 256 if index % 2 else prompt + int(torch.randint(40, 257, (1,), generator=generator))
        tokens = torch.randint(min(RARE, target.vocab), (length,), generator=generator).tolist()
        store.append(tokens, torch.randn(length, store.width, generator=generator), prompt, TAG if index % 2 else "")
    return store


def measure(trainer: Trainer, steps: int) -> dict[str, float]:
    """Seconds and CPU seconds a step, labelled block rows a step and a second of each."""
    for _ in range(WARM_UP):
        trainer.train_step()
    rows, wall, cpu = trainer.clock.rows, time.perf_counter(), time.process_time()
    for _ in range(steps):
        trainer.train_step()
        trainer.clock.step += 1
    wall, cpu, rows = time.perf_counter() - wall, time.process_time() - cpu, trainer.clock.rows - rows
    return {
        "seconds": wall / steps,
        "cpu_seconds": cpu / steps,
        "rows": rows / steps,
        "rows_per_second": rows / wall,
        "rows_per_cpu_second": rows / cpu,
    }


def measure_evaluation(trainer: Trainer) -> dict[str, float]:
    """CPU seconds of τ on two answers."""
    trainer.held_out = trainer.held_out[:2]
    cpu = time.process_time()
    cycles = trainer.acceptance().cycles
    return {"cpu_seconds": time.process_time() - cpu, "cycles": cycles}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default="smollm2-135m")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--block", type=int, default=8)
    parser.add_argument("--precision", choices=PRECISIONS, default="auto")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--profile", action="store_true", help="also list the operators that take most of the time")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    checkpoint = open_target(arguments.target)
    options = TrainOptions(layers=arguments.layers, block=arguments.block, precision=arguments.precision)
    compute = choose_compute(options.precision)
    spec = drafter_spec(checkpoint.spec, options, mask_id=0)
    target = load_model(checkpoint, torch.float32)
    head, embedding = (
        module.get_parameter("weight").to(compute.device)
        for module in (target.get_output_embeddings(), target.get_input_embeddings())
    )
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        corpus = Corpus([fill(Path(folder), spec.taps, checkpoint.spec)], held_out=8)
        for name, share in (("frequent tokens", 0.0), ("whole vocabulary", 0.9999)):
            torch.manual_seed(0)
            model = DflashV1(spec, len(spec.taps) * checkpoint.spec.hidden).to(compute.device)
            teacher = Teacher(target, spec.taps).on(compute)
            shared = replace(options, full_share=share)
            trainer = Trainer(model, embedding, head, corpus, shared, Path(folder) / "state", teacher, compute=compute)
            trainer.clock.step = 1  # the share of the run that uses the whole vocabulary is then reached, or never
            figures[name] = measure(trainer, arguments.steps)
            if arguments.profile:
                with torch.profiler.profile() as profile:
                    trainer.train_step()
                print(
                    profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=16, max_name_column_width=40),
                    file=sys.stderr,
                )
        figures["evaluation"] = measure_evaluation(trainer)
    rounded = {name: {key: round(value, 3) for key, value in figure.items()} for name, figure in figures.items()}
    print(json.dumps(rounded) if arguments.json else "\n".join(f"{name}: {figure}" for name, figure in rounded.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
