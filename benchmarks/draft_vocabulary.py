"""What a reduced draft vocabulary saves: one draft of a block, at several head sizes and widths, and where argmax runs
fastest.

    python benchmarks/draft_vocabulary.py [TARGET DRAFTER] [--sizes 16384,8192,4096] [--widths 4,6,8] [--rounds 60]
    [--threads 1] [--clock cpu] [--json]

The vocabularies hold the most frequent tokens of Python's own documentation and source, which is any text: what a head
costs does not depend on which of its rows are kept. Every size and width takes a turn in every round; the figure is the
median of a draft as the runtime does it (engine, argmax, map) in milliseconds. On a busy machine `--clock cpu` counts
the time that this process computed instead of the time that passed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

from dflash_compile.compile.graphs.bind import bind
from dflash_compile.compile.manifest_records import graph_record
from dflash_compile.compile.onnxruntime.lower import lower
from dflash_compile.compile.onnxruntime.precision import precision_of
from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from dflash_compile.export.checkpoints.draft_head import drafter_tensors
from dflash_compile.export.tracing.trace import trace_draft
from dflash_compile.runtime.backends.onnxruntime.graph import Buffer, Graph
from dflash_compile.runtime.backends.onnxruntime.library import open_engine, session_options
from dflash_compile.train.raw_text import library_texts
from dflash_compile.train.vocabulary import choose_vocabulary

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
CONTEXT, POSITION, WARM_UP, TEXTS = 512, 200, 5, 300
HERE = Path(__file__).parents[1]


class Draft:
    """A draft engine and the memory it runs on."""

    def __init__(
        self,
        target: TargetCheckpoint,
        drafter: DrafterCheckpoint,
        folder: Path,
        precision: str,
        threads: int,
        widest: int,
    ) -> None:
        sources = {"target": target.tensors, "drafter": drafter_tensors(drafter, target)}
        lowered = lower(trace_draft(drafter, target.spec, CONTEXT), precision_of(precision))
        file = bind(lowered, sources, folder, f"{drafter.spec.draft_vocab}.onnx")
        self.ids = None if drafter.vocabulary is None else list(drafter.vocabulary.ids)
        self.size = drafter.spec.draft_vocab or target.spec.vocab
        record = graph_record(lowered.signature, file.name)
        self.graph = Graph(
            open_engine(onnxruntime, file, session_options(onnxruntime, threads), ["CPUExecutionProvider"]),
            file,
            record,
        )
        self.caches = self.graph.cache_buffers(onnxruntime, "cpu")
        noise = np.random.default_rng(0)
        for cache in self.caches.values():
            cache.read(cache.shape)[:] = noise.standard_normal(cache.shape, np.float32)
        self.block, self.position = (
            Buffer(onnxruntime, "cpu", (widest,), "int32"),
            Buffer(onnxruntime, "cpu", (1,), "int32"),
        )
        self.block.write([drafter.spec.mask_id] * widest)
        self.position.write([POSITION])
        self.logits = Buffer(onnxruntime, "cpu", (widest, self.size), "float32")

    def run(self, width: int) -> list[int]:
        """Proposals of one block."""
        if not self.graph.prepared((width,)):
            inputs: dict[str, Any] = {"block": (self.block, (1, width)), "position": (self.position, (1,))}
            self.graph.bind((width,), inputs, {"logits": (self.logits, (1, width - 1, self.size))}, self.caches)
        self.graph.run((width,))
        rows = [int(row.argmax()) for row in self.logits.read((width - 1, self.size))]
        return rows if self.ids is None else [self.ids[row] for row in rows]


def reduced(target: TargetCheckpoint, drafter: DrafterCheckpoint, counts: Counter[int], size: int) -> DrafterCheckpoint:
    """The drafter with a head of the target's rows for the `size` most frequent tokens, or for all of them."""
    if size >= target.spec.vocab:
        return replace(drafter, spec=replace(drafter.spec, draft_vocab=None), vocabulary=None)
    vocabulary = choose_vocabulary(counts, size, target.spec, drafter.spec.mask_id)
    return replace(drafter, spec=replace(drafter.spec, draft_vocab=size), vocabulary=vocabulary)


