"""Targets at the widths of published models, a few layers deep: traced with no weights there are, in the memory that
takes.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3Config
from transformers.models.muse_glimmer.configuration_muse_glimmer import MuseGlimmerTextConfig
from transformers.models.muse_spark.configuration_muse_spark import MuseSparkTextConfig

from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint, TextSource
from dflash_compile.export.spec import TargetSpec
from dflash_compile.export.tracing.trace import trace_target

QWEN3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
}
CONTEXT, GIB = 131072, 2**30
MODELS: dict[str, Any] = {
    "Qwen3-8B": (
        "qwen3",
        lambda: Qwen3Config(
            **QWEN3_8B, num_hidden_layers=4, tie_word_embeddings=False, max_position_embeddings=CONTEXT
        ),
    ),
    "Muse Glimmer 30B": ("muse_glimmer", lambda: MuseGlimmerTextConfig(num_hidden_layers=4)),
    "Muse Spark": ("muse_spark", lambda: MuseSparkTextConfig(num_hidden_layers=4)),
}


class Nothing:
    """A checkpoint without tensors."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def rows(self, name: str, start: int, stop: int) -> Any:
        raise AssertionError(f"tracing read {name}")


def checkpoint(family: str, config: Any) -> TargetCheckpoint:
    spec = TargetSpec(
        family=family,
        name=family,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        intermediate=config.intermediate_size,
        vocab=config.vocab_size,
        max_positions=CONTEXT,
        tied=False,
        dtype="bfloat16",
        rms_eps=config.rms_norm_eps,
        rope_theta=1e4,
    )
    return TargetCheckpoint(spec, config, Nothing(), TextSource(b"", None), Path(), {})


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_it_is_traced_without_weights(name: str) -> None:
    family, config = MODELS[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = trace_target(checkpoint(family, config()), (0, 2), CONTEXT)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    size = sum(value.numel() * 4 for value in graph.program.state_dict.values())
    assert size > 5 * GIB, "the weights that are not there"
    assert grown < 2 * GIB, "rotary tables and Python objects"
    assert {port.name: port.shape for port in graph.signature.inputs}["k_cache_3"][2] == CONTEXT
