"""Peak memory of exporting and of building, at the shape of Qwen3-0.6B (28 layers, 1024 wide, 151936 tokens) or, with
`--shape 1.7b`, of Qwen3-1.7B (2048 wide).

    python benchmarks/export_memory.py [--json]          trace and lower to ONNX, without weights
    python benchmarks/export_memory.py --bind [--json]   a whole build of a random checkpoint made on the spot
    python benchmarks/export_memory.py --bind --precision int4 --calibrate 2000 [--json]
                                                         the same, rounded for some text of 2000 random tokens

Exits with 1 when a bound is broken: 1000 MB to export; the largest layer plus 1000 MB to build, and the activations
where it calibrates. The peak is the resident set's, mapped files included, of a process that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from alone import alone, peak_mb

EXPORT_BOUND_MB = 1000
BUILD_SPARE_MB = 1000
CONTEXT = 2048
TAPS = (1, 7, 13, 19, 25)
SHAPE: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40960,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SHAPES = {"0.6b": SHAPE, "1.7b": {**SHAPE, "hidden_size": 2048, "intermediate_size": 6144}}
PIECE = 256
"""tokens of a calibration text"""


def export() -> dict[str, float]:
    """Trace and lower the target, with a source of weights that fails when it is read."""
    start = time.perf_counter()
    from transformers import Qwen3Config

    from dflash_compile.compile.onnxruntime.lower import lower
    from dflash_compile.compile.onnxruntime.precision import precision_of
    from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint, TextSource
    from dflash_compile.export.spec import TargetSpec
    from dflash_compile.export.tracing.trace import trace_target

    class Unreadable:
        def shapes(self) -> dict[str, tuple[int, ...]]:
            return {}

        def rows(self, name: str, start: int, stop: int) -> Any:
            raise AssertionError(f"tracing read {name}")

    config = Qwen3Config(**SHAPE)
    layers, hidden, vocab = config.num_hidden_layers, config.hidden_size, config.vocab_size
    spec = TargetSpec(
        "qwen3", "random", layers, hidden, 16, 8, 128, 3072, vocab, 40960, True, "bfloat16", config.rms_norm_eps, 1e6
    )
    checkpoint = TargetCheckpoint(spec, config, Unreadable(), TextSource(b"", None), Path(), {})
    lower(trace_target(checkpoint, TAPS, CONTEXT), precision_of("int8"))
    return {"peak_rss_mb": peak_mb(), "seconds": time.perf_counter() - start}


def make(folder: Path, shape: dict[str, Any]) -> None:
    """A random target, a shard per layer so that no more than one is in memory, and a drafter of five layers for it."""
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen3Config

    from dflash_compile.export.checkpoints.skeleton import parameter_shapes
    from dflash_compile.export.families import family_of

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    import models

    target = folder / "target"
    models.write_tokenizer(target)
    config = Qwen3Config(**shape, dtype="bfloat16", architectures=["Qwen3ForCausalLM"])
    config.save_pretrained(target)
    shards: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, size in parameter_shapes(family_of(config.model_type), config).items():
        part = name.split(".")[2] if ".layers." in name else "rest"
        shards.setdefault(f"model-{part}.safetensors", {})[name] = size
    for file, shapes in shards.items():
        save_file(
            {name: torch.randn(size, dtype=torch.bfloat16) * 0.02 for name, size in shapes.items()}, target / file
        )
    index = {"metadata": {}, "weight_map": {name: file for file, shapes in shards.items() for name in shapes}}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    models.write_drafter(folder / "drafter", target, layers=5, block=16, taps=TAPS)


def build(folder: Path, shape: dict[str, Any], precision: str, tokens: int) -> dict[str, float]:
    """Build a bundle of the models in `folder`, calibrated with so many tokens."""
    start = time.perf_counter()
    from dflash_compile.compile.build import BuildOptions
    from dflash_compile.compile.build import build as build_bundle
    from dflash_compile.compile.calibration_text import Calibration

    draw = random.Random(0)
    texts = [[draw.randrange(shape["vocab_size"]) for _ in range(PIECE)] for _ in range(tokens // PIECE)]
    build_bundle(
        folder / "target",
        folder / "drafter",
        folder / f"bundle-{precision}",
        BuildOptions(
            precision=precision,
            context=CONTEXT,
            engine={"calibrate": Calibration("random", lambda _: texts)} if texts else {},
        ),
    )
    figures = {"peak_rss_mb": peak_mb(), "seconds": time.perf_counter() - start}
    return {**figures, "largest_layer_mb": largest_mb(shape), "activations_mb": activations_mb(shape, len(texts))}


def largest_mb(shape: dict[str, Any]) -> float:
    """Of one layer in float32: the embedding table."""
    return float(shape["vocab_size"] * shape["hidden_size"] * 4 / 1e6)


def activations_mb(shape: dict[str, Any], texts: int) -> float:
    """What calibration keeps: hidden states of all texts, and the moments of one layer's inputs."""
    wide, heads = shape["hidden_size"], shape["num_attention_heads"] * shape["head_dim"]
    moments = 2 * wide**2 + heads**2 + shape["intermediate_size"] ** 2
    return float(4 * (texts * PIECE * wide + moments) / 1e6) if texts else 0.0


def main() -> int:
    """Measure, print, and compare with the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--bind", action="store_true", help="build a whole bundle")
    parser.add_argument("--precision", default="int8", help="of --bind: int8, int4 or fp32")
    parser.add_argument("--shape", choices=list(SHAPES), default="0.6b", help="of the target of --bind")
    parser.add_argument("--calibrate", type=int, default=0, metavar="TOKENS", help="with --bind --precision int4")
    parser.add_argument("--folder", type=Path, help="where --bind puts its models; a temporary folder by default")
    parser.add_argument("--stage", choices=["make", "build"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage == "make":
        make(arguments.folder, SHAPES[arguments.shape])
        return 0
    if arguments.stage == "build":
        figures = build(arguments.folder, SHAPES[arguments.shape], arguments.precision, arguments.calibrate)
    elif arguments.bind:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            common = ["--folder", folder, "--shape", arguments.shape, "--json"]
            alone(__file__, ["--stage", "make", *common])
            how = ["--precision", arguments.precision, "--calibrate", str(arguments.calibrate)]
            figures = alone(__file__, ["--stage", "build", *how, *common])
    else:
        figures = export()
    built = "largest_layer_mb" in figures
    bound = figures["largest_layer_mb"] + figures["activations_mb"] + BUILD_SPARE_MB if built else EXPORT_BOUND_MB
    rounded = {key: round(value, 1) for key, value in figures.items()}
    print(
        json.dumps(rounded)
        if arguments.json
        else "\n".join(f"{key}: {value}" for key, value in rounded.items()) + f"\nbound: {bound:.0f} MB"
    )
    return 0 if arguments.stage or figures["peak_rss_mb"] <= bound else 1


if __name__ == "__main__":
    sys.exit(main())
