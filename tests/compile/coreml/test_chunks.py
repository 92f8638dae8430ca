"""Models cut by layers into several Core ML packages: they answer as torch does and as one package does, and what goes
wrong between them is caught.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
import torch
from apple import CONTEXT, DEEP_LAYERS, Library, rewritten

from dflash_compile.cli.main import main
from dflash_compile.compile.apple import packages as packaging
from dflash_compile.compile.apple import partition as partitioning
from dflash_compile.compile.apple.lower import Stateful, lower
from dflash_compile.compile.apple.packages import PartRole, partitioned
from dflash_compile.compile.apple.reference import Reference
from dflash_compile.compile.apple.roles import Role, roles_of
from dflash_compile.compile.build import BuildOptions
from dflash_compile.compile.coreml import backend, chunks
from dflash_compile.compile.coreml.check import check_function
from dflash_compile.compile.coreml.evaluator.evaluate import Evaluator
from dflash_compile.compile.coreml.precision import compression_of
from dflash_compile.compile.pair_sizes import Models, decide
from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.tracing.graph import Graph, Owner
from dflash_compile.runtime import load
from dflash_compile.runtime.backend import EngineOptions
from dflash_compile.runtime.backends.apple.host_cache import HostCache
from dflash_compile.runtime.backends.coreml import backend as coreml
from dflash_compile.runtime.bundle.parts import engines
from dflash_compile.runtime.bundle.read import open_bundle, read_manifest
from dflash_compile.runtime.errors import BuildError, IncompatibleError

LIMIT = 160_000
STARTS: dict[str, tuple[int, ...]] = {"target": (1, 3), "drafter": (1,)}
"""where that cuts: between packages, and so that one of them has two layers"""
PROMPT = list(range(10, 80))
FP16 = compression_of("fp16")


@pytest.fixture(scope="module")
def cut(apple_bundle: Callable[..., Path]) -> Path:
    """A target in three packages and a drafter in two."""
    return apple_bundle("deep-llama", "coreml", "fp16", "ane-io", str(LIMIT))


@pytest.fixture(scope="module")
def uncut(apple_bundle: Callable[..., Path]) -> Path:
    """The same pair in one package each."""
    return apple_bundle("deep-llama", "coreml", "fp16", "ane-io")


@pytest.fixture(scope="module")
def pair(cut: Path) -> Models:
    return decide(
        open_target(cut.parent / "target"), open_drafter(cut.parent / "drafter"), BuildOptions(context=CONTEXT)
    )


def role_of(both: Models, owner: Owner, function: str) -> Role:
    (found,) = (role for role in roles_of(both, owner, "float16", in_state=False) if role.function == function)
    return found


def parts_of(both: Models, owner: Owner, function: str) -> list[Stateful]:
    role = role_of(both, owner, function)
    return [lower(graph, part) for part, graph in partitioned(role, role.trace(both), STARTS[owner])]


def test_the_manifest_says_which_package_holds_what(cut: Path, uncut: Path) -> None:
    manifest = read_manifest(cut)
    held = {
        model.name: [(engine.graphs[0].file, engine.graphs[0].part) for engine in engines(model)]
        for model in (manifest.target, manifest.drafter)
    }
    assert [(file, part.layers, part.taps) for file, part in held[manifest.target.name] if part] == [
        ("target/target-1.mlpackage", [0], [0]),
        ("target/target-2.mlpackage", [1, 2], [1]),
        ("target/target-3.mlpackage", [3], []),
    ]
    assert [(file, part.layers, part.taps) for file, part in held[manifest.drafter.name] if part] == [
        ("drafter/drafter-1.mlpackage", [0], []),
        ("drafter/drafter-2.mlpackage", [1], []),
    ]
    for model in (manifest.target, manifest.drafter):
        for engine in engines(model):
            functions = Evaluator(cut / engine.graphs[0].file).saved.functions
            for graph in engine.graphs:
                assert {port.name for port in graph.inputs} == set(functions[graph.function].inputs)
                assert {port.name for port in graph.outputs} == {
                    output.name for output in functions[graph.function].outputs
                }
                (cache,) = (port for port in graph.inputs if port.name == "cache")
                assert graph.part is not None and cache.shape[0] == 2 * len(graph.part.layers)
    assert all(
        graph.part is None
        for model in (read_manifest(uncut).target, read_manifest(uncut).drafter)
        for graph in model.graphs
    )


def test_inspect_lists_the_packages(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(cut)]) == 0
    shown = capsys.readouterr().out
    assert "part 2 of 3: layers 1, 2, taps 1, 0.3 MiB" in shown
    assert "drafter/drafter-2.mlpackage" in shown


def answered(path: Path, both: Models, fault: Callable[[Any], None] = lambda chain: None) -> float:
    """The largest distance from torch over a trace of blocks, of which some rows are accepted, and single tokens: of
    choices, taps and caches.

    As parts of the largest number of each, through the runtime's own engines. `fault` gets the target's chain first.
    """
    random, target_engines = np.random.default_rng(2), coreml.open_engines(open_bundle(path), EngineOptions())
    engine, chain = target_engines.target, target_engines.target._functions  # type: ignore[attr-defined]
    fault(chain)
    roles = {rows: role_of(both, "target", function) for rows, function in ((4, "verify4"), (1, "decode1"))}
    references = {rows: Reference(lower(role.trace(both), role), both.sources, {}) for rows, role in roles.items()}
    state, position, worst = torch.zeros(roles[1].cache.sizes, dtype=torch.float16), 0, 0.0
    for step in range(10):
        rows = 1 if step % 4 == 3 else 4
        tokens = [int(token) for token in random.integers(0, models.VOCAB, rows)]
        choices = engine.verify(tokens, position)
        taps = np.array(engine.taps.memory[:rows], np.float32)
        references[rows].state = state
        wanted, scores = references[rows].run(
            {"tokens": np.array([tokens], np.int32), "position": np.array([position], np.int32)}
        )
        state = references[rows].state
        assert scores is not None
        short = scores[0].max(-1) - scores[0][np.arange(rows), choices]
        worst = max(
            worst,
            float(short.max() / np.abs(scores).max()),
            float(np.abs(taps - wanted["taps"][0]).max() / np.abs(wanted["taps"]).max()),
        )
        position += int(random.integers(1, rows + 1))
        engine.verify([0], position)  # commits what was accepted
        caches = np.concatenate([held.cache for held in chain._engines.values()])[:, :, :position].astype(np.float32)
        right = state.float().numpy()[:, :, :position]
        worst = max(worst, float(np.abs(caches - right).max() / np.abs(right).max()))
    target_engines.close()
    return worst


def taps_of_other_packages(chain: Any) -> None:
    chain._taps.reverse()


def a_cache_not_written(chain: Any) -> None:
    held = list(chain._engines.values())[1]
    held._commit = lambda position: None


class Remembering:
    """An engine whose tap can be had later."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.tap = engine, None

    def call(self, function: str, feeds: Any) -> Any:
        found = self.engine.call(function, feeds)
        self.tap = found["tap_0"]
        return found


