"""Time of a verify by a target with sliding layers, whose caches are rings, against the same with whole caches.

`python benchmarks/rings.py` writes a random target of SmolLM2-135M's shape with a window in three of four layers,
builds both forms and runs them by turns at several positions. Caches hold zeros: what is in them costs nothing and
saves nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from dflash_compile.compile.graphs.bind import bind
from dflash_compile.compile.onnxruntime import lower as form
from dflash_compile.compile.onnxruntime.precision import precision_of
from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint, TextSource
from dflash_compile.export.checkpoints.safetensors_source import SafetensorsSource
from dflash_compile.export.checkpoints.target_spec import target_sizes
from dflash_compile.export.tracing.signature import Signature
from dflash_compile.export.tracing.trace import trace_target

WIDEST = 64


def shape(layers: int, window: int, context: int) -> Qwen3Config:
    """Every fourth layer looks back without a limit."""
    kinds = ["full_attention" if layer % 4 == 3 else "sliding_attention" for layer in range(layers)]
    return Qwen3Config(
        vocab_size=8192,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=context,
        layer_types=kinds,
        use_sliding_window=True,
        sliding_window=window,
        tie_word_embeddings=False,
    )


class Engine:
    """An engine bound to fixed memory, caches in and out the same."""

    def __init__(self, path: Path, signature: Signature, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        taken = {name for name, _ in signature.caches}
        self.caches = {
            port.name: np.zeros([int(size) for size in port.shape], np.float32)
            for port in signature.inputs
            if port.name in taken
        }
        self.signature = signature
        self.kept: list[Any] = []

    @property
    def bytes(self) -> int:
        """Of its caches."""
        return sum(cache.nbytes for cache in self.caches.values())

    def call(self, rows: int, position: int) -> Any:
        """A function of nothing that runs `rows` rows at `position`."""
        binding = self.session.io_binding()
        feeds = {
            "tokens": np.ones((1, rows), np.int32),
            "position": np.array([position], np.int32),
            "pick": np.arange(rows, dtype=np.int32),
        }
        for name, value in feeds.items():
            binding.bind_cpu_input(name, value)
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(cache) for name, cache in self.caches.items()}
        for name, out in self.signature.caches:
            binding.bind_ortvalue_input(name, values[name])
            binding.bind_ortvalue_output(out, values[name])
        for name in ("logits", "taps"):
            binding.bind_output(name)
        self.kept.append((feeds, values))
        return lambda: self.session.run_with_iobinding(binding)


def measure(engines: dict[str, Engine], rows: int, position: int, repeats: int) -> dict[str, float]:
    """Median milliseconds of process time by form, by turns."""
    calls = {name: engine.call(rows, position) for name, engine in engines.items()}
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 2):
        for name, call in calls.items():
            began = time.process_time()
            call()
            if repeat > 1:
                spent[name].append(1000 * (time.process_time() - began))
    return {name: round(statistics.median(times), 2) for name, times in spent.items()}


def main() -> None:
    """Print the size of both caches, then a line for each position and width."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default="int8")
    given = parser.parse_args()
    config = shape(given.layers, given.window, given.context)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        torch.manual_seed(0)
        Qwen3ForCausalLM._from_config(config, dtype=torch.float32).save_pretrained(folder / "target")
        source = SafetensorsSource(folder / "target")
        checkpoint = TargetCheckpoint(
            target_sizes("qwen3", config, "shape", "float32", ""), config, source, TextSource(b"", None), folder, {}
        )
        engines = {}
        for name, widest in (("whole", None), ("rings", WIDEST)):
            graph = trace_target(checkpoint, (0, 2), given.context, widest=widest)
            (folder / name).mkdir()
            path = bind(
                form.lower(graph, precision_of(given.precision)), {"target": source}, folder / name, "target.onnx"
            )
            engines[name] = Engine(path, graph.signature, given.threads)
        print(json.dumps({"cache bytes": {name: engine.bytes for name, engine in engines.items()}}))
        for position in (64, 512, 2048, given.context // 2, given.context - 64):
            for rows in (2, 8, 16, 64):
                print(
                    json.dumps({"position": position, "rows": rows, **measure(engines, rows, position, given.repeats)}),
                    flush=True,
                )


if __name__ == "__main__":
    main()
