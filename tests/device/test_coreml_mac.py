"""What only a Mac can tell of a Core ML bundle: where it runs, whether it computes what the evaluator says, whether it
lasts, how fast it is.

`make test-mac`, on macOS 15 or later. Nobody has run these yet: no figure of a Mac is published anywhere in this
repository.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.compile.coreml.evaluator.evaluate import Evaluator
from dflash_compile.runtime import load
from dflash_compile.runtime.backend import EngineOptions
from dflash_compile.runtime.backends.apple.chain import Chain, whole
from dflash_compile.runtime.backends.apple.engines import Functions, StaticTarget, engine_file, state_ports
from dflash_compile.runtime.backends.apple.host_cache import HostCache
from dflash_compile.runtime.backends.coreml import backend as coreml
from dflash_compile.runtime.bundle.parts import engines
from dflash_compile.runtime.bundle.read import open_bundle

pytestmark = [pytest.mark.macos, pytest.mark.skipif(sys.platform != "darwin", reason="Core ML runs on a Mac only")]

ROOT = Path(__file__).parents[2]
SOAK, TOKENS = 300, 128
PROMPT = "Write a Python function that returns the first n prime numbers."


@pytest.fixture(scope="module", params=["fp16 gpu-state", "int4 gpu-state", "palette6 ane-io"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's pair: SmolLM2-135M-Instruct and its drafter."""
    precision, policy = request.param.split()
    options = BuildOptions(
        backend="coreml", precision=precision, drafter_precision="fp16", context=512, engine={"cache_policy": policy}
    )
    return build(
        "smollm2-135m",
        ROOT / "artifacts" / "smollm2-135m-dflash",
        tmp_path_factory.mktemp("mac") / f"{precision}-{policy}",
        options,
    )


def test_most_of_the_work_runs_where_it_was_built_for(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import coremltools as ct
    from coremltools.models.compute_plan import MLComputePlan

    bundle = open_bundle(path)
    policy = str(bundle.manifest.config["cache_policy"])
    wanted = {"gpu-state": "MLGPUComputeDevice", "ane-io": "MLNeuralEngineComputeDevice"}[policy]
    for file in (engine_file(engine) for engine in engines(bundle.manifest.target)):
        compiled = coreml._compiled(ct, bundle.file(file), tmp_path, coreml._digest(bundle.manifest, file))
        plan = MLComputePlan.load_from_path(str(compiled), compute_units=getattr(ct.ComputeUnit, coreml._UNITS[policy]))
        for name, function in plan.model_structure.program.functions.items():
            devices = Counter(_device(plan, operation) for operation in function.block.operations)
            devices.pop("nowhere", None)  # constants
            with capsys.disabled():
                print(f"\n{path.name} {file} {name}: {dict(devices)}")
            assert devices[wanted] > 0.9 * devices.total(), name


def _device(plan: Any, operation: Any) -> str:
    usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
    return "nowhere" if usage is None else type(usage.preferred_compute_device).__name__


class Evaluated:
    """The functions of a saved package, played by the evaluator."""

    def __init__(self, package: Path) -> None:
        self.evaluator = Evaluator(package)
        self.state = self.evaluator.new_state(self.evaluator.functions[0])

    def call(self, function: str, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.evaluator.run(function, feeds, self.state)

    def close(self) -> None:
        self.state = {}


def test_it_computes_what_the_evaluator_says(path: Path) -> None:
    bundle = open_bundle(path)
    opened, record = coreml.open_engines(bundle, EngineOptions()), bundle.manifest.target
    parts: dict[str, Functions] = {}
    for engine in engines(record):
        played = Evaluated(bundle.file(engine_file(engine)))
        parts[engine_file(engine)] = played if state_ports(engine) else HostCache(engine, played)
    reference = StaticTarget(whole(bundle.manifest), Chain(record, parts, bundle.manifest.pairing.taps))
    random, vocab, position = np.random.default_rng(0), record.vocab, 0
    agreed = []
    for _ in range(12):
        tokens = [int(token) for token in random.integers(0, vocab, bundle.manifest.pairing.block)]
        found = opened.target.verify(tokens, position)
        taps = np.array(opened.target.taps.memory[: len(tokens)], np.float32)
        wanted = reference.verify(tokens, position)
        right = np.array(reference.taps.memory[: len(tokens)], np.float32)
        np.testing.assert_allclose(taps, right, atol=2e-2 * np.abs(right).max())
        agreed += [choice == other for choice, other in zip(found, wanted, strict=True)]
        position += int(random.integers(1, len(tokens) + 1))
    assert np.mean(agreed) > 0.9  # the rest are ties of float16
    opened.close()


def test_a_row_gives_the_same_choice_alone_and_in_a_block(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What makes an answer exactly the target's own; where it fails, the widths round differently on this Mac."""
    engines = coreml.open_engines(open_bundle(path), EngineOptions())
    block = engines.drafter.block
    tokens = [int(token) for token in np.random.default_rng(1).integers(100, 20000, 8 * block)]
    together = [
        choice
        for start in range(0, len(tokens), block)
        for choice in engines.target.verify(tokens[start : start + block], start)
    ]
    alone = [engines.target.verify([token], place)[0] for place, token in enumerate(tokens)]
    differ = sum(one != other for one, other in zip(together, alone, strict=True))
    with capsys.disabled():
        print(f"\n{path.name}: {differ} of {len(tokens)} choices differ between a block and single rows")
    assert differ == 0
    engines.close()


def test_it_lasts_three_hundred_calls(path: Path) -> None:
    """Four-bit models with a state were reported to crash after one or two hundred."""
    engines = coreml.open_engines(open_bundle(path), EngineOptions())
    for number in range(SOAK):
        engines.target.verify([number % 1000] * engines.drafter.block, number % 200)
        engines.drafter.draft(number % 1000, number % 200, engines.drafter.block)
    engines.close()


def test_speed_against_plain_decoding_of_the_same_precision(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints medians of interleaved runs; asserts only that the text is the same."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    answers = set()
    with load(path) as session:
        for _ in range(5):
            for draft in (False, True):
                began = time.perf_counter()
                tokens = list(session.tokens(PROMPT, max_new_tokens=TOKENS, draft=draft))
                rates[draft].append(len(tokens) / (time.perf_counter() - began))
                answers.add(tuple(tokens))
    plain, drafted = (statistics.median(rates[draft][1:]) for draft in (False, True))
    with capsys.disabled():
        print(f"\n{path.name}: {plain:.1f} tok/s plain, {drafted:.1f} with drafts, {drafted / plain:.2f} times as fast")
    assert len(answers) == 1
