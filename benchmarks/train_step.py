"""Rows a second of training steps at the shape of a real target, and where the time goes.

    python benchmarks/train_step.py [TARGET] [--precision float32] [--steps 8] [--profile] [--json]

Sequences are random tokens with random features: half of them plain text of 256 tokens, half a prompt of 20 to 120 tokens
and an answer of 40 to 256. The two figures are of steps on the frequent tokens and of steps on the whole vocabulary.
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
from dflash_compile.export.dflash_v1 import DflashV1
from dflash_compile.export.spec import TargetSpec
from dflash_compile.export.torch_model import load_model
from dflash_compile.train.data import Corpus
from dflash_compile.train.features import FeatureStore
from dflash_compile.train.options import TrainOptions
from dflash_compile.train.raw_text import TAG
from dflash_compile.train.recipe import drafter_spec
from dflash_compile.train.teacher import Teacher
from dflash_compile.train.trainer import Trainer

SEQUENCES, WARM_UP, RARE = 96, 2, 12_000


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
    """Seconds a step and labelled block rows a second."""
    for _ in range(WARM_UP):
        trainer.train_step()
    rows, start = trainer.clock.rows, time.perf_counter()
    for _ in range(steps):
        trainer.train_step()
        trainer.clock.step += 1
    seconds = time.perf_counter() - start
    return {"seconds": round(seconds / steps, 3), "rows_per_second": round((trainer.clock.rows - rows) / seconds, 1)}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default="smollm2-135m")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--block", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--profile", action="store_true", help="also list the operators that take most of the time")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    checkpoint = open_target(arguments.target)
    options = TrainOptions(layers=arguments.layers, block=arguments.block, steps=10_000)
    spec = drafter_spec(checkpoint.spec, options, mask_id=0)
    target = load_model(checkpoint, torch.float32)
    head, embedding = target.get_output_embeddings().weight, target.get_input_embeddings().weight
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        corpus = Corpus([fill(Path(folder), spec.taps, checkpoint.spec)], held_out=8)
        for name, share in (("frequent tokens", 0.0), ("whole vocabulary", 0.9999)):
            torch.manual_seed(0)
            model = DflashV1(spec, len(spec.taps) * checkpoint.spec.hidden)
            teacher = Teacher(target, spec.taps).low("cpu")
            trainer = Trainer(model, embedding, head, corpus, replace(options, full_share=share), Path(folder) / "state", teacher)
            trainer.clock.step = 2
            trainer.train_step = trainer._step
            figures[name] = measure(trainer, arguments.steps)
            if arguments.profile:
                with torch.profiler.profile() as profile:
                    trainer.train_step()
                print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=16, max_name_column_width=40))
    print(json.dumps(figures) if arguments.json else "\n".join(f"{name}: {figure}" for name, figure in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
