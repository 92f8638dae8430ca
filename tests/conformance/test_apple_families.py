"""Every family of targets and kind of drafter on Apple's back-ends: built, with every saved engine run, or refused
before anything heavy starts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import pytest

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.compile.coreml import backend as coreml
from dflash_compile.runtime import load
from dflash_compile.runtime.bundle.read import read_manifest
from dflash_compile.runtime.errors import IncompatibleError

CONTEXT, BLOCK, TOKENS = 96, 4, 30
PROMPTS = [[5], list(range(10, 60))]
EXPERTS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "muse_spark": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "moe_hidden_size": 32,
        "mlp_layer_types": ["sparse", "dense"],
        "sliding_window": 7,
    },
}


def write_v1(folder: Path, _target: Path) -> Path:
    """A z-lab v1 drafter of any target's sizes: those of the tiny models are one."""
    like = models.write_target(folder.parent / "like", "llama", num_hidden_layers=2)
    return models.write_drafter(folder, like, layers=1, block=BLOCK, taps=(0,))


def write_v2(folder: Path, target: Path) -> Path:
    return models.write_drafter2(folder, target, block=BLOCK, taps=(0,))


def write_muse(folder: Path, target: Path) -> Path:
    return models.write_assistant(
        folder, target, block=BLOCK, taps=(0,), layer_types=["sliding_attention"], sliding_window=7
    )


KINDS: dict[str, Callable[[Path, Path], Path]] = {
    "gemma3_text": write_v1,
    "smollm3": write_v1,
    "muse_glimmer": write_muse,
    "qwen3": write_v2,
}


def write_pair(folder: Path, family: str) -> tuple[Path, Path]:
    target = models.write_target(folder / "target", family, num_hidden_layers=2, **EXPERTS.get(family, {}))
    return target, KINDS.get(family, write_v1)(folder / "drafter", target)


@pytest.mark.slow
@pytest.mark.parametrize("family", [*KINDS, "qwen3_moe"])
def test_core_ai_answers_as_the_cpu_does(family: str, tmp_path: Path) -> None:
    pair = write_pair(tmp_path, family)
    built = [
        build(*pair, tmp_path / name, BuildOptions(backend=name, precision="fp32", context=CONTEXT))
        for name in ("coreai", "onnxruntime")
    ]
    with load(built[0]) as session, load(built[1]) as reference:
        for prompt in PROMPTS:
            wanted = list(reference.tokens(prompt, max_new_tokens=TOKENS, draft=False))
            assert list(session.tokens(prompt, max_new_tokens=TOKENS, draft=False)) == wanted
            assert list(session.tokens(prompt, max_new_tokens=TOKENS, block=BLOCK)) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "policy"), [*((family, "gpu-state") for family in KINDS), ("muse_glimmer", "ane-io")]
)
def test_core_ml_packages_compute_what_was_traced(family: str, policy: str, tmp_path: Path) -> None:
    """The build itself runs every function of what it saved, and stops where one differs.

    The test after this has the caches that the host keeps, of every family.
    """
    notes: list[str] = []
    build(
        *write_pair(tmp_path, family),
        tmp_path / "bundle",
        BuildOptions(backend="coreml", context=CONTEXT, engine={"cache_policy": policy}),
        note=notes.append,
    )
    assert not any("too large" in note for note in notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "precision"), [*((family, "fp16") for family in KINDS), ("qwen3", "int4"), ("gemma3_text", "palette6")]
)
def test_core_ml_targets_in_two_packages_compute_what_was_traced(
    family: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the test before; a tied embedding is in both packages then."""
    monkeypatch.setattr(coreml, "starts_of", lambda owner, *_: (1,) if owner == "target" else ())
    options = BuildOptions(backend="coreml", precision=precision, context=CONTEXT, engine={"cache_policy": "ane-io"})
    bundle = build(*write_pair(tmp_path, family), tmp_path / "bundle", options)
    assert {graph.file for graph in read_manifest(bundle).target.graphs} == {
        "target/target-1.mlpackage",
        "target/target-2.mlpackage",
    }


@pytest.mark.parametrize(
    ("family", "backend", "says"),
    [
        ("gpt_oss", "coreml", "attention sinks"),
        ("gpt_oss", "coreai", "attention sinks"),
        ("qwen3_moe", "coreml", "mixtures of experts"),
        ("muse_spark", "coreml", "mixtures of experts"),
    ],
)
def test_what_has_no_form_there_is_refused_before_anything_is_written(
    family: str, backend: str, says: str, tmp_path: Path
) -> None:
    pair = write_pair(tmp_path, family)
    with pytest.raises(IncompatibleError, match=says) as caught:
        build(*pair, tmp_path / "out" / "bundle", BuildOptions(backend=backend, context=CONTEXT))
    assert caught.value.fix
    assert not (tmp_path / "out").exists()