class Misled:
    """An engine that gets the tap of `other` as the hidden state."""

    def __init__(self, engine: Any, other: Remembering) -> None:
        self.engine, self.other = engine, other

    def call(self, function: str, feeds: Any) -> Any:
        return self.engine.call(function, {**feeds, "hidden_0": self.other.tap})


def rows_of_another_package(chain: Any) -> None:
    """The last package reads what the first made in place of what the second did."""
    for first, _, last in chain._links.values():
        first.engine = Remembering(first.engine)
        last.engine = Misled(last.engine, first.engine)


def test_packages_in_a_row_answer_as_torch_does(cut: Path, pair: Models, library: Library) -> None:
    assert answered(cut, pair) < 5e-3
    assert [Path(package).stem for package in library.compiled] == [
        "target-1",
        "target-2",
        "target-3",
        "drafter-1",
        "drafter-2",
    ]


@pytest.mark.parametrize("fault", [taps_of_other_packages, a_cache_not_written, rows_of_another_package])
def test_a_fault_between_packages_shows(
    cut: Path, pair: Models, library: Library, fault: Callable[[Any], None]
) -> None:
    """What the test above would find."""
    assert answered(cut, pair, fault) > 5e-2


def test_packages_in_a_row_answer_as_one_does(cut: Path, uncut: Path, library: Library) -> None:
    with load(cut) as session, load(uncut) as other:
        plain = list(other.tokens(PROMPT, max_new_tokens=12, draft=False))
        assert list(session.tokens(PROMPT, max_new_tokens=12, draft=False)) == plain
        for block in (4, 3):
            assert list(other.tokens(PROMPT, max_new_tokens=12, block=block)) == plain
            cycles = other.statistics.cycles
            assert list(session.tokens(PROMPT, max_new_tokens=12, block=block)) == plain
            assert session.statistics.cycles == cycles, "other proposals"


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "smollm3", "muse_glimmer"])
def test_pieces_are_the_graph_wherever_it_is_cut(family: str, tmp_path: Path) -> None:
    """Every operation on the same values, as `partitioned` proves; and only hidden states cross."""
    target = models.write_target(tmp_path / "target", family, num_hidden_layers=DEEP_LAYERS)
    like = models.write_target(tmp_path / "like", "llama", num_hidden_layers=DEEP_LAYERS)
    drafter = models.write_drafter(tmp_path / "drafter", like, layers=3, taps=(2, 0))
    both = decide(open_target(target), open_drafter(drafter), BuildOptions(context=CONTEXT))
    cuts: dict[tuple[Owner, str], list[tuple[int, ...]]] = {
        ("target", "verify8"): [(1,), (1, 2, 3), (3,)],
        ("drafter", "draft8"): [(1,), (1, 2)],
        ("drafter", "inject8"): [(2,), (1, 2)],
    }
    for called, places in cuts.items():
        role = role_of(both, *called)
        graph = role.trace(both)
        for starts in places:
            for part, _ in partitioned(role, graph, starts):
                assert isinstance(part, PartRole)
                crossing = [port for port in part.asked if port.name.startswith(("hidden_", "tap_"))]
                assert len(crossing) == (part.number > 0)
                assert all(port.shape == (1, 8, 64) for port in crossing)