def token_counts(target: TargetCheckpoint) -> Counter[int]:
    """Token frequencies of some text."""
    tokenizer = Tokenizer.from_str(target.text.tokenizer_json.decode())
    counts: Counter[int] = Counter()
    for text in islice(library_texts(0), TEXTS):
        counts.update(tokenizer.encode(text[:8000], add_special_tokens=False).ids)
    return counts


def argmax_graph(size: int) -> Any:
    """ArgMax and a Gather of token ids, as a graph that mapped its own proposals would end."""
    nodes = [
        helper.make_node("ArgMax", ["logits"], ["row"], axis=-1, keepdims=0),
        helper.make_node("Gather", ["ids", "row"], ["tokens"]),
    ]
    ports = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "rows", size]),
        helper.make_tensor_value_info("tokens", TensorProto.INT32, [1, "rows"]),
    ]
    graph = helper.make_graph(
        nodes, "argmax", ports[:1], ports[1:], [numpy_helper.from_array(np.arange(size, dtype=np.int32), "ids")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), session_options(onnxruntime, 1), providers=["CPUExecutionProvider"]
    )


def argmax_times(size: int, width: int, rounds: int, now: Callable[[], float]) -> dict[str, float]:
    """Microseconds of argmax and map over the proposals of one block: in a graph, and on the host."""
    session, ids, logits = (
        argmax_graph(size),
        list(range(size)),
        np.random.default_rng(0).standard_normal((1, width - 1, size), np.float32),
    )
    tokens, binding = np.zeros((1, width - 1), np.int32), session.io_binding()
    binding.bind_input("logits", "cpu", 0, np.float32, logits.shape, logits.ctypes.data)
    binding.bind_output("tokens", "cpu", 0, np.int32, tokens.shape, tokens.ctypes.data)
    times: dict[str, list[float]] = {"graph": [], "host": []}
    for _ in range(WARM_UP + rounds):
        started = now()
        session.run_with_iobinding(binding)
        between = now()
        found = [ids[row] for row in [int(row.argmax()) for row in logits[0]]]
        times["host"].append(now() - between)
        times["graph"].append(between - started)
        assert found == tokens[0].tolist()
    return {name: median(values[WARM_UP:]) * 1e6 for name, values in times.items()}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every figure."""
    now = CLOCKS[options.clock]
    target, drafter = open_target(options.target), open_drafter(options.drafter)
    widths, counts = [int(word) for word in options.widths.split(",")], token_counts(target)
    sizes = [target.spec.vocab, *(int(word) for word in options.sizes.split(","))]
    with TemporaryDirectory() as folder:
        drafts = [
            Draft(
                target,
                reduced(target, drafter, counts, size),
                Path(folder),
                options.precision,
                options.threads,
                max(widths),
            )
            for size in sizes
        ]
        times: dict[tuple[int, int], list[float]] = {(draft.size, width): [] for draft in drafts for width in widths}
        for _ in range(WARM_UP + options.rounds):
            for draft in drafts:
                for width in widths:
                    started = now()
                    draft.run(width)
                    times[draft.size, width].append((now() - started) * 1e3)
    drafting = [
        {"rows": size, "width": width, "ms": median(values[WARM_UP:])} for (size, width), values in times.items()
    ]
    argmax = [
        {"rows": size, "width": width, **argmax_times(size, width, options.rounds, now)}
        for size in sizes
        for width in widths
    ]
    return {
        "precision": options.precision,
        "threads": options.threads,
        "clock": options.clock,
        "draft": drafting,
        "argmax_us": argmax,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default="smollm2-135m")
    parser.add_argument("drafter", nargs="?", default=str(HERE / "artifacts" / "smollm2-135m-dflash"))
    parser.add_argument("--sizes", default="16384,8192,4096")
    parser.add_argument("--widths", default="4,6,8")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for entry in found["draft"]:
        print(f"{entry['rows']:>6} rows, width {entry['width']}: {entry['ms']:7.2f} ms")
    for entry in found["argmax_us"]:
        print(
            f"{entry['rows']:>6} rows, width {entry['width']}: argmax in the graph {entry['graph']:6.1f} µs, on the"
            f" host {entry['host']:6.1f} µs"
        )


if __name__ == "__main__":
    main()
