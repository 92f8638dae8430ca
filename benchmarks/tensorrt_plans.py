"""What TensorRT's engines of a pair cost to compile and what they contain, without a GPU.

    python benchmarks/tensorrt_plans.py TARGET DRAFTER [--arch sm86,sm89,sm120] [--precision fp16] [--roles
    draft,verify,inject] [--json] python benchmarks/tensorrt_plans.py --random [...]     random weights in the shape of
    Qwen3-0.6B, a drafter of 5 layers and block 16

A row for each engine: seconds and peak memory of its compilation, size, kernels, attention layers in one kernel,
kernels that copy a cache, scratch memory. For each architecture the cycle: kernels of draft, verify and inject, and the
bytes it must read at least (every weight once, and the live cache at `--live` positions) beside those that copies of
caches add.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

CYCLE = ("draft", "verify", "inject")


def measure(
    target: str,
    drafter: str,
    precision: str,
    arch: tuple[str, ...],
    roles: set[str],
    widths: tuple[int, ...],
    context: int,
    live: int,
    work: Path,
) -> list[dict[str, Any]]:
    """One record for each engine."""
    from dflash_compile.compile.options import BuildOptions
    from dflash_compile.compile.pair_sizes import decide
    from dflash_compile.compile.tensorrt.backend import Compilation
    from dflash_compile.compile.tensorrt.library import choose_flavour
    from dflash_compile.compile.tensorrt.options import Options
    from dflash_compile.compile.tensorrt.roles import attention_count, lower_all, roles_of, trace_all
    from dflash_compile.export.opening import open_drafter, open_target

    options = Options(precision, precision, arch, widths)
    models = decide(open_target(target), open_drafter(drafter), BuildOptions(context=context))

    def heard(step: str, done: int = 0, total: int = 0) -> None:
        if not done:
            print(step, file=sys.stderr, flush=True)

    traced = trace_all(
        models,
        [role for role in roles_of(models, widths=widths) if role.name in roles and role.rows in (1, models.block)],
        heard,
    )
    rows = []
    for engine in lower_all(traced, options):
        prepared = Compilation(models, (engine,), choose_flavour(None))
        with tempfile.TemporaryDirectory(dir=work) as folder:
            graphs = prepared.write(Path(folder), heard)[engine.owner]
        figures = {record.name: record.value for record in prepared.measured}
        read, cache = weights_read(engine), cache_bytes(engine)
        for graph in graphs:
            plan, name = graph.plan, f"{engine.title}, {graph.arch}"
            assert plan is not None
            row = {
                "engine": f"{graph.role}[{graph.rows}]",
                "role": graph.role,
                "arch": graph.arch,
                "precision": precision,
                "build_s": figures[f"{name}: build"],
            }
            row |= {
                "peak_mib": figures.get(f"{name}: peak memory"),
                "plan_mib": plan.bytes / 2**20,
                "kernels": plan.kernels,
            }
            row |= {
                "attention": attention_count(engine.lowered.model),
                "fused": plan.fused_attention,
                "cache_copies": plan.cache_copies,
            }
            row |= {
                "scratch_mib": None if plan.scratch_bytes is None else plan.scratch_bytes / 2**20,
                "weights_mib": read / 2**20,
            }
            row |= {
                "live_mib": cache * live / cache_rows_of(engine) / 2**20,
                "copied_mib": copied(engine, plan.cache_copies or 0) / 2**20,
            }
            rows.append(row)
    return rows


def weights_read(engine: Any) -> int:
    """Bytes of the weights that a run reads whole: all but tables that rows are looked up in."""
    initializers = engine.lowered.model.graph.initializers
    return sum(
        p.stored.bytes
        for key, p in engine.lowered.bindings.items()
        if any(use.node.op_type != "Gather" for use in initializers[key].uses())
    )


def cache_bytes(engine: Any) -> int:
    """Bytes of all caches of a model, if its graph reads them."""
    if engine.signature.role == "inject":
        return 0
    width = {"float32": 4}.get(engine.signature.inputs[-1].dtype, 2)
    return len(engine.signature.caches) * math.prod(engine.signature.inputs[-1].shape) * width


def cache_rows_of(engine: Any) -> int:
    """Length of the caches."""
    rows: int = engine.signature.inputs[-1].shape[2]
    return rows


def copied(engine: Any, copies: int) -> int:
    """Bytes read and written by kernels that copy one cache each, and read again by the attention after it.

    Expansion of heads not counted.
    """
    pairs = len(engine.signature.caches)
    return copies * cache_bytes(engine) // pairs * 2 if pairs else 0


def cycles(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sums over the engines of a cycle, for each architecture."""
    found = []
    for arch in dict.fromkeys(row["arch"] for row in rows):
        mine = [row for row in rows if row["arch"] == arch]
        parts = [
            next(row for row in mine if row["role"] == role)
            for role in CYCLE
            if any(row["role"] == role for row in mine)
        ]  # the widest of each
        least = sum(row["weights_mib"] + row["live_mib"] for row in parts)
        extra = sum(row["copied_mib"] for row in parts)
        kernels = sum(row["kernels"] or 0 for row in parts)
        found.append(
            {
                "arch": arch,
                "kernels": kernels,
                "least_mib": least,
                "with_copies_mib": least + extra,
                "ratio": (least + extra) / least,
            }
        )
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as a Markdown table."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join(
        [
            *lines,
            *(
                "| " + " | ".join(f"{row[n]:.4g}" if isinstance(row[n], float) else str(row[n]) for n in names) + " |"
                for row in rows
            ),
        ]
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="target and drafter")
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--arch", default="sm86,sm89,sm120")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--roles", default="draft,verify,inject")
    parser.add_argument("--widths", default="", help="of verify, beside the block's")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument(
        "--live", type=int, default=1024, help="positions in the cache when the cycle's bytes are counted"
    )
    parser.add_argument("--work", type=Path, help="where engines are written before they are measured and deleted")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
        if arguments.random:
            from export_memory import make

            make(Path(folder))
            arguments.models = [f"{folder}/target", f"{folder}/drafter"]
        widths = tuple(int(width) for width in arguments.widths.split(",") if width)
        sizes = (widths, arguments.context, arguments.live, Path(folder))
        rows = measure(
            *arguments.models,
            arguments.precision,
            tuple(arguments.arch.split(",")),
            set(arguments.roles.split(",")),
            *sizes,
        )
    summary = cycles(rows)
    print(json.dumps({"engines": rows, "cycles": summary}) if arguments.json else f"{table(rows)}\n\n{table(summary)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