@pytest.fixture(scope="module")
def traced(pair: Models) -> tuple[Role, Graph]:
    role = role_of(pair, "target", "decode1")
    return role, role.trace(pair)


def swapped(partitions: tuple[partitioning.Partition, ...]) -> tuple[partitioning.Partition, ...]:
    return partitions[1], partitions[0], partitions[2]


def one_missing(partitions: tuple[partitioning.Partition, ...]) -> tuple[partitioning.Partition, ...]:
    return partitions[0], partitions[2]


def a_write_dropped(partitions: tuple[partitioning.Partition, ...]) -> tuple[partitioning.Partition, ...]:
    """The second partition hands a cache back as it was."""
    ends, given = partitioning.outputs(partitions[1].graph), partitioning.inputs(partitions[1].graph)
    (last,) = (node for node in partitions[1].graph.program.graph_module.graph.nodes if node.op == "output")
    last.args = (tuple(given["v_cache_1"] if node is ends["v_cache_1_out"] else node for node in last.args[0]),)
    return partitions


@pytest.mark.parametrize("fault", [swapped, one_missing, a_write_dropped])
def test_a_wrong_cut_is_refused_before_anything_is_converted(
    traced: tuple[Role, Graph],
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Any], tuple[partitioning.Partition, ...]],
) -> None:
    assert len(partitioned(*traced, STARTS["target"])) == 3
    right = partitioning.partition_layers
    monkeypatch.setattr(packaging, "partition_layers", lambda *given: fault(right(*given)))
    with pytest.raises(BuildError, match="gives another"):
        partitioned(*traced, STARTS["target"])


def test_taps_of_the_wrong_layer_are_refused_before_anything_is_converted(
    traced: tuple[Role, Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = partitioning.joined
    monkeypatch.setattr(partitioning, "joined", lambda taps: right(taps)[::-1])
    with pytest.raises(BuildError, match="gives another tap_"):
        partitioned(*traced, STARTS["target"])


def maker(block: Any, name: str) -> Any:
    """The operation that makes the value `name`."""
    (found,) = (operation for operation in block.operations if any(output.name == name for output in operation.outputs))
    return found


def tap_and_hidden_swapped(block: Any) -> None:
    """Two outputs of one shape change their names."""
    names = {"tap_1": "hidden_0", "hidden_0": "tap_1"}
    for operation in block.operations:
        for output in operation.outputs:
            output.name = names.get(output.name, output.name)
        for argument in operation.inputs.values():
            for binding in argument.arguments:
                binding.name = names.get(binding.name, binding.name)


def rows_of_one_layer_twice(block: Any) -> None:
    """The second layer's K and V are not handed out: those of the first are, again."""
    values = maker(block, "rows").inputs["values"].arguments
    values[2].name, values[3].name = values[0].name, values[1].name


@pytest.mark.parametrize("change", [tap_and_hidden_swapped, rows_of_one_layer_twice])
def test_a_fault_in_a_package_is_found_by_running_it(
    cut: Path, pair: Models, tmp_path: Path, change: Callable[[Any], None]
) -> None:
    package, part = cut / "target" / "target-2.mlpackage", parts_of(pair, "target", "verify4")[1]
    check_function(Evaluator(package), part, pair.sources, FP16, tolerance=5e-3)
    with pytest.raises(BuildError, match="is not what the traced graph gives"):
        check_function(Evaluator(rewritten(package, tmp_path, change)), part, pair.sources, FP16)


def test_a_layer_that_is_too_large_by_itself_is_refused_first(pair: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "LIMIT_BYTES", 10**4)
    options = backend.Options("palette4", "palette4", cache_policy="ane-io")
    with pytest.raises(IncompatibleError, match=r"the drafter's layer 0, .* would have .* GB") as caught:
        backend.prepare(pair, options, lambda *_: None, ("drafter",))
    assert "fewer bits" in str(caught.value)


def test_a_package_that_came_out_larger_than_the_neural_engine_takes_is_refused(
    cut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = cut / "target" / "target-1.mlpackage"
    chunks.check_size(package)
    monkeypatch.setattr(chunks, "MOST_BYTES", 10**4)
    with pytest.raises(BuildError, match="target-1"):
        chunks.check_size(package)


@pytest.mark.parametrize(
    ("limit", "starts"), [(10**9, ()), (LIMIT, (1, 3)), (200_000, (2,)), (390_000, (2,)), (130_000, (1, 2, 3))]
)
def test_there_are_as_few_packages_as_can_be_and_they_are_about_equal(
    traced: tuple[Role, Graph], monkeypatch: pytest.MonkeyPatch, limit: int, starts: tuple[int, ...]
) -> None:
    """A layer has 74 kB, embedding and head have 49 each."""
    monkeypatch.setattr(chunks, "LIMIT_BYTES", limit)
    assert chunks.starts_of("target", [traced[1]], FP16) == starts


@pytest.mark.parametrize("precision", ["fp16", "int8", "int4", "palette6", "palette4"])
def test_a_tied_embedding_counts_in_both_packages_that_hold_it(precision: str, tmp_path: Path) -> None:
    target = models.write_target(tmp_path / "target", "qwen3", num_hidden_layers=2, vocab_size=models.VOCAB)
    both = decide(
        open_target(target),
        open_drafter(models.write_drafter(tmp_path / "drafter", target, layers=1, taps=(0,))),
        BuildOptions(context=CONTEXT),
    )
    first, last = chunks.units(role_of(both, "target", "decode1").trace(both))
    assert len(first & last) == 1
    (shared,) = first & last
    assert shared.tensor == "model.embed_tokens.weight"
    compression = compression_of(precision)
    assert compression.bytes_of(shared, 8 * 10**6) == 10**6 * (8 if precision == "int4" else compression.bits)


def test_the_caches_of_packages_are_their_own(cut: Path, library: Library) -> None:
    opened = coreml.open_engines(open_bundle(cut), EngineOptions())
    held = [engine.cache.shape[0] for engine in opened.target._functions._engines.values()]  # type: ignore[attr-defined]
    assert held == [2, 4, 2]
    assert all(isinstance(engine, HostCache) for engine in opened.target._functions._engines.values())  # type: ignore[attr-defined]
    opened.close()
